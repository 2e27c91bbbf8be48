"""The outbox tables as the relay uses them. Each method is one transaction on the connection it is given.

What each may run beside: `claim`, `renew`, `promote` and `return_paused` take rows by SKIP LOCKED and wait for nobody;
`settle` locks the lanes it holds before any event. All times are the database's.
"""

import datetime as dt
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from outbox.codecs import HeaderValue
from outbox.errors import ConfigurationError, DatabaseRefused, SchemaError
from outbox.naming import Naming
from outbox.store.signal import Signal
from outbox.store.statements import SQL, statement
from outbox.tables import LANES

__all__ = ["Dead", "Failed", "Left", "ReadyEvent", "Settlement", "Signal", "Store"]

ERROR_LIMIT = 2000
"""Characters of an error that are kept with an event."""


class ReadyEvent(NamedTuple):
    """A sendable event as the relay reads it."""

    id: int
    lane: int
    idempotency_key: str
    key: str | None
    topic: str
    type: str
    payload: bytes
    content_type: str
    headers: dict[str, HeaderValue] | None
    attempts: int
    resends: int
    created_at: dt.datetime
    held: str | None
    returned: bool
    """It was aside and came back."""
    blocked: bool
    """An earlier event of its key is held: this one must not be sent."""

    @property
    def was_aside(self) -> bool:
        """Whether other events of its key may have been parked because of it."""
        return self.returned or self.held is not None or self.attempts > 0


class Failed(NamedTuple):
    """An event that waits `delay` seconds for its next attempt; this one is charged."""

    event: ReadyEvent
    delay: float
    error: str


class Dead(NamedTuple):
    """An event that goes to the dead-letter table; `charge` is what this attempt adds to its attempts, 0 or 1."""

    event: ReadyEvent
    reason: str
    error: str
    charge: int


class Left(NamedTuple):
    """How many events are in the outbox, by what they wait for."""

    ready: int
    scheduled: int
    waiting: int
    parked: int


@dataclass(slots=True)
class Settlement:
    """What became of a batch. An event that is in none of the lists stays as it was."""

    confirmed: list[ReadyEvent] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    dead: list[Dead] = field(default_factory=list)
    paused: list[ReadyEvent] = field(default_factory=list)
    blocked: list[ReadyEvent] = field(default_factory=list)
    pauses: dict[str, str] = field(default_factory=dict)
    """Destinations to pause, with the reason."""
    resumes: set[str] = field(default_factory=set)
    """Destinations that work again."""


class Store:
    """Every statement of the relay for one set of tables; stateless, shared by all threads."""

    def __init__(self, naming: Naming | None = None) -> None:
        self.naming = naming or Naming()
        self._sql = {name: statement(name, self.naming) for name in SQL}

    def open_outbox(self, connection: sa.Connection, outbox: str, target: str, *, take_over: bool = False) -> None:
        """Make the lanes of an outbox that is new, and its floors right after a restore or a failover.

        Raises ConfigurationError if another target drains it, SchemaError if its ids don't come in order,
        DatabaseRefused if their sequence can't be read.
        """
        event = self.naming.table("event")
        with connection.begin():
            sequence = self._run(connection, "sequence", event=event).one()
            if not sequence.in_order:
                raise SchemaError(
                    f"{event}.id has to be GENERATED ALWAYS AS IDENTITY with cache 1, a positive increment and no "
                    "cycle: relays rely on ids that grow in the order in which they are given out"
                )
            if not sequence.readable:
                # Without it the sequence would seem to be unused, and all floors too high.
                raise DatabaseRefused(
                    f"permission denied: GRANT SELECT ON SEQUENCE {sequence.name} to the relay's role"
                )
            self._lower_floors(connection, outbox)
            self._run(connection, "make_lanes", outbox=outbox, target=target, last=LANES - 1)
            if take_over:
                self._run(connection, "take_over", outbox=outbox, target=target)
            owner = self._run(connection, "target", outbox=outbox).scalar_one()
        if owner != target:
            raise ConfigurationError(
                f"outbox {outbox!r} is drained to target {owner!r}, this relay has --target {target!r}: use an outbox "
                f"of its own (--outbox), or --take-over once no relay of the other target runs"
            )

    def claim(
        self, connection: sa.Connection, outbox: str, *, limit: int, lease: float, token: uuid.UUID, by: str
    ) -> dict[int, int]:
        """Lease up to `limit` free lanes that have sendable events, for `lease` seconds; returns their floors."""
        with connection.begin():
            rows = self._run(connection, "claim", outbox=outbox, limit=limit, lease=lease, token=token, by=by)
            return {row.lane: row.floor for row in rows}

    def read(
        self, connection: sa.Connection, outbox: str, *, lanes: Collection[int], token: uuid.UUID, each: int
    ) -> list[ReadyEvent]:
        """The first `each` sendable events of every lane that `token` still holds, in id order. Writes nothing."""
        with connection.begin():
            rows = self._run(connection, "read", outbox=outbox, lanes=list(lanes), token=token, each=each)
            return sorted((ReadyEvent._make(row) for row in rows), key=lambda event: event.id)

    def settle(
        self,
        connection: sa.Connection,
        outbox: str,
        settlement: Settlement,
        *,
        lanes: Mapping[int, int],
        floors: Mapping[int, int],
        token: uuid.UUID,
        lease: float | None,
        unblock: int,
        probe_after: float,
        by: str,
    ) -> dict[int, int]:
        """Record what became of a batch, durably and in one transaction; returns the lanes still held, with floors.

        `lanes` maps each lane to the floor that its read began from, `floors` to the new one: no fresh event at or
        below it is left or can still appear (0 or missing: as it was). The lanes are given back, or with `lease` kept
        for that many seconds more. In a lost lane only confirmed events are touched: they are gone from the outbox in
        any case, the rest is the new owner's. `unblock` is how many blocked events of a key come back when one that
        held them up leaves. Repeating it is harmless.
        """
        with connection.begin():
            owned = self._settle_lanes(connection, outbox, lanes, floors, token, lease)
            if settlement.confirmed:
                self._run(connection, "delete", **_identities(settlement.confirmed))
            self._settle_others(connection, outbox, settlement, owned, unblock)
            for destination, reason in settlement.pauses.items():
                self._run(
                    connection,
                    "pause",
                    outbox=outbox,
                    destination=destination,
                    reason=_clean(reason),
                    first=probe_after,
                    by=by,
                )
            if settlement.resumes:
                self._run(connection, "resume", outbox=outbox, destinations=sorted(settlement.resumes))
        return owned

    def _settle_lanes(
        self,
        connection: sa.Connection,
        outbox: str,
        lanes: Mapping[int, int],
        floors: Mapping[int, int],
        token: uuid.UUID,
        lease: float | None,
    ) -> dict[int, int]:
        rows = self._run(
            connection,
            "settle_lanes",
            outbox=outbox,
            lanes=list(lanes),
            seen=list(lanes.values()),
            floors=[floors.get(lane, 0) for lane in lanes],
            token=token,
            lease=lease or 0.0,
            release=lease is None,
        )
        return {row.lane: row.floor for row in rows}

    def _settle_others(
        self, connection: sa.Connection, outbox: str, settlement: Settlement, owned: Collection[int], unblock: int
    ) -> None:
        failed = [item for item in settlement.failed if item.event.lane in owned]
        if failed:
            self._run(
                connection,
                "fail",
                ids=[item.event.id for item in failed],
                delays=[item.delay for item in failed],
                errors=[_clean(item.error) for item in failed],
            )
        dead = [item for item in settlement.dead if item.event.lane in owned]
        if dead:
            self._bury(connection, dead)
        paused = [event.id for event in settlement.paused if event.lane in owned]
        if paused:
            self._run(connection, "park_paused", ids=paused)
        blocked = [event.id for event in settlement.blocked if event.lane in owned]
        if blocked:
            self._run(connection, "park_blocked", outbox=outbox, ids=blocked)
        left = [*settlement.confirmed, *(item.event for item in dead)]
        keys = {event.key for event in left if event.key is not None and event.was_aside}
        if keys:
            self._run(connection, "unblock", outbox=outbox, keys=sorted(keys), each=unblock)

    def _bury(self, connection: sa.Connection, dead: Sequence[Dead]) -> None:
        self._run(
            connection,
            "bury",
            **_identities([item.event for item in dead]),
            charges=[item.charge for item in dead],
            reasons=[item.reason for item in dead],
            errors=[_clean(item.error) for item in dead],
        )

    def renew(self, connection: sa.Connection, tokens: Iterable[uuid.UUID], lease: float) -> Counter[uuid.UUID]:
        """Prolong the leases of these tokens to `lease` seconds from now; returns how many lanes of each were.

        Fewer than the token was given: some are lost, or just being settled.
        """
        with connection.begin():
            return Counter(row.token for row in self._run(connection, "renew", tokens=list(tokens), lease=lease))

    def promote(self, connection: sa.Connection, outbox: str, limit: int) -> int:
        """Return up to `limit` scheduled and waiting events whose time has come; returns how many."""
        with connection.begin():
            return self._run(connection, "promote", outbox=outbox, limit=limit).rowcount

    def look(self, connection: sa.Connection, outbox: str, *, anyones: bool = False) -> tuple[bool, float | None]:
        """Whether a free lane (with `anyones`: any lane) has a sendable event, and in how many seconds one is due."""
        with connection.begin():
            row = self._run(connection, "look", outbox=outbox, anyones=anyones).one()
            return row.ready, row.due_in

    def last_id(self, connection: sa.Connection) -> int:
        """The highest id that was given out so far, committed or not."""
        with connection.begin():
            return self._last_id(connection)

    def _last_id(self, connection: sa.Connection) -> int:
        last_id: int = self._run(connection, "last_id", event=self.naming.table("event")).scalar_one()
        return last_id

    def writers(self, connection: sa.Connection) -> set[str]:
        """The transactions of others that may have inserted events which nobody can see yet."""
        with connection.begin():
            rows = self._run(connection, "writers", event=self.naming.table("event"))
            return {row.virtualtransaction for row in rows}

    def lower_floors(self, connection: sa.Connection, outbox: str) -> None:
        """Reset floors above what the id sequence has given out: it was set back."""
        with connection.begin():
            self._lower_floors(connection, outbox)

    def _lower_floors(self, connection: sa.Connection, outbox: str) -> None:
        self._run(connection, "lower_floors", outbox=outbox, last_id=self._last_id(connection))

    def mend_floors(self, connection: sa.Connection, outbox: str) -> int:
        """Reset floors that hide a fresh event; returns how many. It stays 0 unless someone writes to our tables."""
        with connection.begin():
            return self._run(connection, "mend_floors", outbox=outbox).rowcount

    def left(self, connection: sa.Connection, outboxes: Sequence[str]) -> Left:
        """Count what is in these outboxes. Walks over all of it: not for the hot path."""
        with connection.begin():
            return Left._make(self._run(connection, "left", outboxes=list(outboxes)).one())

    def pauses(self, connection: sa.Connection, outbox: str) -> Mapping[str, bool]:
        """The destinations that are paused, and whether the next probe is due."""
        with connection.begin():
            return {row.destination: row.due for row in self._run(connection, "pauses", outbox=outbox)}

    def claim_probe(
        self,
        connection: sa.Connection,
        outbox: str,
        destination: str,
        *,
        shortest: float,
        longest: float,
        jitter: float,
    ) -> bool:
        """Take it on to probe a destination whose probe is due; True for one caller. Sets the time of the next one.

        That is `jitter` times the age of the pause, bounded by `shortest` and `longest` seconds: it doubles each time.
        """
        with connection.begin():
            arguments = {"shortest": shortest, "longest": longest, "jitter": jitter}
            result = self._run(connection, "claim_probe", outbox=outbox, destination=destination, **arguments)
            return result.rowcount == 1

    def paused_topics(self, connection: sa.Connection, outbox: str) -> list[str]:
        """The topics of events that are parked for their destination's sake."""
        with connection.begin():
            return [row.topic for row in self._run(connection, "paused_topics", outbox=outbox)]

    def return_paused(self, connection: sa.Connection, outbox: str, topic: str, limit: int) -> int:
        """Return the first `limit` events of this topic that were parked for their destination's sake."""
        with connection.begin():
            return self._run(connection, "return_paused", outbox=outbox, topic=topic, limit=limit).rowcount

    def return_forgotten(self, connection: sa.Connection, outbox: str, limit: int) -> int:
        """Return blocked events of up to `limit` keys that nothing blocks any more; returns how many events.

        Only a settle on a lost lease leaves such events behind. Returning too much is harmless: a read parks again.
        """
        with connection.begin():
            keys = [row.key for row in self._run(connection, "forgotten_keys", outbox=outbox, limit=limit)]
            return self._run(connection, "unblock", outbox=outbox, keys=keys, each=limit).rowcount if keys else 0

    def _run(self, connection: sa.Connection, name: str, **parameters: Any) -> sa.CursorResult[Any]:
        return connection.execute(self._sql[name], parameters)


def _identities(events: Sequence[ReadyEvent]) -> dict[str, list[Any]]:
    return {"ids": [event.id for event in events], "idempotency_keys": [event.idempotency_key for event in events]}


def _clean(error: str) -> str:
    """What a text column takes in a database of any encoding: ASCII without NUL, bounded."""
    return error.replace("\0", "\\0").encode("ascii", "backslashreplace").decode()[:ERROR_LIMIT]
