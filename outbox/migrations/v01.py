"""Schema version 1. Frozen: once released this file never changes; what comes later is a step of its own."""

from outbox.naming import Naming

__all__ = ["downgrade", "upgrade", "wake_up_trigger"]


def upgrade(naming: Naming, *, wake_up: bool = True) -> list[str]:
    """The statements that make the tables; `wake_up=False` leaves the trigger out (see the how-to on migrations)."""
    statements = [*_event(naming), _lane(naming), _pause(naming), *_dead_letter(naming)]
    return statements + (wake_up_trigger(naming.table("event")) if wake_up else [])


def downgrade(naming: Naming) -> list[str]:
    """The statements that remove the tables and whatever events are in them."""
    tables = [f"DROP TABLE {naming.table(name)}" for name in ("dead_letter", "pause", "lane", "event")]
    return [*tables, f"DROP FUNCTION IF EXISTS {naming.table('event')}_wake_up()"]


def _event(naming: Naming) -> list[str]:
    table, name = naming.table("event"), f"{naming.prefix}event"
    return [
        f"""CREATE TABLE {table} (
    id bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) CONSTRAINT {name}_pkey PRIMARY KEY,
    idempotency_key text NOT NULL DEFAULT gen_random_uuid()::text,
    outbox text NOT NULL DEFAULT 'default',
    key text,
    topic text NOT NULL,
    type text NOT NULL,
    payload bytea NOT NULL,
    content_type text NOT NULL DEFAULT 'application/json',
    headers jsonb,
    attempts smallint NOT NULL DEFAULT 0,
    crashes smallint NOT NULL DEFAULT 0,
    resends smallint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lane smallint NOT NULL GENERATED ALWAYS AS
        ((CASE WHEN key IS NULL THEN hashint8extended(id, 0) ELSE hashtextextended(key, 0) END & 63)::smallint) STORED,
    available_at timestamptz,
    held text,
    last_error text,
    CONSTRAINT {name}_idempotency_key_check CHECK ((idempotency_key COLLATE "C") ~ '^[!-~]{{1,128}}$'),
    CONSTRAINT {name}_outbox_check CHECK (octet_length(outbox) BETWEEN 1 AND 63),
    CONSTRAINT {name}_key_check CHECK (octet_length(key) BETWEEN 1 AND 255),
    CONSTRAINT {name}_topic_check CHECK (octet_length(topic) BETWEEN 1 AND 255),
    CONSTRAINT {name}_type_check CHECK (octet_length(type) BETWEEN 1 AND 255),
    CONSTRAINT {name}_content_type_check CHECK (octet_length(content_type) BETWEEN 1 AND 255),
    CONSTRAINT {name}_headers_check CHECK (jsonb_typeof(headers) = 'object' AND NOT jsonb_path_exists(headers,
        'strict $.* ? (@.type() != "string" && @.type() != "boolean" && !(@.type() == "number" && @ == @.floor()
         && @ >= -9223372036854775808 && @ <= 9223372036854775807))')),
    CONSTRAINT {name}_header_names_check CHECK (jsonb_typeof(headers) <> 'object' OR NOT jsonb_path_exists(headers,
        'strict $.keyvalue() ? (@.key == ""
         || @.key like_regex "^(outbox-|idempotency-key)" flag "i" || @.key like_regex "^.{{255}}." flag "s")')),
    CONSTRAINT {name}_held_check CHECK (held IN ('failed', 'blocked', 'paused', 'exhausted')),
    CONSTRAINT {name}_parked_check CHECK (available_at < 'infinity' OR held IS NOT NULL),
    CONSTRAINT {name}_created_at_check
        CHECK (created_at >= '2000-01-01 00:00:00+00' AND created_at < '9999-01-01 00:00:00+00'),
    CONSTRAINT {name}_counters_check CHECK (attempts >= 0 AND crashes >= 0 AND resends >= 0)
)""",
        f"COMMENT ON TABLE {table} IS 'outbox-relay schema 1'",
        f"CREATE INDEX {name}_fresh ON {table} (outbox, lane, id) WHERE available_at IS NULL",
        f"CREATE INDEX {name}_returned ON {table} (outbox, lane, id) WHERE available_at = '-infinity'",
        f"""CREATE INDEX {name}_due ON {table} (outbox, available_at)
    WHERE available_at > '-infinity' AND available_at < 'infinity'""",
        f"CREATE INDEX {name}_held ON {table} (outbox, key, id) WHERE held IS NOT NULL AND key IS NOT NULL",
        f"CREATE INDEX {name}_blocked ON {table} (outbox, key, id) WHERE held = 'blocked'",
        f"""CREATE INDEX {name}_paused ON {table} (outbox, topic, id)
    WHERE held = 'paused' AND available_at = 'infinity'""",
    ]


def _lane(naming: Naming) -> str:
    return f"""CREATE TABLE {naming.table("lane")} (
    outbox text NOT NULL,
    lane smallint NOT NULL,
    target text NOT NULL,
    leased_until timestamptz NOT NULL DEFAULT '-infinity',
    lease_token uuid,
    leased_by text,
    floor bigint NOT NULL DEFAULT 0,
    careful_left integer NOT NULL DEFAULT 0,
    PRIMARY KEY (outbox, lane)
) WITH (fillfactor = 10)"""


def _pause(naming: Naming) -> str:
    return f"""CREATE TABLE {naming.table("pause")} (
    outbox text NOT NULL,
    destination text NOT NULL,
    reason text NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_probe timestamptz NOT NULL,
    by text NOT NULL,
    PRIMARY KEY (outbox, destination)
)"""


def _dead_letter(naming: Naming) -> list[str]:
    return [
        f"""CREATE TABLE {naming.table("dead_letter")} (
    id bigint NOT NULL,
    idempotency_key text NOT NULL,
    outbox text NOT NULL,
    key text,
    topic text NOT NULL,
    type text NOT NULL,
    payload bytea NOT NULL,
    content_type text NOT NULL,
    headers jsonb,
    attempts smallint NOT NULL DEFAULT 0,
    crashes smallint NOT NULL DEFAULT 0,
    resends smallint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL,
    reason text NOT NULL,
    error text,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id, idempotency_key)
)""",
        f"CREATE INDEX {naming.prefix}dead_letter_failed_at ON {naming.table('dead_letter')} (outbox, failed_at)",
    ]


def wake_up_trigger(table: str) -> list[str]:
    """Tell sleeping relays of new events, and nobody else: a NOTIFY in every transaction would serialise commits.

    A relay that sleeps holds, or queues for, the exclusive lock: then the shared try-lock fails. Its key is the
    table's oid below a constant ('outb' in ASCII), so that several outboxes in one database do not wake each other.
    """
    return [
        f"""CREATE FUNCTION {table}_wake_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_catalog.pg_try_advisory_xact_lock_shared((1869968482::bigint << 32) | TG_RELID::bigint) THEN
        PERFORM pg_catalog.pg_notify('outbox_' || TG_RELID, '');
    END IF;
    RETURN NULL;
END $$""",
        f"CREATE TRIGGER outbox_wake_up AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {table}_wake_up()",
        f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER outbox_wake_up",
    ]
