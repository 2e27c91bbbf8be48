"""Where settings come from, which source wins, and what a wrong one says."""

import os
import traceback
from pathlib import Path

import pytest
import sqlalchemy as sa
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from outbox import ConfigurationError
from outbox.naming import Naming
from relays import wiring
from relays.settings import RelaySettings
from relays.sources import load, refuse_unknown_sections, settings_of

SECRET = "s3cr3t"
URL = f"postgresql://app:{SECRET}@db/shop"


class QueueSettings(BaseSettings):
    """Stands for the settings of a publisher."""

    model_config = SettingsConfigDict(env_prefix="OUTBOX_QUEUE_")

    url: SecretStr
    name: str | None = None
    limits: dict[str, int] = Field(default_factory=dict)


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OUTBOX_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "relay.toml"
    path.write_text("")
    return path


def relay(config: Path | None = None, **flags: object) -> RelaySettings:
    return load(RelaySettings, flags, config, None)


def refusal(config: Path | None = None, cls: type[BaseSettings] = RelaySettings, **flags: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(cls, flags, config, None if cls is RelaySettings else "queue")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults() -> None:
    settings = relay()
    assert (settings.batch_size, settings.concurrency, settings.lease, settings.poll) == (500, 4, 30, 5)
    assert (settings.max_attempts, settings.backoff_min, settings.backoff_max) == (10, 1, 300)
    assert (settings.grace, settings.startup_timeout, settings.key_window) == (20, 30, 1)
    assert (settings.outbox, settings.route, settings.on_unroutable) == (("default",), (), "pause")
    assert settings.naming == Naming(None, "outbox_")


def test_a_flag_wins_over_the_environment_that_over_toml_that_over_the_default(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert relay(config).batch_size == 500
    config.write_text("batch_size = 300")
    assert relay(config).batch_size == 300
    monkeypatch.setenv("OUTBOX_BATCH_SIZE", "200")
    assert relay(config).batch_size == 200
    assert relay(config, batch_size=100).batch_size == 100
    assert relay(config, batch_size=None).batch_size == 200, "None is a flag that was not given"


def test_a_secret_may_stand_in_a_file(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('database_url = "postgresql://toml/x"')
    secret = tmp_path / "url"
    secret.write_text(f"{URL}\n")
    monkeypatch.setenv("OUTBOX_DATABASE_URL_FILE", str(secret))
    assert relay(config).url == sa.make_url(URL).set(drivername="postgresql+psycopg")
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "postgresql://environment/x")
    assert relay(config).url.host == "environment"
    assert relay(config, database_url="postgresql://flag/x").url.host == "flag"


def test_only_secrets_may_stand_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "size").write_text("7")
    monkeypatch.setenv("OUTBOX_BATCH_SIZE_FILE", str(tmp_path / "size"))
    assert relay().batch_size == 500


@pytest.mark.parametrize(("content", "problem"), [(None, "No such file"), (b"\xff", "UTF-8"), (b" \n", "empty")])
def test_a_bad_secret_file_is_named(
    content: bytes | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "url"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("OUTBOX_DATABASE_URL_FILE", str(path))
    message = refusal()
    assert message.startswith(f"OUTBOX_DATABASE_URL_FILE: {path}")
    assert problem in message


def test_an_empty_variable_counts_as_unset(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('schema = "app"')
    monkeypatch.setenv("OUTBOX_SCHEMA", "")
    monkeypatch.setenv("OUTBOX_BATCH_SIZE", "")
    assert relay(config).naming == Naming("app", "outbox_")
    assert relay(config).batch_size == 500


def test_schema_and_prefix_by_every_source(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('schema = "toml"\nprefix = "t_"')
    assert relay(config).naming == Naming("toml", "t_")
    monkeypatch.setenv("OUTBOX_SCHEMA", "env")
    monkeypatch.setenv("OUTBOX_PREFIX", "e_")
    assert relay(config).naming == Naming("env", "e_")
    assert relay(config, schema="flag", prefix="f_").naming == Naming("flag", "f_")


def test_several_values(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert relay(outbox=["urgent", "default"]).outbox == ("urgent", "default")
    config.write_text('outbox = ["a", "b"]\nroute = ["orders.*=orders"]')
    assert relay(config).outbox == ("a", "b")
    assert relay(config).route == ("orders.*=orders",)
    monkeypatch.setenv("OUTBOX_OUTBOX", "c, d")
    monkeypatch.setenv("OUTBOX_ROUTE", "x.*=x,y.*=y\nz=https://q/1/z\n")
    assert relay(config).outbox == ("c", "d")
    assert relay(config).route == ("x.*=x", "y.*=y", "z=https://q/1/z")


def test_routes_as_a_table(config: Path) -> None:
    config.write_text('[route]\n"orders.*" = "orders"\n"*" = "rest"')
    assert relay(config).route == ("orders.*=orders", "*=rest")


def test_words_and_switches_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_TAKE_OVER", "yes")
    monkeypatch.setenv("OUTBOX_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("OUTBOX_ON_UNROUTABLE", "dead-letter")
    monkeypatch.setenv("OUTBOX_LEASE", "12.5")
    settings = relay()
    assert (settings.take_over, settings.log_level) == (True, "debug")
    assert (settings.on_unroutable, settings.lease) == ("dead-letter", 12.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("concurrency", -1),
        ("lease", 0),
        ("poll", 0),
        ("max_attempts", 0),
        ("max_attempts", 40_000),  # the column is a smallint
        ("backoff_min", 0),
        ("backoff_max", "soon"),
        ("grace", -1),
        ("startup_timeout", float("nan")),
        ("lease", float("inf")),
        ("key_window", 0),
        ("on_unroutable", "ignore"),
        ("log_level", "loud"),
        ("log_format", "xml"),
        ("take_over", "perhaps"),
        ("outbox", ["x" * 64]),
        ("outbox", []),
    ],
)
def test_a_wrong_value_names_flag_and_variable(name: str, value: object) -> None:
    message = refusal(**{name: value})
    assert message.startswith(f"--{name.replace('_', '-')} (OUTBOX_{name.upper()}): ")
    assert message.count("--") == 1


def test_every_wrong_value_is_reported_at_once() -> None:
    message = refusal(batch_size=0, lease=0)
    assert "--batch-size" in message
    assert "--lease" in message


def test_backoff_bounds_have_an_order() -> None:
    assert "--backoff-min" in refusal(backoff_min=10, backoff_max=5)


def test_secrets_never_show(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = relay(database_url=URL)
    assert SECRET not in repr(settings) + str(settings) + settings.model_dump_json()
    assert "--database-url (OUTBOX_DATABASE_URL)" in refusal(database_url=[SECRET])
    config.write_text(f'[queue]\nurl = ["{SECRET}"]')
    assert "--queue-url (OUTBOX_QUEUE_URL)" in refusal(config, QueueSettings)
    config.write_text(f'database_url = "{SECRET}')
    assert "is not TOML" in refusal(config)


def test_a_url_that_is_missing_or_wrong_names_the_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"--database-url \(OUTBOX_DATABASE_URL\) is not set"):
        _ = relay().url
    with pytest.raises(ConfigurationError, match="OUTBOX_DATABASE_URL must begin with"):
        _ = relay(database_url=f"mysql://app:{SECRET}@db/shop").url


def test_settings_of_a_publisher(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('batch_size = 7\n[queue]\nname = "toml"\nurl = "amqp://toml"\n[queue.limits]\na = 1')
    settings = load(QueueSettings, {"queue_name": "flag", "batch_size": 9}, config, "queue")
    assert (settings.name, settings.url.get_secret_value(), settings.limits) == ("flag", "amqp://toml", {"a": 1})
    (tmp_path / "url").write_text("amqp://file")
    monkeypatch.setenv("OUTBOX_QUEUE_URL_FILE", str(tmp_path / "url"))
    assert load(QueueSettings, {}, config, "queue").url.get_secret_value() == "amqp://file"
    monkeypatch.setenv("OUTBOX_QUEUE_URL", "amqp://environment")
    monkeypatch.setenv("OUTBOX_QUEUE_LIMITS", '{"b": 2}')
    settings = load(QueueSettings, {}, config, "queue")
    assert (settings.url.get_secret_value(), settings.limits) == ("amqp://environment", {"b": 2})
    assert relay(config).batch_size == 7, "its section is none of the relay's business"


def test_what_is_wrong_with_a_publishers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(cls=QueueSettings) == "--queue-url (OUTBOX_QUEUE_URL): is not set"
    monkeypatch.setenv("OUTBOX_QUEUE_LIMITS", "{")
    assert "OUTBOX_QUEUE_" in refusal(cls=QueueSettings, queue_url=URL)


def test_unknown_names_in_toml_are_refused_with_a_hint(config: Path) -> None:
    config.write_text("batch-size = 3")
    assert refusal(config) == f"{config}: unknown setting 'batch-size'; did you mean 'batch_size'?"
    config.write_text("schema_name = 'app'")
    assert "did you mean 'schema'?" in refusal(config)
    config.write_text("[queue]\nurl = 'x'\nqqq = 1")
    assert f"{config}, [queue]: unknown setting 'qqq'; known are limits, name, url" in refusal(config, QueueSettings)
    config.write_text("queue = 3")
    assert "has to be a table" in refusal(config, QueueSettings)
    config.write_text("[quue]\nurl = 'x'\n[route]")
    with pytest.raises(ConfigurationError, match=r"unknown section \[quue\]; did you mean 'queue'\?"):
        refuse_unknown_sections(config, ["queue", "route"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "--config (OUTBOX_CONFIG)" in refusal(tmp_path / "none.toml")


def test_every_setting_of_the_engine_is_handed_over() -> None:
    given = {
        "target": "memory",
        "outbox": ("a", "b"),
        "batch_size": 1,
        "concurrency": 2,
        "lease": 3.0,
        "poll": 4.0,
        "max_attempts": 5,
        "backoff_min": 6.0,
        "backoff_max": 7.0,
        "grace": 8.0,
        "startup_timeout": 9.0,
        "take_over": True,
    }
    config = wiring.engine_config(relay(**given), drain=True)
    assert config.outboxes == ("a", "b")
    assert config.drain
    assert {name: getattr(config, name) for name in given if name != "outbox"} == {
        name: value for name, value in given.items() if name != "outbox"
    }


def test_names_of_settings() -> None:
    names = {setting.field: (setting.flag, setting.env) for setting in settings_of(RelaySettings)}
    assert names["schema_name"] == ("--schema", "OUTBOX_SCHEMA")
    assert names["batch_size"] == ("--batch-size", "OUTBOX_BATCH_SIZE")
    publisher = {setting.field: (setting.flag, setting.env) for setting in settings_of(QueueSettings)}
    assert publisher["name"] == ("--queue-name", "OUTBOX_QUEUE_NAME")
