"""The commands of `outbox-relay`. typer parses flags and nothing else: what they mean is for `relays.sources`."""
