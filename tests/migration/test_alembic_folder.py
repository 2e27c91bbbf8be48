"""The top-level folder `alembic`: what `alembic upgrade head` does in a checkout."""

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from outbox.naming import Naming
from tests.support.catalog import Catalog, differences, dump
from tests.support.cli import environment

ROOT = Path(__file__).parents[2]

NAMINGS = [Naming(), Naming("app", "x_")]


def alembic(url: str, *arguments: str, naming: Naming) -> subprocess.CompletedProcess[str]:
    variables = {"OUTBOX_DATABASE_URL": url, "OUTBOX_SCHEMA": naming.schema or "", "OUTBOX_PREFIX": naming.prefix}
    return subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=ROOT,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def succeeded(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 0, run.stderr
    return run.stdout


def catalog(url: str, naming: Naming) -> Catalog:
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        return dump(connection, naming.schema or "public")


def tables(url: str, naming: Naming) -> set[object]:
    return {name for (name, kind, *_) in catalog(url, naming)["tables"] if kind == "r"}


@pytest.mark.parametrize("naming", NAMINGS, ids=str)
def test_upgrade_and_downgrade(database_url: str, naming: Naming) -> None:
    succeeded(alembic(database_url, "upgrade", "head", naming=naming))
    assert tables(database_url, naming) == {
        f"{naming.prefix}{name}" for name in ("alembic_version", "event", "lane", "pause", "dead_letter")
    }
    assert "(head)" in succeeded(alembic(database_url, "current", naming=naming))
    before = catalog(database_url, naming)
    succeeded(alembic(database_url, "upgrade", "head", naming=naming))
    assert catalog(database_url, naming) == before
    succeeded(alembic(database_url, "downgrade", "base", naming=naming))
    assert tables(database_url, naming) == {f"{naming.prefix}alembic_version"}
    assert catalog(database_url, naming)["functions"] == []


@pytest.mark.parametrize("naming", NAMINGS, ids=str)
def test_offline_sql_makes_the_same(database_url: str, naming: Naming) -> None:
    script = succeeded(alembic("postgresql://127.0.0.1:1/nowhere", "upgrade", "head", "--sql", naming=naming))
    plain = sa.make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection:
        connection.execute(script.encode())
    offline = catalog(database_url, naming)
    succeeded(alembic(database_url, "downgrade", "base", naming=naming))
    succeeded(alembic(database_url, "upgrade", "head", naming=naming))
    assert "\n".join(differences(offline, catalog(database_url, naming))) == ""


def test_after_migrate_there_is_nothing_left_to_do(outbox_url: str) -> None:
    before = catalog(outbox_url, Naming())
    succeeded(alembic(outbox_url, "upgrade", "head", naming=Naming()))
    found = differences(before, catalog(outbox_url, Naming()))
    assert [line for line in found if "alembic_version" not in line] == []


def test_a_wrong_url_is_said_without_its_password(database_url: str) -> None:
    wrong = sa.make_url(database_url).set(password="s3cr3t", database="no_such_database")
    run = alembic(wrong.render_as_string(hide_password=False), "upgrade", "head", naming=Naming())
    assert run.returncode != 0
    assert "no_such_database" in run.stderr
    assert "OUTBOX_DATABASE_URL" in run.stderr
    assert "s3cr3t" not in run.stderr
