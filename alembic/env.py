"""Runs the steps of `outbox.migrations` by `alembic upgrade head` and `alembic downgrade base` from a checkout.

The settings are those of the relay: OUTBOX_DATABASE_URL, OUTBOX_SCHEMA, OUTBOX_PREFIX. A host application with an
Alembic history of its own calls `outbox.migrations` in a revision of its own instead.
"""

import os
from pathlib import Path

from alembic import context

from outbox import migrations
from outbox.database import make_engine, translated
from relays.settings import RelaySettings
from relays.sources import load


def run() -> None:
    config = os.environ.get("OUTBOX_CONFIG")
    settings = load(RelaySettings, {}, Path(config) if config else None, None)
    naming = settings.naming
    context.config.attributes["naming"] = naming
    options = {"version_table": f"{naming.prefix}alembic_version", "version_table_schema": naming.schema}
    if context.is_offline_mode():
        context.configure(dialect_name="postgresql", literal_binds=True, **options)
        with context.begin_transaction():
            if naming.schema:
                context.execute(f"CREATE SCHEMA IF NOT EXISTS {naming.schema}")
            context.run_migrations()
        return
    with translated(), make_engine(settings.url, application_name="outbox-relay alembic").begin() as connection:
        migrations.make_schema(connection, naming.schema)  # the version table comes before the first step
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()


run()
