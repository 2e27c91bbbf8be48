"""The composition root: the only place that knows every concrete part and puts them together."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from outbox.database import make_engine
from outbox.errors import ConfigurationError, MissingExtra
from outbox.store import Store
from relays.engine import Config
from relays.publishers import Options, Plugin, Publisher
from relays.routing import Routes
from relays.settings import RelaySettings
from relays.sources import load, refuse_unknown_sections, settings_of
from relays.supervisor import Relay

__all__ = ["engine_config", "foreign_options", "known_targets", "make_publisher", "make_relay"]

GROUP = "outbox.publishers"


def known_targets() -> list[str]:
    """What `--target` takes here: the names of the installed entry points."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def foreign_options(flags: Mapping[str, object], target: str | None) -> list[str]:
    """Those of the given options that belong to another target than this one, as they are written."""
    known = known_targets()
    others = tuple(f"{name}_" for name in known if name != target and target in known)
    return ["--" + name.replace("_", "-") for name in flags if name.startswith(others)]


def make_publisher(settings: RelaySettings, flags: Mapping[str, object], config: Path | None) -> Publisher:
    """The publisher of `settings.target`, not connected yet.

    Raises ConfigurationError for a target that is unknown or whose settings are wrong, MissingExtra for one whose
    packages are not installed.
    """
    target = _target(settings)
    plugin = _load_plugin(target)
    options = Options(
        concurrency=settings.concurrency,
        routes=Routes(settings.route),
        key_window=settings.key_window,
        on_unroutable=settings.on_unroutable,
    )
    return plugin.make(load(plugin.settings, flags, config, target), options)


def engine_config(settings: RelaySettings, *, drain: bool = False) -> Config:
    """What the engine needs of the settings."""
    return Config(
        target=_target(settings),
        outboxes=settings.outbox,
        batch_size=settings.batch_size,
        concurrency=settings.concurrency,
        lease=settings.lease,
        poll=settings.poll,
        max_attempts=settings.max_attempts,
        backoff_min=settings.backoff_min,
        backoff_max=settings.backoff_max,
        grace=settings.grace,
        startup_timeout=settings.startup_timeout,
        drain=drain,
        take_over=settings.take_over,
    )


def make_relay(
    settings: RelaySettings, flags: Mapping[str, object], config: Path | None, *, drain: bool = False
) -> Relay:
    """A relay that has not connected to anything yet. Raises ConfigurationError for settings that are wrong."""
    refuse_unknown_sections(config, [*known_targets(), *(setting.key for setting in settings_of(RelaySettings))])
    publisher = make_publisher(settings, flags, config)
    engine = make_engine(settings.url, application_name="outbox-relay")
    return Relay(engine_config(settings, drain=drain), Store(settings.naming), publisher, engine)


def _target(settings: RelaySettings) -> str:
    if settings.target is None:
        raise ConfigurationError(f"--target (OUTBOX_TARGET) is not set: one of {', '.join(known_targets())}")
    return settings.target


def _load_plugin(target: str) -> Plugin:
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if target not in found:
        raise ConfigurationError(
            f"--target (OUTBOX_TARGET): {target!r} is not known here: one of {', '.join(sorted(found))}"
        )
    entry = found[target]
    try:
        plugin = entry.load()
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in ("outbox", "relays"):
            raise
        raise MissingExtra(
            f"--target (OUTBOX_TARGET): {target} needs the package {error.name}: "
            f"pip install '{_distribution(entry)}[{target}]'"
        ) from error
    if not isinstance(plugin, Plugin):
        raise ConfigurationError(f"--target (OUTBOX_TARGET): {entry.value} is no relays.publishers.Plugin")
    return plugin


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "outbox-relay"
