"""The messages that are measured."""

import datetime as dt
import json

from relays.publishers import Message

__all__ = ["make_messages"]


def make_messages(name: str, topic: str, count: int, keys: int) -> list[Message]:
    """`count` messages with some 250 bytes of JSON, spread over `keys` ordering keys; 0: without keys.

    Their idempotency keys begin with `name`, which is to be another one each time.
    """
    now = dt.datetime.now(dt.UTC)
    return [
        Message(
            idempotency_key=f"{name}-{number}",
            key=f"customer-{number % keys}" if keys else None,
            topic=topic,
            type="OrderPlaced",
            payload=json.dumps({"order": number, "total": "99.90", "items": list(range(50))}).encode(),
            content_type="application/json",
            headers=None,
            created_at=now,
            resends=0,
        )
        for number in range(count)
    ]
