"""${message}"""

from alembic import context, op

from outbox import migrations

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    naming = context.config.attributes["naming"]
    migrations.upgrade(op, to=..., schema=naming.schema, prefix=naming.prefix, start=...)


def downgrade() -> None:
    naming = context.config.attributes["naming"]
    migrations.downgrade(op, to=..., schema=naming.schema, prefix=naming.prefix, start=...)
