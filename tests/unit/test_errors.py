"""The exceptions: the hierarchy that the docstring draws, and what reaches the application of a message."""

import inspect
import re

import pytest
import sqlalchemy as sa

import outbox
from outbox import InvalidEvent, OutboxError, OutboxEvent, errors

DRAWN = re.compile(r"^ {4}(?P<lead>[│ ]*(?:[├└]── )?)(?P<name>[A-Z]\w+)", re.MULTILINE)


def drawn_parents() -> dict[str, str]:
    """Each class of the tree in the module's docstring, with the class above it."""
    parents, path = {}, ["Exception"]
    for line in DRAWN.finditer(errors.__doc__ or ""):
        depth = len(line["lead"]) // 4
        path = [*path[: depth + 1], line["name"]]
        parents[line["name"]] = path[-2]
    return parents


def test_the_docstring_draws_the_hierarchy_that_there_is() -> None:
    there = {name: getattr(errors, name).__bases__[0].__name__ for name in errors.__all__}
    assert drawn_parents() == there


def test_every_exception_of_the_module_is_public_here_and_in_the_package() -> None:
    classes = {name for name, item in inspect.getmembers(errors, inspect.isclass) if item.__module__ == "outbox.errors"}
    assert classes == set(errors.__all__)
    assert classes <= set(outbox.__all__)
    assert all(getattr(outbox, name) is getattr(errors, name) for name in classes)


@pytest.mark.parametrize("module", [errors, outbox])
def test_public_names_are_sorted(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]  # both modules have one
    assert sorted(names, key=lambda name: (name.islower(), name)) == names


def test_one_except_clause_catches_everything() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), OutboxError), name


def test_every_exception_says_what_it_means() -> None:
    for name in errors.__all__:
        assert getattr(errors, name).__doc__, name


def test_an_invalid_event_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"^topic: must have 1 to 255 bytes in UTF-8, this has 0$"):
        OutboxEvent(topic="", type="Made")


def test_sqlalchemy_passes_an_invalid_event_on_unwrapped_and_without_the_parameters() -> None:
    table = sa.Table("event", sa.MetaData(), sa.Column("topic", OutboxEvent.__table__.c.topic.type))
    with sa.create_engine("sqlite://").connect() as connection, pytest.raises(InvalidEvent) as caught:
        connection.execute(sa.insert(table), {"topic": "x" * 256})
    assert str(caught.value) == "topic: must have 1 to 255 bytes in UTF-8, this has 256"
