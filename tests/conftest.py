"""Fixtures: real servers, and for every test a database, queues and names of its own.

Each process of pytest-xdist has servers of its own: the embedded PostgreSQL starts within a second, which is less than
sharing one would cost. Helpers are in tests/support.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support import moto, postgres, rabbitmq

NEEDS = {"postgres_server": "postgres", "amqp_url": "rabbitmq", "moto_url": "sqs"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the servers that their fixtures need, so that `-m "not rabbitmq"` is always right."""
    for item in items:
        for fixture, marker in NEEDS.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)


def pytest_report_header() -> str:
    server = "of OUTBOX_TEST_POSTGRES_URL" if os.environ.get("OUTBOX_TEST_POSTGRES_URL") else "embedded"
    return f"SQLAlchemy {sa.__version__}, PostgreSQL {server}"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asynchronous tests (`pytest.mark.anyio`) run on asyncio, the only loop that SQLAlchemy knows."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.PostgresServer]:
    """The embedded PostgreSQL, or the server that OUTBOX_TEST_POSTGRES_URL names."""
    with postgres.running_server() as server:
        yield server


@pytest.fixture(scope="session")
def outbox_template(postgres_server: postgres.PostgresServer) -> Iterator[str]:
    """The name of a migrated database that others are copied from."""
    with postgres.temporary_database(postgres_server) as name:
        postgres.migrate(postgres_server.url(name))
        yield name


@pytest.fixture
def database_url(postgres_server: postgres.PostgresServer) -> Iterator[str]:
    """An empty database, as `postgresql+psycopg://`; dropped with whoever is still connected."""
    with postgres.temporary_database(postgres_server) as name:
        yield postgres.sqlalchemy_url(postgres_server.url(name))


@pytest.fixture
def outbox_url(postgres_server: postgres.PostgresServer, outbox_template: str) -> Iterator[str]:
    """A database with the outbox tables, as `postgresql+psycopg://`; dropped with whoever is still connected."""
    with postgres.temporary_database(postgres_server, outbox_template) as name:
        yield postgres.sqlalchemy_url(postgres_server.url(name))


@pytest.fixture
def engine(outbox_url: str) -> Iterator[sa.Engine]:
    """A SQLAlchemy engine on `outbox_url`."""
    engine = sa.create_engine(outbox_url)
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """The address of moto's server."""
    with moto.running_moto() as url:
        yield url


@pytest.fixture
def aws(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A boto3 SQS client of an empty moto; in this process and its children boto3 finds moto by itself."""
    import boto3

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in moto.aws_environment(moto_url).items():
        monkeypatch.setenv(name, value)
    moto.forget_everything(moto_url)
    return boto3.session.Session().client("sqs")


@pytest.fixture(scope="session")
def amqp_url() -> Iterator[str]:
    """The address of a RabbitMQ broker; where it comes from is said in tests/support/rabbitmq.py."""
    with rabbitmq.running_broker() as url:
        yield url


@pytest.fixture
def queue(amqp_url: str) -> Iterator[str]:
    """The name of a durable, empty queue on `amqp_url`."""
    with rabbitmq.temporary_queue(amqp_url) as name:
        yield name
