"""One database for a whole module: for the many small tests that a database each would make slow."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.support import postgres


@pytest.fixture(scope="module")
def kept_url(postgres_server: postgres.PostgresServer, outbox_template: str) -> Iterator[str]:
    """A database with the outbox tables, the same for all tests of the module, as `postgresql+psycopg://`."""
    with postgres.temporary_database(postgres_server, outbox_template) as name:
        yield postgres.sqlalchemy_url(postgres_server.url(name))


@pytest.fixture
def kept_engine(kept_url: str) -> Iterator[sa.Engine]:
    """An engine on `kept_url`, whose events are deleted after the test; ids go on counting."""
    engine = sa.create_engine(kept_url)
    yield engine
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM outbox_event")
    engine.dispose()
