"""One relay process: its threads, its start and its end."""
