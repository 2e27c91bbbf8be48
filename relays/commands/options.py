"""Options that commands share, with their environment twins in the help text."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from relays.settings import RelaySettings
from relays.sources import settings_of

__all__ = ["ConfigFile", "DatabaseUrl", "Debug", "Prefix", "Schema", "config_path", "given", "option", "twin"]

SETTINGS = {setting.key: setting for setting in settings_of(RelaySettings)}


def option(key: str) -> Any:
    """The option for a setting of the relay; its default is always None, for the flag is one source of several."""
    setting = SETTINGS[key]
    default = setting.info.default
    shown = "" if default in (None, False, ()) else f"; default {default[0] if isinstance(default, tuple) else default}"
    return typer.Option(setting.flag, help=f"{setting.info.description} [{setting.env}{shown}]", show_default=False)


def twin(flag: str, text: str) -> Any:
    """The option for a setting of a publisher, whose class may need a package that is not installed."""
    env = "OUTBOX_" + flag.lstrip("-").upper().replace("-", "_")
    return typer.Option(flag, help=f"{text} [{env}]", show_default=False)


DatabaseUrl = Annotated[str | None, option("database_url")]
Schema = Annotated[str | None, option("schema")]
Prefix = Annotated[str | None, option("prefix")]
ConfigFile = Annotated[Path | None, twin("--config", "TOML file with settings.")]
Debug = Annotated[bool | None, typer.Option("--debug", help="Show tracebacks of errors.", show_default=False)]


def given(context: typer.Context) -> dict[str, Any]:
    """The options that stand on the command line, by name."""
    return {name: value for name, value in context.params.items() if value not in (None, [], ())}


def config_path(flags: dict[str, Any]) -> Path | None:
    """The TOML file to read, if any."""
    path = flags.get("config") or os.environ.get("OUTBOX_CONFIG")
    return Path(path) if path else None
