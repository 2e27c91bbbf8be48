"""An application with an Alembic history of its own, in which the outbox is one revision."""

import io
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox import OutboxEvent, make_event_class, migrations
from outbox.naming import Naming
from tests.support.catalog import Catalog, differences, dump

ENV = """
import sqlalchemy as sa
from alembic import context

from outbox import migrations

attributes = context.config.attributes
options = {"target_metadata": attributes["metadata"], "compare_type": True, "compare_server_default": True}
if attributes["include_object"]:
    options["include_object"] = attributes["include_object"]
if context.is_offline_mode():
    context.configure(dialect_name="postgresql", literal_binds=True, **options)
    with context.begin_transaction():
        context.run_migrations()
else:
    with sa.create_engine(attributes["url"], poolclass=sa.NullPool).begin() as connection:
        context.configure(connection=connection, include_schemas=attributes["include_schemas"], **options)
        with context.begin_transaction():
            context.run_migrations()
"""

ORDERS = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None

def upgrade():
    op.create_table("orders", sa.Column("id", sa.Integer, primary_key=True), sa.Column("item", sa.Text, nullable=False))

def downgrade():
    op.drop_table("orders")
"""

OUTBOX = """
from alembic import op

from outbox import migrations

revision, down_revision = "0002", "0001"

def upgrade():
    migrations.upgrade(op, to=1{options})

def downgrade():
    migrations.downgrade(op, to=0{options})
"""


def host_models() -> type[DeclarativeBase]:
    """The application's own models, on a base of its own."""

    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)
        item: Mapped[str] = mapped_column(sa.Text)

    return Base


class Host:
    """Its migrations, in a directory."""

    def __init__(self, directory: Path, url: str, *, options: str = "") -> None:
        (directory / "versions").mkdir(parents=True)
        (directory / "env.py").write_text(ENV)
        (directory / "versions" / "0001_orders.py").write_text(ORDERS)
        (directory / "versions" / "0002_outbox.py").write_text(OUTBOX.format(options=options))
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)
        self.output = io.StringIO()
        self.config = Config(stdout=io.StringIO(), output_buffer=self.output)
        self.config.set_main_option("script_location", str(directory).replace("%", "%%"))
        self.configure(url=url, metadata=host_models().metadata, include_object=migrations.include_object)
        self.configure(include_schemas=False)

    def configure(self, **attributes: object) -> None:
        self.config.attributes.update(attributes)

    def catalog(self, schema: str = "public") -> Catalog:
        with self.engine.connect() as connection:
            return dump(connection, schema)


@pytest.fixture
def host(tmp_path: Path, database_url: str) -> Host:
    return Host(tmp_path / "host application", database_url)


def test_upgrade_and_downgrade(host: Host) -> None:
    command.upgrade(host.config, "0001")
    before = host.catalog()
    command.upgrade(host.config, "head")
    with Session(host.engine) as session:
        session.add(OutboxEvent(topic="orders", type="OrderPlaced"))
        session.commit()
    with host.engine.connect() as connection:
        migrations.check_version(connection)
    command.downgrade(host.config, "0001")
    assert "\n".join(differences(before, host.catalog())) == ""
    command.upgrade(host.config, "head")
    command.downgrade(host.config, "base")
    assert {name for (name, *_) in host.catalog()["tables"]} == {"alembic_version"}


def test_the_tables_are_those_of_the_package(host: Host, outbox_url: str) -> None:
    command.upgrade(host.config, "head")
    with sa.create_engine(outbox_url, poolclass=sa.NullPool).connect() as connection:
        expected = dump(connection)
    found = differences(expected, host.catalog())
    assert [line for line in found if "orders" not in line and "alembic_version" not in line] == []


def test_offline_sql_makes_the_same(host: Host, database_url: str) -> None:
    command.upgrade(host.config, "head", sql=True)
    run(database_url, host.output.getvalue())
    offline = host.catalog()
    command.downgrade(host.config, "base")
    command.upgrade(host.config, "head")
    assert "\n".join(differences(offline, host.catalog())) == ""

    host.output.truncate(0)
    host.output.seek(0)
    command.downgrade(host.config, "head:base", sql=True)
    run(database_url, host.output.getvalue())
    assert {name for (name, *_) in host.catalog()["tables"]} <= {"alembic_version"}


def run(url: str, script: str) -> None:
    with psycopg.connect(
        sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    ) as connection:
        connection.execute(script.encode())


def test_autogenerate_leaves_the_outbox_alone(host: Host) -> None:
    command.upgrade(host.config, "head")
    command.check(host.config)
    host.configure(include_object=None)
    with pytest.raises(CommandError, match="outbox_event"):
        command.check(host.config)


def test_autogenerate_with_a_schema_and_a_prefix(tmp_path: Path, database_url: str) -> None:
    host = Host(tmp_path / "host", database_url, options=", schema='messages', prefix='x_'")
    run(database_url, "CREATE SCHEMA messages")
    host.configure(include_schemas=True, include_object=migrations.make_include_object("messages", "x_"))
    command.upgrade(host.config, "head")
    assert {"x_event", "x_lane"} <= {name for (name, *_) in host.catalog("messages")["tables"]}
    command.check(host.config)
    host.configure(include_object=migrations.include_object)
    with pytest.raises(CommandError, match="x_event"):
        command.check(host.config)


def test_an_outbox_in_the_hosts_metadata(host: Host) -> None:
    """Whoever wants our tables in their metadata makes them with the same revision, and autogenerate stays quiet."""
    base = host_models()
    make_event_class(base.metadata)
    host.configure(metadata=base.metadata)
    command.upgrade(host.config, "head")
    command.check(host.config)


@pytest.mark.parametrize(("schema", "prefix"), [(None, "outbox_"), ("messages", "x_")])
def test_create_all_of_the_hosts_metadata_makes_a_working_outbox(
    database_url: str, schema: str | None, prefix: str
) -> None:
    base = host_models()
    event_class = make_event_class(base.metadata, schema=schema, prefix=prefix)
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        migrations.make_schema(connection, schema)
        base.metadata.create_all(connection)
    with Session(engine) as session:
        session.execute(sa.insert(base.metadata.tables["orders"]).values(item="tea"))
        session.add_all([event_class(topic="orders", type="OrderPlaced", key=key) for key in ("a", None)])
        session.commit()
    table = event_class.__table__
    with engine.connect() as connection:
        lanes = list(connection.scalars(sa.select(table.c.lane)))
        catalog = dump(connection, schema or "public")
        naming = Naming(schema, prefix)
        assert migrations.current_version(connection, naming) == migrations.SCHEMA_VERSION
    assert len(lanes) == 2
    assert all(0 <= lane < 64 for lane in lanes)
    assert [(name, enabled) for name, enabled, _ in catalog["triggers"]] == [("outbox_wake_up", "A")]
    with engine.begin() as connection:
        base.metadata.drop_all(connection)
        assert dump(connection, schema or "public")["tables"] == []
