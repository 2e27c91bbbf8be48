"""What a relay can be told; `relays.sources` says where it may stand."""

from typing import Annotated, Literal, Self

import sqlalchemy as sa
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from outbox.database import parse_url
from outbox.errors import ConfigurationError
from outbox.naming import Naming

__all__ = ["RelaySettings"]

DAY = 86_400.0


def _split(value: object) -> object:
    """Several values in one string are separated by commas or line ends."""
    if not isinstance(value, str):
        return value
    return [part.strip() for line in value.splitlines() for part in line.split(",") if part.strip()]


def _rules(value: object) -> object:
    """A TOML table of routes is a list of rules by another name."""
    return [f"{pattern}={destination}" for pattern, destination in value.items()] if isinstance(value, dict) else value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _outbox_name(value: str) -> str:
    if not 1 <= len(value.encode()) <= 63:
        raise ValueError(f"the name of an outbox has 1 to 63 bytes, not {len(value.encode())}")
    return value


Outbox = Annotated[str, AfterValidator(_outbox_name)]
Several = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


class RelaySettings(BaseSettings):
    """What a relay, and `migrate`, can be told. Times are seconds."""

    model_config = SettingsConfigDict(env_prefix="OUTBOX_", frozen=True)

    database_url: SecretStr | None = Field(None, description="PostgreSQL database, postgresql://USER:PASSWORD@HOST/DB.")
    schema_name: str | None = Field(
        None, validation_alias="OUTBOX_SCHEMA", description="Schema of the outbox tables; default: the search path."
    )
    prefix: str = Field("outbox_", description="What the names of the outbox tables begin with.")
    outbox: Annotated[tuple[Outbox, ...], NoDecode, BeforeValidator(_split)] = Field(
        ("default",), min_length=1, description="Outbox to drain; of several, earlier ones go first."
    )
    target: str | None = Field(None, description="Where events go: rabbitmq or sqs.")
    route: Annotated[Several, BeforeValidator(_rules)] = Field(
        (), description="PATTERN=DESTINATION for topics that match; the first match wins."
    )
    batch_size: int = Field(500, ge=1, le=10_000, description="Events per batch.")
    concurrency: int = Field(4, ge=1, le=64, description="Workers, each with its own connection.")
    lease: float = Field(30, ge=1, le=3600, description="Seconds until a vanished relay's events go to another.")
    poll: float = Field(5, ge=0.05, le=3600, description="Seconds between looks when no notification arrives.")
    max_attempts: int = Field(10, ge=1, le=30_000, description="Attempts of an event before it is a dead letter.")
    backoff_min: float = Field(1, gt=0, le=DAY, description="Seconds to the second attempt, at most.")
    backoff_max: float = Field(300, gt=0, le=DAY, description="Seconds between two attempts, at most.")
    grace: float = Field(20, ge=0, le=3600, description="Seconds to finish what is in flight when stopped.")
    startup_timeout: float = Field(30, ge=0, le=3600, description="Seconds to wait for servers that can't be reached.")
    key_window: int = Field(1, ge=1, le=1000, description="Events of one key in flight; more than 1 may break order.")
    on_unroutable: Literal["pause", "dead-letter"] = Field(
        "pause", description="What an unroutable event does: pause its destination, or become a dead letter."
    )
    take_over: bool = Field(False, description="Drain an outbox that belonged to another target.")
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        "info", description="Least severity that is logged."
    )
    log_format: Annotated[Literal["auto", "text", "json"], BeforeValidator(_lower)] = Field(
        "auto", description="Form of the log; auto: text on a terminal, else json."
    )

    @model_validator(mode="after")
    def _backoff_in_order(self) -> Self:
        if self.backoff_max < self.backoff_min:
            raise ConfigurationError(
                "--backoff-max (OUTBOX_BACKOFF_MAX) must not be below --backoff-min (OUTBOX_BACKOFF_MIN)"
            )
        return self

    @property
    def naming(self) -> Naming:
        """The names of the tables."""
        return Naming(self.schema_name, self.prefix)

    @property
    def url(self) -> sa.URL:
        """The database, for `outbox.database.make_engine`. Raises ConfigurationError when it is not set."""
        if self.database_url is None:
            raise ConfigurationError("--database-url (OUTBOX_DATABASE_URL) is not set")
        return parse_url(self.database_url.get_secret_value())
