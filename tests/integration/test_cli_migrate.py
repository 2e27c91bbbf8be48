"""`outbox-relay migrate` against a real server."""

import os
import pty
import secrets
import subprocess
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa

from outbox import migrations
from outbox.naming import Naming
from relays.exit_codes import ExitCode
from tests.support.catalog import Catalog, differences, dump
from tests.support.cli import Result, command, environment, run_cli

NAMINGS = [Naming(), Naming("app", "x_")]


def options(naming: Naming) -> list[str]:
    return (["--schema", naming.schema] if naming.schema else []) + ["--prefix", naming.prefix]


def migrate(url: str, *arguments: str, naming: Naming | None = None) -> Result:
    return run_cli("migrate", *options(naming or Naming()), *arguments, OUTBOX_DATABASE_URL=url)


def plain(url: str) -> str:
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def execute(url: str, script: str) -> None:
    with psycopg.connect(plain(url)) as connection:
        connection.execute(script.encode())


def catalog(url: str, naming: Naming | None = None) -> Catalog:
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        return dump(connection, (naming or Naming()).schema or "public")


@pytest.mark.parametrize("naming", NAMINGS, ids=str)
def test_check_migrate_check(database_url: str, naming: Naming) -> None:
    before = migrate(database_url, "--check", naming=naming)
    assert before.code == ExitCode.SCHEMA
    assert "run `outbox-relay migrate" in before.error
    first = migrate(database_url, naming=naming)
    assert (first.code, first.stdout) == (ExitCode.DONE, "")
    assert "went from version 0 to 1" in first.stderr
    assert migrate(database_url, "--check", naming=naming).code == ExitCode.DONE
    made = catalog(database_url, naming)
    second = migrate(database_url, naming=naming)
    assert second.code == ExitCode.DONE
    assert "is at version 1" in second.stderr
    assert catalog(database_url, naming) == made


def test_it_makes_what_the_library_makes(database_url: str, outbox_url: str) -> None:
    assert migrate(database_url).code == ExitCode.DONE
    assert "\n".join(differences(catalog(outbox_url), catalog(database_url))) == ""


@pytest.mark.parametrize("naming", NAMINGS, ids=str)
def test_the_printed_sql_makes_the_same_and_needs_no_database(database_url: str, naming: Naming) -> None:
    printed = run_cli("migrate", "--sql", *options(naming))
    assert (printed.code, printed.stderr) == (ExitCode.DONE, "")
    execute(database_url, printed.stdout)
    by_script = catalog(database_url, naming)
    assert migrate(database_url, "--to", "0", "--yes", naming=naming).code == ExitCode.DONE
    assert migrate(database_url, naming=naming).code == ExitCode.DONE
    assert "\n".join(differences(by_script, catalog(database_url, naming))) == ""


def test_output_that_nobody_reads_ends_it_quietly() -> None:
    with subprocess.Popen(
        command("migrate", "--sql"), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) != ExitCode.INTERNAL


def test_several_at_once(database_url: str) -> None:
    """Five processes wait for one lock, so that all of them try at the same time; one does it, four find it done."""
    name = Naming("app")
    with psycopg.connect(plain(database_url)) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(hashtextextended('outbox-relay migrate', 0))")
        processes = [
            subprocess.Popen(
                command("migrate", *options(name)),
                env=environment(OUTBOX_DATABASE_URL=database_url),
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(5)
        ]
        wait_for_waiting(holder, len(processes))
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 5, said
    assert sum("went from version 0 to 1" in text for text in said) == 1
    assert sum("is at version 1" in text for text in said) == 4


def wait_for_waiting(connection: psycopg.Connection, number: int) -> None:
    """Until that many sessions wait for the advisory lock; the server's own clock bounds it."""
    query = b"""
    DO $$
    BEGIN
        WHILE (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted) < %d LOOP
            IF clock_timestamp() > now() + interval '60 seconds' THEN
                RAISE 'nobody waits';
            END IF;
            PERFORM pg_sleep(0.05);
        END LOOP;
    END $$"""
    connection.execute(query % number)


def test_going_back_removes_everything_and_wants_to_be_sure(database_url: str) -> None:
    empty = catalog(database_url)
    assert migrate(database_url).code == ExitCode.DONE
    made = catalog(database_url)
    unsure = migrate(database_url, "--to", "0")
    assert unsure.code == ExitCode.USAGE
    assert "--yes" in unsure.error
    assert catalog(database_url) == made
    assert "went from version 1 to 0" in migrate(database_url, "--to", "0", "--yes").stderr
    assert "\n".join(differences(empty, catalog(database_url))) == ""
    assert "is at version 0" in migrate(database_url, "--to", "0", "--yes").stderr


@pytest.mark.parametrize(("answer", "code", "left"), [("y", ExitCode.DONE, 0), ("n", 130, 1)])
def test_going_back_on_a_terminal_asks(database_url: str, answer: str, code: int, left: int) -> None:
    assert migrate(database_url).code == ExitCode.DONE
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("migrate", "--to", "0"),
        env=environment(OUTBOX_DATABASE_URL=database_url),
        stdin=theirs,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.write(ours, f"{answer}\n".encode())
        _, said = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == code, said
    assert "Go on?" in said
    with sa.create_engine(database_url, poolclass=sa.NullPool).connect() as connection:
        assert migrations.current_version(connection) == left


def test_tables_of_a_newer_package_are_left_alone(database_url: str) -> None:
    assert migrate(database_url).code == ExitCode.DONE
    execute(database_url, f"COMMENT ON TABLE outbox_event IS '{migrations.version_comment(99)}'")
    assert migrate(database_url, "--check").code == ExitCode.DONE
    again = migrate(database_url)
    assert again.code == ExitCode.DONE
    assert "is at version 99" in again.stderr
    back = migrate(database_url, "--to", "0", "--yes")
    assert back.code == ExitCode.SCHEMA
    assert "99 is unknown" in back.error
    assert catalog(database_url)["triggers"]


def test_without_the_wake_up_trigger(database_url: str) -> None:
    assert migrate(database_url, "--no-wake-up").code == ExitCode.DONE
    assert catalog(database_url)["triggers"] == []
    assert "TRIGGER" not in run_cli("migrate", "--sql", "--no-wake-up").stdout


@pytest.fixture
def powerless(database_url: str) -> Iterator[str]:
    """The same database for a role that may connect and nothing else."""
    role, password = f"outbox_test_{secrets.token_hex(4)}", secrets.token_hex(8)
    execute(database_url, f"CREATE ROLE {role} LOGIN PASSWORD '{password}'; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    yield sa.make_url(database_url).set(username=role, password=password).render_as_string(hide_password=False)
    execute(database_url, f"DROP ROLE {role}")


def test_a_role_that_may_not(powerless: str) -> None:
    url = sa.make_url(powerless)
    for naming in NAMINGS:
        result = migrate(powerless, naming=naming)
        assert result.code == ExitCode.DATABASE
        assert "permission denied" in result.error
        assert f"as user {url.username} (OUTBOX_DATABASE_URL)" in result.error
        assert str(url.password) not in result.stderr
