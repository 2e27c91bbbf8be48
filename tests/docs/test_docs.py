"""The documents in docs: followed as a reader would, compared with the code, and their links looked up."""

import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outbox.migrations.v01 import wake_up_trigger
from outbox.naming import Naming
from outbox.store.statements import statement
from relays.publishers.rabbitmq import RabbitMQSettings
from relays.publishers.sqs import SQSSettings
from relays.settings import RelaySettings
from relays.sources import load, refuse_unknown_sections
from tests.docs.reading import ROOT, Block, Reader, blocks, documents
from tests.support.rabbitmq import connect
from tests.support.relay import add_events

DOCS = ROOT / "docs"
AMQP = "amqp://guest:guest@localhost:5672/%2F"
ALL = [block for document in documents() for block in blocks(document)]
LANGUAGES = {"python", "bash", "sql", "toml", "text"}


@pytest.fixture
def reader(tmp_path: Path, database_url: str) -> Reader:
    """Somebody with an empty database."""
    return Reader(tmp_path / "reader", database_url.replace("+psycopg", ""))


def of(name: str, comment: str) -> Block:
    (block,) = [block for block in blocks(DOCS / name) if block.comment == comment]
    return block


def test_the_tutorial(reader: Reader, amqp_url: str, queue: str) -> None:
    reader.names |= {AMQP: amqp_url, '"orders"': f'"{queue}"', f'__tablename__ = "{queue}"': '__tablename__ = "orders"'}
    assert reader.follow(DOCS / "tutorial/first-relay.md") >= 7


@pytest.fixture
def exchange(amqp_url: str, queue: str) -> Iterator[str]:
    yield f"{queue}-events"
    with connect(amqp_url) as connection:
        connection.channel().exchange_delete(f"{queue}-events")


def test_rabbitmq(reader: Reader, amqp_url: str, queue: str, exchange: str) -> None:
    reader.names |= {AMQP: amqp_url, '"orders"': f'"{queue}"', "shop-events": exchange}
    assert reader.follow(DOCS / "how-to/rabbitmq.md") >= 7
    with connect(amqp_url) as connection:
        channel = connection.channel()
        bodies = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(3)]
    assert bodies == [b'{"id":1}', b'{"id":2}', None]


def test_sqs(reader: Reader, aws: Any) -> None:
    assert reader.follow(DOCS / "how-to/sqs.md") >= 4
    namespace: dict[str, Any] = {}
    exec(of("reference/wire-format.md", "file: reading.py").code, namespace)
    received = {}
    for queue in ("orders", "invoices.fifo"):
        url = aws.get_queue_url(QueueName=queue)["QueueUrl"]
        (message,) = aws.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
        received[queue] = namespace["read"](message)
    assert [body for body, _ in received.values()] == [b'{"id": 1}'.replace(b" ", b"")] * 2
    assert received["invoices.fifo"][1]["outbox-key"] == "customer-7"


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("how-to/configure.md", 2),
        ("how-to/test-your-application.md", 2),
        ("how-to/write-a-publisher.md", 2),
        ("reference/event.md", 3),
        ("reference/wire-format.md", 1),
    ],
)
def test_followed(reader: Reader, name: str, runs: int) -> None:
    assert reader.follow(DOCS / name) >= runs


@pytest.fixture
def roles(reader: Reader) -> Iterator[None]:
    """Roles belong to the server: names of our own, removed at the end."""
    names = {name: f"{name}_{Path(reader.database).name}"[:63] for name in ("shop_producer", "shop_relay")}
    reader.names |= names
    yield
    with psycopg.connect(reader.database, autocommit=True) as connection:
        for role in names.values():
            connection.execute(f"DROP OWNED BY {role}")  # type: ignore[call-overload]
            connection.execute(f"DROP ROLE {role}")  # type: ignore[call-overload]


@pytest.mark.usefixtures("roles")
def test_migrating_by_command_and_the_roles(reader: Reader) -> None:
    steps = blocks(DOCS / "how-to/migrate.md")
    for block in steps[:-1]:
        reader.do(block)
    as_relay = re.sub(r"//([^@/]*@)?", "//shop_relay:change%20me@", reader.database)
    with psycopg.connect(reader.database) as connection:
        connection.execute("INSERT INTO outbox_event (topic, type, payload) VALUES ('t', 'T', '')")
    command = f"OUTBOX_DATABASE_URL='{as_relay}' outbox-relay --target memory --drain"
    reader.do(Block(DOCS / "how-to/migrate.md", 0, "bash", "", command))
    assert "published 1" in reader.printed
    reader.do(steps[-1])
    assert "version 1 to 0" in reader.printed


def test_migrating_by_the_hosts_history(reader: Reader) -> None:
    page = "how-to/migrate.md"
    for comment in ("file: migrations/versions/0001_outbox.py", "file: migrations/env.py"):
        reader.do(of(page, comment))
    (reader.directory / "alembic.ini").write_text("[alembic]\nscript_location = migrations\n")
    (reader.directory / "migrations/script.py.mako").write_text("")
    # Autogenerate has nothing to say: `check` fails if it would add a step.
    env = reader.directory / "migrations/env.py"
    env.write_text(
        env.read_text().replace("connection=connection,", "connection=connection, target_metadata=MetaData(),")
    )
    env.write_text("from sqlalchemy import MetaData\n" + env.read_text())
    for command in ("upgrade head", "check", "downgrade base"):
        run = f"OUTBOX_DATABASE_URL={reader.database} python -m alembic {command}"
        reader.do(Block(DOCS / page, 0, "bash", "", run))
        with psycopg.connect(reader.database) as connection:
            row = connection.execute("SELECT to_regclass('outbox_event') IS NULL").fetchone()
        assert row == (command == "downgrade base",)


def test_the_sql_for_operators(outbox_url: str, engine: Any, tmp_path: Path) -> None:
    add_events(engine, 3, key="k", topic="orders")
    reader = Reader(tmp_path / "reader", outbox_url.replace("+psycopg", ""))
    with psycopg.connect(reader.database) as connection:
        connection.execute(
            """WITH gone AS (DELETE FROM outbox_event RETURNING *)
            INSERT INTO outbox_dead_letter
                (id, idempotency_key, outbox, key, topic, type, payload, content_type, created_at, reason)
            SELECT id, idempotency_key, outbox, key, topic, type, payload, content_type, created_at, 'rejected'
            FROM gone ORDER BY id DESC"""
        )
    assert reader.follow(DOCS / "reference/schema.md") >= 6
    with psycopg.connect(reader.database) as connection:
        rows = connection.execute("SELECT payload, resends, id > 3 FROM outbox_event ORDER BY id").fetchall()
    assert rows == [(b"0", 1, True), (b"1", 1, True), (b"2", 1, True)]


@pytest.mark.parametrize("block", [block for block in ALL if block.role == "statement"], ids=str)
def test_statements_are_those_that_run(block: Block) -> None:
    assert block.code.split() == statement(block.argument, Naming()).text.split()


def test_the_trigger_is_the_one_that_is_made() -> None:
    assert (
        of("explanation/how-it-works.md", "wake-up trigger").code.split() == wake_up_trigger("outbox_event")[0].split()
    )


def test_the_toml_file_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(of("how-to/configure.md", "file: relay.toml").code)
    settings = load(RelaySettings, {}, path, None)
    assert settings.route == ("orders.*=events:", "mail.*=mail")
    assert load(RabbitMQSettings, {"rabbitmq_url": AMQP}, path, "rabbitmq").confirm_timeout == 10
    assert load(SQSSettings, {}, path, "sqs").queue == "events"
    refuse_unknown_sections(path, ["rabbitmq", "sqs", "route"])


def test_generated_pages_are_up_to_date() -> None:
    for path, text in runpy.run_path(str(DOCS / "generate.py"))["pages"]().items():
        assert path.read_text() == text, f"{path.name} is out of date: run python docs/generate.py"


@pytest.mark.parametrize("block", ALL, ids=str)
def test_every_block_is_of_a_known_language_and_parses(block: Block) -> None:
    assert block.language in LANGUAGES
    if block.language == "python":
        compile(block.code, str(block), "exec")
    if block.language == "toml":
        assert tomllib.loads(block.code)
    if block.role == "not run":
        assert block.argument, "the reason is missing"


def test_extras_that_are_installed_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"outbox-relay\[([\w,]+)\]", "".join(path.read_text() for path in documents()))
    assert named
    assert {extra for names in named for extra in names.split(",")} <= set(extras)


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text()
    missing = [
        page for page in DOCS.rglob("*.md") if str(page.relative_to(DOCS)) not in index and page.name != "README.md"
    ]
    assert not missing


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives to headings."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\[([^\]]+)\]\(([^)\s]+)\)", document.read_text())
    for text, link in links:
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{link} is not there"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"
        if text.startswith("test_") and target.suffix == ".py":
            assert re.search(rf"\bdef {text}\(", target.read_text()), f"{target.name} has no {text}"


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_that_are_named_exist(document: Path) -> None:
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", document.read_text()):
        assert f"def {name}(" in sources, f"{name} does not exist"
