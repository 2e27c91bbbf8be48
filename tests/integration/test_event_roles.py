"""A producer needs INSERT and SELECT on the id, and can do nothing else."""

import secrets
import select
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import errors
from sqlalchemy.orm import Session

from outbox import OutboxEvent
from tests.support.inserts import INSERTS, TABLE, Insert

BASE: dict[str, Any] = {"topic": "orders", "type": "OrderPlaced", "payload": {"a": 1}}


@dataclass(frozen=True)
class Roles:
    """Two producers: one as the documentation says, one without SELECT on the id."""

    producer: str
    insert_only: str
    password: str


@pytest.fixture(scope="module")
def roles(kept_url: str) -> Iterator[Roles]:
    suffix = secrets.token_hex(6)
    roles = Roles(f"producer_{suffix}", f"insert_only_{suffix}", secrets.token_hex(12))
    with psycopg.connect(kept_url.replace("+psycopg", ""), autocommit=True) as admin:
        for role in (roles.producer, roles.insert_only):
            admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{roles.password}'")
            admin.execute(f"GRANT INSERT ON outbox_event TO {role}")
        admin.execute(f"GRANT SELECT (id) ON outbox_event TO {roles.producer}")
        yield roles
        for role in (roles.producer, roles.insert_only):
            admin.execute(f"DROP OWNED BY {role}")
            admin.execute(f"DROP ROLE {role}")


def engine_of(url: str, role: str, password: str) -> sa.Engine:
    return sa.create_engine(sa.make_url(url).set(username=role, password=password), poolclass=sa.NullPool)


@pytest.fixture
def producer(kept_engine: sa.Engine, kept_url: str, roles: Roles) -> sa.Engine:
    return engine_of(kept_url, roles.producer, roles.password)


@pytest.fixture
def insert_only(kept_engine: sa.Engine, kept_url: str, roles: Roles) -> sa.Engine:
    return engine_of(kept_url, roles.insert_only, roles.password)


def count(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(sa.text("SELECT count(*) FROM outbox_event")).scalar_one())


ways = pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS.keys())


@ways
def test_a_producer_adds_events_in_every_way(kept_engine: sa.Engine, producer: sa.Engine, insert: Insert) -> None:
    with Session(producer) as session:
        insert(session, [dict(BASE) for _ in range(3)])
        session.commit()
    assert count(kept_engine) == 3


def test_a_producer_reads_what_it_has_added_from_the_event_itself(producer: sa.Engine) -> None:
    with Session(producer) as session:
        session.add_all(events := [OutboxEvent(topic="orders", type="T", payload=number) for number in range(3)])
        session.commit()
        assert [event.payload for event in events] == [0, 1, 2]
        assert all(event.available_at is None and event.id > 0 for event in events)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT payload FROM outbox_event",
        "SELECT * FROM outbox_event",
        "DELETE FROM outbox_event",
        "UPDATE outbox_event SET topic = 'x'",
        "TRUNCATE outbox_event",
        "INSERT INTO outbox_event (topic, type, payload) VALUES ('t', 'T', '') RETURNING payload",
        "SELECT * FROM outbox_lane",
        "SELECT * FROM outbox_dead_letter",
        "SELECT * FROM outbox_pause",
        "INSERT INTO outbox_pause VALUES ('default', 'd', 'r', now(), now(), 'me')",
        "SELECT nextval('outbox_event_id_seq')",
        "ALTER TABLE outbox_event DISABLE TRIGGER outbox_wake_up",
        "DROP TABLE outbox_event",
    ],
)
def test_a_producer_can_do_nothing_else(producer: sa.Engine, statement: str) -> None:
    with producer.connect() as connection, pytest.raises(sa.exc.ProgrammingError) as caught:
        connection.exec_driver_sql(statement)
    assert isinstance(caught.value.orig, errors.InsufficientPrivilege)


def test_without_select_on_the_id_only_what_fetches_no_id_works(kept_engine: sa.Engine, insert_only: sa.Engine) -> None:
    """So SELECT (id) is needed, and nothing more than that."""
    with Session(insert_only) as session:
        session.execute(sa.insert(TABLE), [BASE, BASE])
        session.commit()
        session.add(OutboxEvent(**BASE))
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
            session.commit()
    assert count(kept_engine) == 2


def test_a_producer_wakes_a_sleeping_relay(kept_url: str, producer: sa.Engine) -> None:
    with psycopg.connect(kept_url.replace("+psycopg", ""), autocommit=True) as relay:
        oid = relay.execute("SELECT 'outbox_event'::regclass::oid::bigint").fetchone()[0]  # type: ignore[index]  # there is a row
        relay.execute(f"LISTEN outbox_{oid}")
        relay.execute("SELECT pg_advisory_lock((1869968482::bigint << 32) | %s)", [oid])
        with Session(producer) as session:
            session.add(OutboxEvent(**BASE))
            session.commit()
        assert select.select([relay.fileno()], [], [], 10)[0]
        assert [notify.channel for notify in relay.notifies(timeout=10, stop_after=1)] == [f"outbox_{oid}"]


# Row-level security


@pytest.fixture
def secured(kept_url: str, roles: Roles, kept_engine: sa.Engine) -> Iterator[psycopg.Connection]:
    """The event table under row-level security, without a policy yet."""
    with psycopg.connect(kept_url.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute("ALTER TABLE outbox_event ENABLE ROW LEVEL SECURITY")
        yield admin
        admin.execute("DROP POLICY IF EXISTS may_add ON outbox_event")
        admin.execute("DROP POLICY IF EXISTS may_see_the_id ON outbox_event")
        admin.execute("ALTER TABLE outbox_event DISABLE ROW LEVEL SECURITY")


def allow(admin: psycopg.Connection, role: str, condition: str) -> None:
    """The two policies that adding events takes: returning the id of a new row is reading it."""
    admin.execute(f"CREATE POLICY may_add ON outbox_event FOR INSERT TO {role} WITH CHECK ({condition})")
    admin.execute(f"CREATE POLICY may_see_the_id ON outbox_event FOR SELECT TO {role} USING ({condition})")


@ways
def test_a_producer_adds_events_under_row_level_security(
    kept_engine: sa.Engine, producer: sa.Engine, secured: psycopg.Connection, roles: Roles, insert: Insert
) -> None:
    allow(secured, roles.producer, "topic = 'orders'")
    with Session(producer) as session:
        insert(session, [dict(BASE) for _ in range(2)])
        session.commit()
        with pytest.raises(sa.exc.ProgrammingError, match="row-level security"):
            insert(session, [{**BASE, "topic": "payroll"}])
    assert count(kept_engine) == 2


def test_without_a_policy_nothing_can_be_added(producer: sa.Engine, secured: psycopg.Connection) -> None:
    with Session(producer) as session:
        session.add(OutboxEvent(**BASE))
        with pytest.raises(sa.exc.ProgrammingError, match="row-level security"):
            session.commit()


def test_under_row_level_security_the_owner_still_sees_everything(
    kept_engine: sa.Engine, producer: sa.Engine, secured: psycopg.Connection, roles: Roles
) -> None:
    """A relay that connects as the owner of the tables, or with BYPASSRLS, is not held back."""
    allow(secured, roles.producer, "true")
    with Session(producer) as session:
        session.add(OutboxEvent(**BASE))
        session.commit()
    assert count(kept_engine) == 1
