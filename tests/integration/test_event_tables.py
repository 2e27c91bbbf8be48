"""The event class on other tables: a host's metadata and naming rules, schemas and prefixes, a schema per tenant."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox import OutboxEvent, make_event_class, migrations
from tests.support.catalog import Catalog, differences, dump

HOSTILE = {
    "ix": "host_ix_%(constraint_name)s_%(column_0_label)s",
    "uq": "host_uq_%(table_name)s_%(column_0_name)s",
    "ck": "host_ck_%(table_name)s_%(constraint_name)s",
    "fk": "host_fk_%(table_name)s_%(column_0_name)s",
    "pk": "host_pk_%(table_name)s",
}
"""Conventions that would also rename what has a name, as those with `constraint_name` do."""


@pytest.fixture
def empty(database_url: str) -> Iterator[sa.Engine]:
    """An engine on a database without tables."""
    engine = sa.create_engine(database_url)
    yield engine
    engine.dispose()


def migrate(connection: sa.Connection, *, schema: str | None = None, prefix: str = "outbox_") -> None:
    if schema:
        connection.execute(sa.schema.CreateSchema(schema, if_not_exists=True))
    operations = Operations(MigrationContext.configure(connection))
    migrations.upgrade(operations, to=migrations.SCHEMA_VERSION, schema=schema, prefix=prefix)


def migrated(connection: sa.Connection) -> Catalog:
    """What the migrations make in an empty database, which it leaves empty."""
    transaction = connection.begin_nested()
    migrate(connection)
    catalog = dump(connection)
    transaction.rollback()
    return catalog


def events(connection: sa.Connection, table: str) -> list[str]:
    return list(connection.scalars(sa.text(f"SELECT topic FROM {table} ORDER BY id")))


def test_a_hosts_naming_convention_leaves_our_names_alone(empty: sa.Engine) -> None:
    class Base(DeclarativeBase):
        metadata = sa.MetaData(naming_convention=HOSTILE)

    make_event_class(Base.metadata)
    with empty.connect() as connection:
        expected = migrated(connection)
        Base.metadata.create_all(connection)
        assert differences(dump(connection), expected) == []
    assert "host_pk" not in str(expected)


def test_the_convention_still_names_what_belongs_to_the_host(empty: sa.Engine) -> None:
    """Or the test above would prove nothing."""

    class Base(DeclarativeBase):
        metadata = sa.MetaData(naming_convention=HOSTILE)

    class Order(Base):
        __tablename__ = "orders"
        __table_args__ = (sa.CheckConstraint("id > 0", name="positive"),)
        id: Mapped[int] = mapped_column(primary_key=True)

    make_event_class(Base.metadata)
    with empty.connect() as connection:
        Base.metadata.create_all(connection)
        names = {name for table, name, *_ in dump(connection)["constraints"] if table == "orders"}
    assert {"host_pk_orders", "host_ck_orders_positive"} <= names


def test_two_prefixes_and_a_schema_in_one_process_and_one_database(empty: sa.Engine) -> None:
    default, other = OutboxEvent, make_event_class(prefix="other_")
    elsewhere = make_event_class(schema="elsewhere", prefix="third_")
    with empty.begin() as connection:
        migrate(connection)
        migrate(connection, prefix="other_")
        migrate(connection, schema="elsewhere", prefix="third_")
    with Session(empty) as session:
        made = [cls(topic=name, type="T") for cls, name in ((default, "a"), (other, "b"), (elsewhere, "c"))]
        session.add_all(made)
        session.commit()
        session.execute(sa.insert(other), [{"topic": "d", "type": "T", "payload": "x", "content_type": "text/plain"}])
        session.commit()
        for table in ("outbox_event", "other_event", "elsewhere.third_event"):
            session.execute(sa.text(f"DELETE FROM {table} WHERE topic <> 'd'"))
        session.commit()
        assert [event.topic for event in made] == ["a", "b", "c"]
        assert [event.id for event in made] == [1, 1, 1]
        assert session.execute(sa.text("SELECT topic, payload FROM other_event")).all() == [("d", b"x")]


def test_a_producer_with_a_schema_per_tenant(empty: sa.Engine) -> None:
    with empty.begin() as connection:
        for schema in ("tenant_a", "tenant_b"):
            migrate(connection, schema=schema)
    for schema, topic in (("tenant_a", "a"), ("tenant_b", "b")):
        tenant = empty.execution_options(schema_translate_map={None: schema})
        with Session(tenant) as session:
            session.add_all([event := OutboxEvent(topic=topic, type="T"), OutboxEvent(topic=topic, type="T")])
            session.commit()
            session.execute(sa.insert(OutboxEvent.__table__), [{"topic": topic, "type": "T", "payload": 1}])
            session.commit()
            assert (event.id, event.topic) == (1, topic)
    with empty.connect() as connection:
        assert events(connection, "tenant_a.outbox_event") == ["a"] * 3
        assert events(connection, "tenant_b.outbox_event") == ["b"] * 3


def test_create_all_and_drop_all_follow_the_translation(empty: sa.Engine) -> None:
    metadata = sa.MetaData()
    make_event_class(metadata)
    with empty.begin() as connection:
        connection.execute(sa.schema.CreateSchema("tenant"))
        metadata.create_all(connection)
        translated = connection.execution_options(schema_translate_map={None: "tenant"})
        metadata.create_all(translated)
        there = dump(connection, "tenant")
        assert [name for name, *_ in there["triggers"]] == ["outbox_wake_up"]
        assert [name for name, _ in there["functions"]] == ["outbox_event_wake_up"]
        metadata.drop_all(translated)
        assert not any(dump(connection, "tenant").values())
        assert dump(connection)["triggers"]


def test_the_schema_of_a_hosts_metadata_holds_the_whole_outbox(empty: sa.Engine) -> None:
    metadata = sa.MetaData(schema="app")
    event_class = make_event_class(metadata)
    with empty.begin() as connection:
        connection.execute(sa.schema.CreateSchema("app"))
        metadata.create_all(connection)
        made = dump(connection, "app")
        metadata.drop_all(connection)
        migrate(connection, schema="app")
        assert differences(made, dump(connection, "app")) == []
    with Session(empty) as session:
        session.add(event_class(topic="t", type="T"))
        session.commit()
        assert events(session.connection(), "app.outbox_event") == ["t"]
