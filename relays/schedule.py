"""Which messages of a batch may be sent now: per key one in flight, the next when its predecessor is confirmed.

Pure: no clock, no thread, no broker. A publisher asks `take()` for work and reports what became of each message.
"""

from collections import deque
from collections.abc import Hashable, Sequence

__all__ = ["KeyedSchedule"]


class KeyedSchedule:
    """The order of sending for one batch. Messages are named by their position in it.

    Parameters:
        keys: the ordering key of each message, None for messages without order.
        window: how many messages of one key may be in flight at once, at least 1. More than 1 trades order for
            speed: when one fails, those already in flight behind it are not called back.

    Every position is in exactly one state: waiting, ready, in flight, or finished (confirmed, failed, deferred).
    """

    def __init__(self, keys: Sequence[Hashable | None], window: int = 1) -> None:
        if window < 1:
            raise ValueError(f"window: must be at least 1, got {window}")
        self._keys = keys
        self._ready: deque[int] = deque()
        self._waiting: dict[Hashable, deque[int]] = {}
        self._unfinished = len(keys)
        in_window: dict[Hashable, int] = {}
        for position, key in enumerate(keys):
            if key is None or in_window.get(key, 0) < window:
                self._ready.append(position)
                if key is not None:
                    in_window[key] = in_window.get(key, 0) + 1
            else:
                self._waiting.setdefault(key, deque()).append(position)

    @property
    def done(self) -> bool:
        """Whether every message is finished."""
        return not self._unfinished

    def take(self) -> int | None:
        """The next message to send, now in flight; None when nothing may be sent at the moment."""
        return self._ready.popleft() if self._ready else None

    def confirmed(self, position: int) -> None:
        """The message has arrived: the next one of its key may go."""
        self._unfinished -= 1
        key = self._keys[position]
        waiting = None if key is None else self._waiting.get(key)
        if waiting:
            self._ready.append(waiting.popleft())

    def failed(self, position: int) -> list[int]:
        """The message did not arrive: those of its key that are not in flight are finished too, and returned."""
        self._unfinished -= 1
        key = self._keys[position]
        if key is None:
            return []
        behind = [other for other in self._ready if self._keys[other] == key]
        if behind:
            self._ready = deque(other for other in self._ready if self._keys[other] != key)
        behind += self._waiting.pop(key, ())
        self._unfinished -= len(behind)
        return behind

    def abandon(self) -> list[int]:
        """Nothing more may be sent: all that is not in flight is finished, and returned."""
        behind = [*self._ready, *(position for waiting in self._waiting.values() for position in waiting)]
        self._ready.clear()
        self._waiting.clear()
        self._unfinished -= len(behind)
        return behind
