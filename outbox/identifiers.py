"""UUIDv7: the default idempotency key, sortable by the time it was made."""

import os
import time
import uuid

__all__ = ["uuid7"]


def uuid7() -> str:
    """A UUID of version 7 (RFC 9562, section 5.7): 48 bits of Unix milliseconds, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    high = (milliseconds & (1 << 48) - 1) << 80 | 0x7 << 76 | (random >> 68) << 64
    return str(uuid.UUID(int=high | 0b10 << 62 | random & (1 << 62) - 1))
