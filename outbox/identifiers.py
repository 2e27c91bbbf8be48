"""UUIDv7: the default idempotency key, sortable by the time it was made."""

import os
import time

__all__ = ["uuid7"]


def uuid7() -> str:
    """A UUID of version 7 (RFC 9562, section 5.7): 48 bits of Unix milliseconds, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000 & (1 << 48) - 1
    random = int.from_bytes(os.urandom(10), "big")
    value = milliseconds << 80 | 0x7 << 76 | (random >> 68) << 64 | 0b10 << 62 | random & (1 << 62) - 1
    digits = f"{value:032x}"  # a uuid.UUID on the way would double the time
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
