"""Writes the reference pages that follow from the code. After changing a setting or option: `python docs/generate.py`.

A test compares the pages with what is written here.
"""

import ast
import importlib
import inspect
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import SecretStr
from pydantic_settings import BaseSettings

from relays.cli import EXAMPLES, app
from relays.exit_codes import ExitCode
from relays.settings import RelaySettings
from relays.sources import Setting, settings_of

__all__ = ["pages"]

REFERENCE = Path(__file__).parent / "reference"

NOTE = "<!-- Written by docs/generate.py: change the code, then run it. -->"

CONFIGURATION = """\
# Configuration

{note}

Every setting has one name in three spellings. A flag wins over its environment variable, that over a file that holds a
secret (`OUTBOX_..._FILE`, for settings marked *secret*), that over the TOML file of `--config` (`OUTBOX_CONFIG`), that
over the default. Empty environment variables count as unset. Settings without a flag are set by environment or TOML.
[How to configure a relay](../how-to/configure.md) shows each way.

Times are seconds. Where several values are possible, they are separated by commas or line ends in the environment; in
TOML they are a list; a flag is repeated.

## The relay

`migrate` reads the database, schema and prefix from here, too.

{relay}

## `--target rabbitmq`

In TOML these stand in the section `[rabbitmq]`.

{rabbitmq}

## `--target sqs`

In TOML these stand in the section `[sqs]`. Region, endpoint and credentials are those that boto3 finds: `AWS_REGION` or
`AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL_SQS`, `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, `AWS_PROFILE`, roles.

{sqs}
"""

CLI = """\
# Command line

{note}

`outbox-relay` without a command runs a relay. Options of a command stand after its name. Data goes to stdout,
everything else to stderr. `-h` and `--help` show help.

{commands}

## Examples

{examples}

## Exit codes

| Code | Name | Meaning |
| --- | --- | --- |
{exit_codes}

A signal that ends the process before it can stop gracefully, such as the second SIGTERM, gives 128 plus its number.
`demo` exits with 1 when something was lost, invented or out of order, `bench` when an event was not in the queue
exactly once.
"""


def pages() -> dict[Path, str]:
    """The generated pages: where they are and what they say."""
    return {REFERENCE / "configuration.md": _configuration(), REFERENCE / "cli.md": _cli()}


def _configuration() -> str:
    flags = set(_flags(_root()))
    tables = {
        target: _settings_table(importlib.import_module(f"relays.publishers.{target}").plugin.settings, flags)
        for target in ("rabbitmq", "sqs")
    }
    return CONFIGURATION.format(note=NOTE, relay=_settings_table(RelaySettings, flags), **tables)


def _settings_table(settings: type[BaseSettings], flags: set[str]) -> str:
    texts = _attribute_docstrings(settings)
    section = settings is not RelaySettings
    rows = ["| Environment | Flag | TOML | Default | Meaning |", "| --- | --- | --- | --- | --- |"]
    for setting in settings_of(settings):
        meaning = setting.info.description or texts[setting.field]
        cells = [
            f"`{setting.env}`",
            f"`{setting.flag}`" if setting.flag in flags else "",
            f"`{setting.field if section else setting.key}`",
            _default(setting),
            _cell(meaning) + _bounds(setting) + (" *Secret.*" if setting.secret else ""),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _default(setting: Setting) -> str:
    default = setting.info.get_default()
    if setting.info.is_required() or default in (None, "", ()) or isinstance(default, SecretStr):
        return "required" if setting.info.is_required() else ""
    if isinstance(default, bool):
        return "`true`" if default else "`false`"
    return f"`{', '.join(default) if isinstance(default, tuple) else default}`"


def _bounds(setting: Setting) -> str:
    limits = {type(limit).__name__.lower(): limit for limit in setting.info.metadata}
    low, above, high = limits.get("ge"), limits.get("gt"), limits.get("le")
    words = []
    if low is not None:
        words.append(f"at least {low.ge:g}")
    if above is not None:
        words.append(f"more than {above.gt:g}")
    if high is not None:
        words.append(f"at most {high.le:g}")
    return f" ({', '.join(words)})" if words else ""


def _attribute_docstrings(settings: type[BaseSettings]) -> dict[str, str]:
    """The strings below the fields of a class: what those say that have no description."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(settings)).body if isinstance(node, ast.ClassDef))
    return {
        field.target.id: text.value.value
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _cli() -> str:
    root = _root()
    commands = [_command("outbox-relay", root)]
    commands += [_command(f"outbox-relay {name}", command) for name, command in sorted(root.commands.items())]
    codes = "\n".join(f"| {code:d} | `{code.name}` | {_cell(code.meaning)} |" for code in ExitCode)
    examples = [line.strip() for line in EXAMPLES.splitlines() if line.strip().startswith("outbox-relay")]
    return CLI.format(
        note=NOTE,
        commands="\n\n".join(commands),
        examples="\n".join(f"- `{example}`" for example in examples),
        exit_codes=codes,
    )


def _command(name: str, command: Any) -> str:
    rows = [
        f"| {', '.join(f'`{option}`' for option in parameter.opts)} | {_cell(parameter.help or '')} |"
        for parameter in command.params
    ]
    text = " ".join((command.help or "").split())
    return "\n".join([f"## `{name}`", "", text, "", "| Option | Meaning |", "| --- | --- |", *rows])


def _root() -> Any:
    return typer.main.get_command(app)


def _flags(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from parameter.opts


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, "utf-8")
