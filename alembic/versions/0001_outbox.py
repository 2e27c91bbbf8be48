"""Outbox schema version 1: events, lanes, pauses, dead letters."""

from alembic import context, op

from outbox import migrations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    naming = context.config.attributes["naming"]
    migrations.upgrade(op, to=1, schema=naming.schema, prefix=naming.prefix, start=0)


def downgrade() -> None:
    naming = context.config.attributes["naming"]
    migrations.downgrade(op, to=0, schema=naming.schema, prefix=naming.prefix, start=1)
