"""The frozen steps of the migrations and the metadata say the same, as PostgreSQL reads them."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

from outbox import OutboxEvent, SchemaError, migrations
from outbox.naming import Naming
from outbox.tables import build_tables
from tests.support.catalog import QUERIES, Catalog, differences, dump

NAMINGS = [Naming(), Naming("app"), Naming(None, "ob_"), Naming("app", "x_")]

EMPTY: Catalog = {name: [] for name in QUERIES}


@pytest.fixture
def connection(database_url: str) -> Iterator[sa.Connection]:
    """On an empty database, in a transaction, with a schema `app`."""
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE SCHEMA app"))
        yield connection
    engine.dispose()


def operations(connection: sa.Connection) -> Operations:
    return Operations(MigrationContext.configure(connection))


def upgrade(connection: sa.Connection, naming: Naming, *, wake_up: bool = True) -> None:
    to = migrations.SCHEMA_VERSION
    migrations.upgrade(operations(connection), to, schema=naming.schema, prefix=naming.prefix, wake_up=wake_up)


def downgrade(connection: sa.Connection, naming: Naming) -> None:
    migrations.downgrade(operations(connection), 0, schema=naming.schema, prefix=naming.prefix)


def dump_of(connection: sa.Connection, naming: Naming) -> Catalog:
    return dump(connection, naming.schema or "public")


@pytest.mark.parametrize("naming", NAMINGS, ids=str)
def test_metadata_and_migrations_agree(connection: sa.Connection, naming: Naming) -> None:
    metadata = sa.MetaData()
    build_tables(metadata, naming)
    metadata.create_all(connection)
    created = dump_of(connection, naming)
    metadata.drop_all(connection)
    assert dump_of(connection, naming) == EMPTY, "drop_all has to undo create_all"
    upgrade(connection, naming)
    migrated = dump_of(connection, naming)
    assert "\n".join(differences(created, migrated)) == ""
    names = {name for (name, *_) in migrated["tables"]}
    assert {f"{naming.prefix}{table}" for table in migrations.TABLES} <= names
    assert migrated["triggers"]


@pytest.mark.parametrize("naming", NAMINGS, ids=str)
def test_downgrade_leaves_nothing_behind(connection: sa.Connection, naming: Naming) -> None:
    upgrade(connection, naming)
    assert migrations.current_version(connection, naming) == migrations.SCHEMA_VERSION
    downgrade(connection, naming)
    assert migrations.current_version(connection, naming) == 0
    assert dump(connection, "public") == EMPTY
    assert dump(connection, "app") == EMPTY
    downgrade(connection, naming)  # nothing to do is no error


def test_the_other_schema_and_prefix_stay_untouched(connection: sa.Connection) -> None:
    for naming in NAMINGS:
        upgrade(connection, naming)
    kept = dump(connection, "app")
    downgrade(connection, Naming())
    downgrade(connection, Naming(None, "ob_"))
    assert dump(connection, "public") == EMPTY
    assert dump(connection, "app") == kept


def test_a_second_upgrade_changes_nothing(connection: sa.Connection) -> None:
    upgrade(connection, Naming())
    connection.execute(sa.insert(OutboxEvent), [{"topic": "t", "type": "T", "payload": 1}])
    before = dump(connection), oids(connection)
    upgrade(connection, Naming())
    assert (dump(connection), oids(connection)) == before
    assert connection.scalar(sa.select(sa.func.count()).select_from(OutboxEvent)) == 1


def oids(connection: sa.Connection) -> list[int]:
    query = "SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY oid"
    return list(connection.scalars(sa.text(query)))


def test_without_the_wake_up_trigger_all_else_is_the_same(connection: sa.Connection) -> None:
    upgrade(connection, Naming())
    complete = dump(connection)
    downgrade(connection, Naming())
    upgrade(connection, Naming(), wake_up=False)
    quiet = dump(connection)
    assert quiet == complete | {"triggers": [], "functions": []}
    downgrade(connection, Naming())
    assert dump(connection) == EMPTY


def test_check_version(connection: sa.Connection) -> None:
    naming = Naming("app", "x_")
    with pytest.raises(SchemaError, match=r"missing.*run `outbox-relay migrate --schema app --prefix x_`"):
        migrations.check_version(connection, naming)
    upgrade(connection, naming)
    migrations.check_version(connection, naming)
    connection.execute(sa.text(f"COMMENT ON TABLE app.x_event IS '{migrations.version_comment(99)}'"))
    migrations.check_version(connection, naming)  # a newer one will do


def test_unknown_versions_are_refused(connection: sa.Connection) -> None:
    with pytest.raises(SchemaError, match="99 is unknown"):
        migrations.upgrade(operations(connection), 99)
    upgrade(connection, Naming())
    connection.execute(sa.text(f"COMMENT ON TABLE outbox_event IS '{migrations.version_comment(99)}'"))
    with pytest.raises(SchemaError, match="99 is unknown"):
        downgrade(connection, Naming())
    upgrade(connection, Naming())
    assert migrations.current_version(connection) == 99


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE outbox_event ALTER topic TYPE varchar",
        "ALTER TABLE outbox_event ALTER key SET NOT NULL",
        "ALTER TABLE outbox_event ALTER outbox SET DEFAULT 'other'",
        "ALTER TABLE outbox_event ALTER id SET GENERATED BY DEFAULT",
        "ALTER TABLE outbox_event ALTER id SET CACHE 10",
        "ALTER TABLE outbox_event ALTER lane DROP EXPRESSION",
        "ALTER TABLE outbox_event DROP CONSTRAINT outbox_event_parked_check",
        "ALTER TABLE outbox_event RENAME CONSTRAINT outbox_event_pkey TO other",
        "ALTER TABLE outbox_event DISABLE TRIGGER outbox_wake_up",
        "ALTER TABLE outbox_event ENABLE TRIGGER outbox_wake_up",
        "ALTER TABLE outbox_lane RESET (fillfactor)",
        "ALTER TABLE outbox_pause SET UNLOGGED",
        "ALTER INDEX outbox_event_due SET (fillfactor = 50)",
        "DROP INDEX outbox_event_held; CREATE INDEX outbox_event_held ON outbox_event (outbox, key, id) WHERE key = ''",
        "COMMENT ON TABLE outbox_event IS 'outbox-relay schema 2'",
        "ALTER FUNCTION outbox_event_wake_up SET search_path = ''",
        "CREATE OR REPLACE FUNCTION outbox_event_wake_up() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'",
        "CREATE TYPE mood AS ENUM ('fine')",
    ],
)
def test_the_comparison_sees_every_kind_of_difference(connection: sa.Connection, change: str) -> None:
    upgrade(connection, Naming())
    before = dump(connection)
    connection.exec_driver_sql(change)
    assert dump(connection) != before
