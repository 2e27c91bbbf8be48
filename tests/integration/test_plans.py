"""The hot statements use their indexes and look at a bounded number of rows, whatever else is in the table."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from outbox.naming import Naming
from outbox.store import Store
from outbox.store.statements import statement
from tests.support import postgres

ROWS = 60_000
BATCH = 500

FILL = """
    INSERT INTO outbox_event (topic, type, payload, key, available_at, held, attempts)
    SELECT 't' || i % 5, 'T', '', CASE WHEN i % 2 = 0 THEN 'k' || i % 1000 END,
           CASE WHEN :aside THEN CASE i % 4 WHEN 0 THEN 'infinity' WHEN 1 THEN 'infinity'
                                            WHEN 2 THEN now() + interval '1 hour' ELSE now() + interval '2 hours' END
           END::timestamptz,
           CASE WHEN :aside THEN CASE i % 4 WHEN 0 THEN 'blocked' WHEN 1 THEN 'paused' WHEN 2 THEN 'failed' END END,
           CASE WHEN :aside AND i % 4 = 2 THEN 1 ELSE 0 END
    FROM generate_series(1, :rows) i"""


@pytest.fixture(scope="module", params=["fresh", "aside", "dead rows"])
def table(
    request: pytest.FixtureRequest, postgres_server: postgres.PostgresServer, outbox_template: str
) -> Iterator[sa.Connection]:
    """A table of which most rows are fresh, put aside, or deleted under a snapshot that keeps them from vacuum."""
    with postgres.temporary_database(postgres_server, outbox_template) as name:
        engine = sa.create_engine(postgres.sqlalchemy_url(postgres_server.url(name)), poolclass=sa.NullPool)
        with engine.connect() as holding, engine.connect() as connection:
            Store().open_outbox(connection, "default", "memory")
            with connection.begin():
                connection.execute(sa.text(FILL), {"rows": ROWS, "aside": request.param == "aside"})
            if request.param == "dead rows":
                holding.execution_options(isolation_level="REPEATABLE READ").execute(sa.text("SELECT FROM pg_class"))
                with connection.begin():
                    connection.execute(sa.text("DELETE FROM outbox_event"))
                    connection.execute(sa.text("UPDATE outbox_lane SET floor = :rows"), {"rows": ROWS})
            with connection.begin():
                connection.execute(sa.text(FILL), {"rows": BATCH, "aside": False})
                connection.execute(sa.text("ANALYZE outbox_event"))
                connection.execute(sa.text("ANALYZE outbox_lane"))
            yield connection


TOKEN = uuid.uuid4()

STATEMENTS: dict[str, tuple[dict[str, Any], int]] = {
    "claim": ({"outbox": "default", "limit": 8, "lease": 30.0, "token": TOKEN, "by": "x"}, 64 + 64 + 8),
    "read": ({"outbox": "default", "lanes": list(range(8)), "token": TOKEN, "each": 62}, 2 * 8 * 62),
    "look": ({"outbox": "default", "anyones": False}, 64 + 64),
    "promote": ({"outbox": "default", "limit": 100}, 100),
    "fail": ({"ids": list(range(1, 11)), "delays": [1.0] * 10, "errors": ["x"] * 10}, 10),
    "park_blocked": ({"outbox": "default", "ids": list(range(1, 11))}, 10),
    "unblock": ({"outbox": "default", "keys": ["k2", "k4"], "each": 100}, 200),
    "paused_topics": ({"outbox": "default"}, 10),
    "return_paused": ({"outbox": "default", "topic": "t1", "limit": 100}, 100),
    "delete": ({"ids": list(range(1, 101)), "idempotency_keys": ["x"] * 100}, 100),
    "settle_lanes": (
        {
            "outbox": "default",
            "lanes": [1, 2],
            "seen": [0, 0],
            "floors": [0, 0],
            "token": TOKEN,
            "lease": 0.0,
            "release": True,
        },
        64,
    ),
}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_hot_statement(table: sa.Connection, name: str) -> None:
    parameters, rows = STATEMENTS[name]
    with table.begin() as transaction:
        if name in ("read", "settle_lanes"):
            table.execute(sa.text("UPDATE outbox_lane SET lease_token = :token"), {"token": TOKEN})
        plan = explain(table, name, parameters)
        transaction.rollback()
    nodes = list(walk(plan))
    scans = [node for node in nodes if node.get("Relation Name") == "outbox_event"]
    assert not [node for node in scans if node["Node Type"] == "Seq Scan"], f"a sequential scan:\n{plan}"
    looked_at = sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in scans
    )
    assert looked_at <= 4 * rows, f"looked at {looked_at} rows, at most {4 * rows} were expected"
    # Dead rows are in no row count, but the pages of the index that hold them are in this one.
    touched = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert touched <= 20 * rows + 200, f"touched {touched} pages for {rows} rows"


@pytest.mark.parametrize("table", ["dead rows"], indirect=True)
def test_without_the_floor_dead_rows_would_be_seen(table: sa.Connection) -> None:
    """The other tests could not fail for dead rows if this one did not."""
    parameters, rows = STATEMENTS["claim"]
    with table.begin() as transaction:
        table.execute(sa.text("UPDATE outbox_lane SET floor = 0"))
        plan = explain(table, "claim", parameters)
        transaction.rollback()
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] > 20 * rows + 200


def explain(connection: sa.Connection, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    explained = sa.text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement(name, Naming()).text)
    plan: dict[str, Any] = connection.execute(explained, parameters).scalar_one()[0]["Plan"]
    return plan


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from walk(child)
