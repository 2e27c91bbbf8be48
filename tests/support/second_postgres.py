"""Run a command with OUTBOX_TEST_POSTGRES_URL naming a PostgreSQL of another version than the embedded one.

`python -m tests.support.second_postgres COMMAND...` takes the server that the variable names already; else a private
server from binaries installed on this machine; else the older version that the embedded one's wheel also carries.
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg

from outbox import MissingExtra
from tests.support.postgres import LocalPostgres, PostgresServer, RunningPostgres, WheelPostgres16

__all__ = ["installed_programs", "main", "second_server"]

NEWEST = 18


def installed_programs() -> Path | None:
    """Where Debian, Ubuntu or the PostgreSQL project's packages have put another version; the oldest from 15 on."""
    found: dict[int, Path] = {}
    for pattern in ("usr/lib/postgresql/*/bin/initdb", "usr/pgsql-*/bin/initdb"):
        for initdb in Path("/").glob(pattern):
            version = re.search(r"(\d+)", initdb.parent.parent.name)
            if version and 15 <= int(version[1]) < NEWEST:
                found[int(version[1])] = initdb.parent
    return found[min(found)] if found else None


@contextlib.contextmanager
def second_server() -> Iterator[PostgresServer]:
    """A server of an older version. Raises MissingExtra when the wheel would be needed and isn't there."""
    if url := os.environ.get("OUTBOX_TEST_POSTGRES_URL"):
        yield RunningPostgres(url)
        return
    programs = installed_programs()
    with LocalPostgres(programs) if programs else WheelPostgres16(durable=False) as server:
        yield server


def main() -> int:
    try:
        with second_server() as server:
            with psycopg.connect(server.url()) as connection:
                print(f"PostgreSQL {connection.info.parameter_status('server_version')}", flush=True)
            return subprocess.run(sys.argv[1:], env=os.environ | {"OUTBOX_TEST_POSTGRES_URL": server.url()}).returncode
    except MissingExtra as error:
        print(f"not run on a second PostgreSQL version: {error}", flush=True)
        return 0


if __name__ == "__main__":
    sys.exit(main())
