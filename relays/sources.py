"""How flags, environment, secret files and a TOML file become the settings of one class.

Every setting has one name in three spellings: `--batch-size`, `OUTBOX_BATCH_SIZE` and `batch_size` in TOML. A
publisher's settings carry its name: `--sqs-queue`, `OUTBOX_SQS_QUEUE`, and `queue` in the section `[sqs]`.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsError

from outbox.errors import ConfigurationError

__all__ = ["Setting", "load", "refuse_unknown_sections", "settings_of"]

SettingsT = TypeVar("SettingsT", bound=BaseSettings)

PREFIX = "OUTBOX_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a settings class and its names."""

    field: str
    info: FieldInfo
    env: str

    @property
    def key(self) -> str:
        """Its name among the flags of the command line, and in TOML outside of sections."""
        return self.env.removeprefix(PREFIX).lower()

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def secret(self) -> bool:
        """Whether its value must not be shown."""
        return SecretStr in (self.info.annotation, *get_args(self.info.annotation))

    @property
    def argument(self) -> str:
        """What pydantic calls it."""
        return self.env if self.info.validation_alias else self.field

    def __str__(self) -> str:
        return f"{self.flag} ({self.env})"


def settings_of(cls: type[BaseSettings]) -> list[Setting]:
    """The settings of a class, publishers' own classes included."""
    prefix = cls.model_config.get("env_prefix", "").upper()
    return [
        Setting(name, info, info.validation_alias if isinstance(info.validation_alias, str) else prefix + name.upper())
        for name, info in cls.model_fields.items()
    ]


def load(cls: type[SettingsT], flags: Mapping[str, object], config: Path | None, section: str | None) -> SettingsT:
    """The settings of a class: flags before environment before secret files before TOML before defaults.

    Parameters:
        flags: by their name without dashes (`batch_size`, `sqs_queue`); None means not given, other classes' are left.
        config: a TOML file, None for none.
        section: the table of the file that holds these settings; None: its top level, where tables belong to others.

    `OUTBOX_X_FILE` names a file that holds the value of a secret `OUTBOX_X`. Empty environment variables count as
    unset. Raises ConfigurationError, naming the setting; the value of a secret is never in it.
    """
    settings = settings_of(cls)
    values = _from_toml(settings, config, section)
    for setting in settings:
        if flags.get(setting.key) is not None:
            values[setting.argument] = flags[setting.key]
        elif os.environ.get(setting.env):
            values.pop(setting.argument, None)  # left to pydantic-settings, which ranks it below what it is given
        elif setting.secret and os.environ.get(f"{setting.env}_FILE"):
            values[setting.argument] = _read_secret(f"{setting.env}_FILE")
    try:
        return cls(_env_ignore_empty=True, **values)
    except ValidationError as error:
        # Its own text, and a traceback that shows it, would quote secrets.
        raise ConfigurationError(_explain(error, settings)) from None
    except SettingsError as error:  # a variable that has to be JSON, and is not
        raise ConfigurationError(f"{error} (the names begin with {cls.model_config.get('env_prefix')})") from None


def refuse_unknown_sections(config: Path | None, known: Iterable[str]) -> None:
    """Raise ConfigurationError for a table of the TOML file that is neither a known section nor a setting."""
    names = list(known)
    for name, value in (_read_toml(config) if config else {}).items():
        if isinstance(value, dict) and name not in names:
            raise ConfigurationError(f"{config}: unknown section [{name}]{_hint(name, names)}")


def _from_toml(settings: list[Setting], config: Path | None, section: str | None) -> dict[str, Any]:
    if config is None:
        return {}
    document = _read_toml(config)
    table = document if section is None else document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"{config}: {section} has to be a table, [{section}]")
    names = {setting.field if section else setting.key: setting.argument for setting in settings}
    place = f"{config}, [{section}]" if section else f"{config}"
    for name, value in table.items():
        if name not in names and not (section is None and isinstance(value, dict)):
            raise ConfigurationError(f"{place}: unknown setting {name!r}{_hint(name, names)}")
    return {names[name]: value for name, value in table.items() if name in names}


def _hint(name: str, names: Iterable[str]) -> str:
    similar = difflib.get_close_matches(name.replace("-", "_"), names, n=1)
    return f"; did you mean {similar[0]!r}?" if similar else f"; known are {', '.join(sorted(names))}"


def _read_toml(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--config (OUTBOX_CONFIG): {config}: {error.strerror}") from error
    except ValueError as error:  # a TOMLDecodeError says where, and quotes nothing but a key
        raise ConfigurationError(f"--config (OUTBOX_CONFIG): {config} is not TOML: {error}") from None


def _read_secret(variable: str) -> str:
    path = Path(os.environ[variable])
    try:
        value = path.read_text("utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"{variable}: {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigurationError(f"{variable}: {path} is not text in UTF-8") from None
    if not value:
        raise ConfigurationError(f"{variable}: {path} is empty")
    return value


def _explain(error: ValidationError, settings: list[Setting]) -> str:
    """One problem per setting, the first: later ones tend to follow from it."""
    by_argument = {setting.argument: setting for setting in settings}
    problems: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        argument = str(detail["loc"][0]) if detail["loc"] else ""
        setting = by_argument.get(argument)
        message = "is not set" if detail["type"] == "missing" else detail["msg"].removeprefix("Value error, ")
        if setting and not setting.secret and detail["type"] != "missing":
            message += f", got {detail['input']!r:.80}"
        problems.setdefault(argument, f"{setting}: {message}" if setting else message)
    return "; ".join(problems.values())
