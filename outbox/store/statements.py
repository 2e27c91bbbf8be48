"""Every SQL statement of the relay, named. `{event}`, `{lane}`, `{pause}` and `{dead_letter}` are the tables' names.

Hot statements never look at rows that can't be sent: `available_at IS NULL` (fresh) and `available_at = '-infinity'`
(returned) each have a partial index on (outbox, lane, id). `statement_timestamp()` and not `clock_timestamp()` where
an index has to be used: the planner can't search an index for a volatile value.
"""

import sqlalchemy as sa

from outbox.naming import Naming

__all__ = ["SQL", "statement"]

EVENT_COLUMNS = (
    "id, lane, idempotency_key, key, topic, type, payload, content_type, headers, attempts, resends, created_at, held"
)
MOVED_COLUMNS = (
    "outbox, idempotency_key, key, topic, type, payload, content_type, headers, crashes, resends, created_at"
)

SQL = {
    # Lanes that nobody holds and that have something to send, the longest untouched first. Losing a lease in a
    # database crash is harmless, so the commit need not wait for the disk. A relay that vanishes or is frozen in the
    # middle of a transaction must not keep the lanes' rows locked until TCP gives up.
    "claim": """
        WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true),
                                           set_config('idle_in_transaction_session_timeout', '15s', true)),
        picked AS (
            SELECT l.lane
            FROM quick CROSS JOIN {lane} l
            WHERE l.outbox = :outbox AND l.leased_until <= clock_timestamp()
              AND (EXISTS (SELECT FROM {event} e WHERE e.outbox = l.outbox AND e.lane = l.lane
                           AND e.available_at IS NULL AND e.id > l.floor)
                OR EXISTS (SELECT FROM {event} e WHERE e.outbox = l.outbox AND e.lane = l.lane
                           AND e.available_at = '-infinity'))
            ORDER BY l.leased_until LIMIT :limit FOR UPDATE OF l SKIP LOCKED)
        UPDATE {lane} l
        SET leased_until = clock_timestamp() + make_interval(secs => :lease), lease_token = :token, leased_by = :by
        FROM picked p WHERE l.outbox = :outbox AND l.lane = p.lane
        RETURNING l.lane, l.floor""",
    # The first sendable events of each lane that the token still holds, in id order within the lane. `blocked`: an
    # earlier event of the key is held, so this one must not go.
    "read": """
        SELECT e.*, e.key IS NOT NULL AND EXISTS (
            SELECT FROM {event} w WHERE w.outbox = :outbox AND w.key = e.key AND w.key IS NOT NULL
            AND w.id < e.id AND w.held IS NOT NULL) AS blocked
        FROM {lane} l CROSS JOIN LATERAL (
            (SELECT {event_columns}, false AS returned FROM {event} f
             WHERE f.outbox = l.outbox AND f.lane = l.lane AND f.available_at IS NULL AND f.id > l.floor
             ORDER BY f.id LIMIT :each)
            UNION ALL
            (SELECT {event_columns}, true AS returned FROM {event} r
             WHERE r.outbox = l.outbox AND r.lane = l.lane AND r.available_at = '-infinity'
             ORDER BY r.id LIMIT :each)
            ORDER BY id LIMIT :each) e
        WHERE l.outbox = :outbox AND l.lane = ANY(:lanes) AND l.lease_token = :token""",
    # First in every settling transaction: it locks the lanes that are still ours. A lease of 0 gives them back; to
    # clock_timestamp() and not to -infinity, so that lanes take turns. A floor that was lowered after our read (`seen`)
    # was too high: what we read does not prove a new one.
    "settle_lanes": """
        WITH bounded AS MATERIALIZED (SELECT set_config('idle_in_transaction_session_timeout', '15s', true))
        UPDATE {lane} l
        SET leased_until = clock_timestamp() + make_interval(secs => :lease),
            lease_token = CASE WHEN :release THEN NULL ELSE l.lease_token END,
            floor = CASE WHEN l.floor < u.seen THEN l.floor ELSE greatest(l.floor, u.floor) END
        FROM bounded CROSS JOIN
             unnest(CAST(:lanes AS smallint[]), CAST(:seen AS bigint[]), CAST(:floors AS bigint[]))
             u (lane, seen, floor)
        WHERE l.outbox = :outbox AND l.lane = u.lane AND l.lease_token = :token
        RETURNING l.lane, l.floor""",
    # Not by the id alone: a database that crashes may take back commits and give their ids out again.
    "delete": """
        DELETE FROM {event} e USING unnest(CAST(:ids AS bigint[]), CAST(:idempotency_keys AS text[])) u (id, key)
        WHERE e.id = u.id AND e.idempotency_key = u.key""",
    "fail": """
        UPDATE {event} e
        SET available_at = clock_timestamp() + make_interval(secs => u.delay), held = 'failed',
            attempts = e.attempts + 1, last_error = u.error
        FROM unnest(CAST(:ids AS bigint[]), CAST(:delays AS float8[]), CAST(:errors AS text[])) u (id, delay, error)
        WHERE e.id = u.id""",
    "park_paused": """
        UPDATE {event} SET available_at = 'infinity', held = 'paused' WHERE id = ANY(:ids)""",
    # Looks at the reason again: what it waited for may have left in this very transaction.
    "park_blocked": """
        UPDATE {event} e SET available_at = 'infinity', held = 'blocked'
        WHERE e.id = ANY(:ids) AND EXISTS (
            SELECT FROM {event} w WHERE w.outbox = :outbox AND w.key = e.key AND w.key IS NOT NULL
            AND w.id < e.id AND w.held IS NOT NULL)""",
    "unblock": """
        UPDATE {event} SET available_at = '-infinity', held = NULL
        WHERE id IN (
            SELECT b.id FROM unnest(CAST(:keys AS text[])) k (key) CROSS JOIN LATERAL (
                SELECT id FROM {event} e WHERE e.outbox = :outbox AND e.key = k.key AND e.held = 'blocked'
                ORDER BY id LIMIT :each FOR UPDATE SKIP LOCKED) b)""",
    "bury": """
        WITH gone AS (
            DELETE FROM {event} e USING unnest(CAST(:ids AS bigint[]), CAST(:idempotency_keys AS text[])) k (id, key)
            WHERE e.id = k.id AND e.idempotency_key = k.key RETURNING e.*)
        INSERT INTO {dead_letter} (id, {moved_columns}, attempts, reason, error)
        SELECT id, {moved_columns}, attempts + u.charge, u.reason, u.error
        FROM unnest(CAST(:ids AS bigint[]), CAST(:charges AS smallint[]), CAST(:reasons AS text[]),
                    CAST(:errors AS text[])) u (id, charge, reason, error) JOIN gone USING (id)""",
    # SKIP LOCKED, so that one lane that a claim or a settle has locked does not hold up the others.
    "renew": """
        WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true),
                                           set_config('idle_in_transaction_session_timeout', '15s', true)),
        held AS (
            SELECT l.outbox, l.lane FROM quick CROSS JOIN {lane} l
            WHERE l.lease_token = ANY(:tokens) FOR UPDATE OF l SKIP LOCKED)
        UPDATE {lane} l SET leased_until = clock_timestamp() + make_interval(secs => :lease)
        FROM held h WHERE l.outbox = h.outbox AND l.lane = h.lane
        RETURNING l.lease_token AS token""",
    "promote": """
        UPDATE {event} SET available_at = '-infinity'
        WHERE id IN (
            SELECT id FROM {event} WHERE outbox = :outbox AND available_at > '-infinity' AND available_at < 'infinity'
            AND available_at <= statement_timestamp() ORDER BY available_at LIMIT :limit FOR UPDATE SKIP LOCKED)""",
    # The last look before sleeping: is anything sendable, whoever holds its lane, and when is the next one due?
    "look": """
        SELECT EXISTS (
            SELECT FROM {lane} l WHERE l.outbox = :outbox AND (:anyones OR l.leased_until <= clock_timestamp())
            AND (EXISTS (SELECT FROM {event} e WHERE e.outbox = l.outbox AND e.lane = l.lane
                         AND e.available_at IS NULL AND e.id > l.floor)
              OR EXISTS (SELECT FROM {event} e WHERE e.outbox = l.outbox AND e.lane = l.lane
                         AND e.available_at = '-infinity'))) AS ready,
        (SELECT CAST(extract(epoch FROM min(available_at) - clock_timestamp()) AS float8) FROM {event}
         WHERE outbox = :outbox AND available_at > '-infinity' AND available_at < 'infinity') AS due_in""",
    # What the id sequence has given out so far; 0 before the first.
    "last_id": "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence(:event, 'id')::regclass), 0)",
    # The transactions that may have drawn an id and not committed yet, prepared ones included: an insert takes this
    # lock before it draws its id, and the lock goes after the commit is visible.
    "writers": """
        SELECT DISTINCT virtualtransaction FROM pg_locks
        WHERE locktype = 'relation' AND relation = to_regclass(:event) AND mode = 'RowExclusiveLock'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND pid IS DISTINCT FROM pg_backend_pid()""",
    "lower_floors": "UPDATE {lane} SET floor = 0 WHERE outbox = :outbox AND floor > :last_id",
    # What only somebody's own SQL on our tables can cause: a fresh event that no claim would ever look at.
    "mend_floors": """
        UPDATE {lane} l SET floor = 0 WHERE l.outbox = :outbox AND EXISTS (
            SELECT FROM {event} e WHERE e.outbox = l.outbox AND e.lane = l.lane AND e.available_at IS NULL
            AND e.id <= l.floor)""",
    # Floors rest on ids that grow in the order in which they are drawn.
    "sequence": """
        SELECT s.seqcache = 1 AND s.seqincrement > 0 AND NOT s.seqcycle AND a.attidentity = 'a' AS in_order,
               has_sequence_privilege(s.seqrelid, 'USAGE, SELECT') AS readable, s.seqrelid::regclass::text AS name
        FROM pg_attribute a LEFT JOIN pg_sequence s ON s.seqrelid = pg_get_serial_sequence(:event, 'id')::regclass
        WHERE a.attrelid = to_regclass(:event) AND a.attname = 'id'""",
    "make_lanes": """
        INSERT INTO {lane} (outbox, lane, target) SELECT :outbox, lane, :target FROM generate_series(0, :last) lane
        ON CONFLICT DO NOTHING""",
    "target": "SELECT target FROM {lane} WHERE outbox = :outbox LIMIT 1",
    "take_over": "UPDATE {lane} SET target = :target WHERE outbox = :outbox",
    "left": """
        SELECT count(*) FILTER (WHERE available_at IS NULL OR available_at = '-infinity') AS ready,
               count(*) FILTER (WHERE available_at > '-infinity' AND held IS NULL) AS scheduled,
               count(*) FILTER (WHERE available_at > '-infinity' AND available_at < 'infinity' AND held IS NOT NULL)
                   AS waiting,
               count(*) FILTER (WHERE available_at = 'infinity') AS parked
        FROM {event} WHERE outbox = ANY(:outboxes)""",
    # A destination that keeps failing is probed at growing intervals: its next one is as far away as the pause is old.
    "pause": """
        INSERT INTO {pause} AS p (outbox, destination, reason, next_probe, by)
        VALUES (:outbox, :destination, :reason, clock_timestamp() + make_interval(secs => :first), :by)
        ON CONFLICT (outbox, destination) DO UPDATE SET reason = excluded.reason
        WHERE p.next_probe < 'infinity'""",
    # What an operator has paused (no probe ever) only an operator resumes.
    "resume": """
        DELETE FROM {pause} WHERE outbox = :outbox AND destination = ANY(:destinations) AND next_probe < 'infinity'""",
    "pauses": "SELECT destination, next_probe <= clock_timestamp() AS due FROM {pause} WHERE outbox = :outbox",
    "claim_probe": """
        UPDATE {pause}
        SET next_probe = clock_timestamp() + :jitter * least(make_interval(secs => :longest),
            greatest(make_interval(secs => :shortest), clock_timestamp() - since))
        WHERE outbox = :outbox AND destination = :destination AND next_probe <= clock_timestamp()""",
    # The distinct topics of rows that wait for their destination, one index probe each.
    "paused_topics": """
        WITH RECURSIVE topics AS (
            (SELECT topic FROM {event} WHERE outbox = :outbox AND held = 'paused' AND available_at = 'infinity'
             ORDER BY topic LIMIT 1)
            UNION ALL
            SELECT (SELECT e.topic FROM {event} e WHERE e.outbox = :outbox AND e.held = 'paused'
                    AND e.available_at = 'infinity' AND e.topic > t.topic ORDER BY e.topic LIMIT 1)
            FROM topics t WHERE t.topic IS NOT NULL)
        SELECT topic FROM topics WHERE topic IS NOT NULL""",
    # Still held until they leave: what comes after them must not overtake.
    "return_paused": """
        UPDATE {event} SET available_at = '-infinity'
        WHERE id IN (
            SELECT id FROM {event} WHERE outbox = :outbox AND topic = :topic AND held = 'paused'
            AND available_at = 'infinity' ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED)""",
    # Keys whose first blocked event has no held event before it any more: nothing would ever bring them back.
    "forgotten_keys": """
        WITH RECURSIVE heads AS (
            (SELECT key, id FROM {event} WHERE outbox = :outbox AND held = 'blocked' ORDER BY key, id LIMIT 1)
            UNION ALL
            SELECT n.key, n.id FROM heads h CROSS JOIN LATERAL (
                SELECT e.key, e.id FROM {event} e WHERE e.outbox = :outbox AND e.held = 'blocked' AND e.key > h.key
                ORDER BY e.key, e.id LIMIT 1) n)
        SELECT key FROM heads h WHERE NOT EXISTS (
            SELECT FROM {event} w WHERE w.outbox = :outbox AND w.key = h.key AND w.key IS NOT NULL
            AND w.id < h.id AND w.held IS NOT NULL)
        LIMIT :limit""",
}


def statement(name: str, naming: Naming) -> sa.TextClause:
    """The statement of this name for the tables of this naming."""
    text = SQL[name].format(
        event=naming.table("event"),
        lane=naming.table("lane"),
        pause=naming.table("pause"),
        dead_letter=naming.table("dead_letter"),
        event_columns=EVENT_COLUMNS,
        moved_columns=MOVED_COLUMNS,
    )
    return sa.text(text)
