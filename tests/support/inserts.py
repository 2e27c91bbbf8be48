"""All the ways SQLAlchemy has to insert rows; each takes a Session and rows as dicts, and flushes."""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import OutboxEvent

__all__ = ["INSERTS", "TABLE", "Insert", "Rows"]

TABLE: sa.Table = OutboxEvent.__table__

Rows = list[dict[str, Any]]
Insert = Callable[[Session, Rows], None]


def add(session: Session, rows: Rows) -> None:
    for row in rows:
        session.add(OutboxEvent(**row))
        session.flush()


def add_all(session: Session, rows: Rows) -> None:
    session.add_all([OutboxEvent(**row) for row in rows])
    session.flush()


def add_within_savepoints(session: Session, rows: Rows) -> None:
    for row in rows:
        with session.begin_nested():
            session.add(OutboxEvent(**row))


def merge(session: Session, rows: Rows) -> None:
    for row in rows:
        session.merge(OutboxEvent(**row))
    session.flush()


def bulk_save_objects(session: Session, rows: Rows) -> None:
    session.bulk_save_objects([OutboxEvent(**row) for row in rows])


def bulk_save_objects_with_ids(session: Session, rows: Rows) -> None:
    session.bulk_save_objects([OutboxEvent(**row) for row in rows], return_defaults=True)


def bulk_insert_mappings(session: Session, rows: Rows) -> None:
    session.bulk_insert_mappings(OutboxEvent, rows)


def orm_insert_one_by_one(session: Session, rows: Rows) -> None:
    for row in rows:
        session.execute(sa.insert(OutboxEvent).values(**row))


def orm_insert_many(session: Session, rows: Rows) -> None:
    session.execute(sa.insert(OutboxEvent), rows)


def orm_insert_many_returning(session: Session, rows: Rows) -> None:
    ids = session.scalars(sa.insert(OutboxEvent).returning(OutboxEvent.id, sort_by_parameter_order=True), rows).all()
    assert sorted(ids) == ids
    assert len(ids) == len(rows)


def core_insert_one_by_one(session: Session, rows: Rows) -> None:
    for row in rows:
        session.connection().execute(sa.insert(TABLE).values(**row))


def core_insert_returning(session: Session, rows: Rows) -> None:
    for row in rows:
        assert session.connection().execute(sa.insert(TABLE).returning(TABLE.c.id), row).scalar_one() > 0


def core_insert_many(session: Session, rows: Rows) -> None:
    # One statement has one set of columns, which the first row decides: rows of a kind go together.
    _by_columns(rows, lambda alike: session.connection().execute(sa.insert(TABLE), alike))


def core_insert_values_list(session: Session, rows: Rows) -> None:
    _by_columns(rows, lambda alike: session.connection().execute(sa.insert(TABLE).values(alike)))


def core_insert_bind_parameters(session: Session, rows: Rows) -> None:
    for row in rows:
        names: dict[str, Any] = {name: sa.bindparam(f"my_{name}") for name in row}
        statement = sa.insert(TABLE).values(names)
        session.connection().execute(statement, {f"my_{name}": value for name, value in row.items()})


def _by_columns(rows: Rows, execute: Callable[[Rows], object]) -> None:
    alike: Rows = []
    for row in rows:
        if alike and row.keys() != alike[0].keys():
            execute(alike)
            alike = []
        alike.append(row)
    execute(alike)


INSERTS: dict[str, Insert] = {
    insert.__name__: insert
    for insert in (
        add,
        add_all,
        add_within_savepoints,
        merge,
        bulk_save_objects,
        bulk_save_objects_with_ids,
        bulk_insert_mappings,
        orm_insert_one_by_one,
        orm_insert_many,
        orm_insert_many_returning,
        core_insert_one_by_one,
        core_insert_returning,
        core_insert_many,
        core_insert_values_list,
        core_insert_bind_parameters,
    )
}
