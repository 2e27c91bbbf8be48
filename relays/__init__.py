"""The workers: they claim committed events, publish them and remove them when the broker has confirmed."""
