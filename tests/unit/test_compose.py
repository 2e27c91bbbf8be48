"""docker-compose.yml and the Dockerfile, as far as they can be checked without a container engine."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from relays.publishers.rabbitmq import RabbitMQSettings
from relays.publishers.sqs import SQSSettings
from relays.settings import RelaySettings
from relays.sources import load, settings_of
from relays.wiring import make_relay

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
RELAYS = [name for name, service in SERVICES.items() if "OUTBOX_TARGET" in service.get("environment", {})]
SETTINGS: list[type[BaseSettings]] = [RelaySettings, RabbitMQSettings, SQSSettings]


def environment(service: str) -> dict[str, str]:
    """What the service's processes see when nothing is set outside."""
    values = SERVICES[service].get("environment", {})
    return {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in values.items()}


def dockerfile(instruction: str) -> list[str]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return re.findall(rf"^{instruction} (.*)$", text, flags=re.MULTILINE)


def test_it_fits_the_schema_of_the_compose_specification() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    run = subprocess.run(check, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_in_it_exists(service: str) -> None:
    known = {setting.env for cls in SETTINGS for setting in settings_of(cls)}
    known |= {f"{setting.env}_FILE" for cls in SETTINGS for setting in settings_of(cls) if setting.secret}
    assert {name for name in environment(service) if name.startswith("OUTBOX_")} <= known


@pytest.mark.parametrize("service", RELAYS)
def test_a_relay_accepts_its_environment(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(service).items():
        monkeypatch.setenv(name, value)
    settings = load(RelaySettings, {}, None, None)
    make_relay(settings, {}, None)
    assert settings.target == service.removeprefix("relay-")
    assert SERVICES[service]["stop_grace_period"] == f"{settings.grace + 10:g}s"


def test_there_is_a_relay_for_each_broker_with_an_outbox_of_its_own() -> None:
    assert sorted(RELAYS) == ["relay-rabbitmq", "relay-sqs"]
    assert len({environment(name)["OUTBOX_OUTBOX"] for name in RELAYS}) == len(RELAYS)


@pytest.mark.parametrize("service", SERVICES)
def test_what_a_service_waits_for_can_be_waited_for(service: str) -> None:
    for name, wanted in SERVICES[service].get("depends_on", {}).items():
        if wanted["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[name]
        else:
            assert wanted["condition"] == "service_completed_successfully"
            assert SERVICES[name]["restart"] == "no"


def test_the_image_runs_the_relay_itself_and_not_as_root() -> None:
    assert json.loads(dockerfile("ENTRYPOINT")[-1]) == ["outbox-relay"]
    assert int(dockerfile("USER")[-1].split(":")[0]) > 0


def test_the_image_is_built_from_files_that_are_there_and_not_ignored() -> None:
    copied = [words[:-1] for words in map(str.split, dockerfile("COPY")) if not words[0].startswith("--from")]
    sources = {name for names in copied for name in names}
    assert all((ROOT / name).exists() for name in sources)
    allowed = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE)
    assert sources == set(allowed)
