"""The wheel that users install, and what importing the library costs them."""

import ast
import configparser
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path.relative_to(ROOT) for name in ("outbox", "relays") for path in (ROOT / name).rglob("*.py"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(ROOT)]
    run = subprocess.run(build, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return zipfile.ZipFile(next(target.glob("outbox_relay-*.whl")))


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    return next(wheel.read(path).decode() for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))


def test_the_wheel_holds_both_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"outbox", "relays"}
    assert {str(path) for path in MODULES} <= set(wheel.namelist())


def test_the_wheel_is_typed(wheel: zipfile.ZipFile) -> None:
    assert {"outbox/py.typed", "relays/py.typed"} <= set(wheel.namelist())


def test_the_wheel_carries_its_licence_and_description(wheel: zipfile.ZipFile) -> None:
    assert "MIT License" in metadata(wheel, "licenses/LICENSE")
    assert "Description-Content-Type: text/markdown" in metadata(wheel, "METADATA")


def test_the_wheel_declares_the_command_and_the_publishers(wheel: zipfile.ZipFile) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(metadata(wheel, "entry_points.txt"))
    assert dict(parser["console_scripts"]) == {"outbox-relay": "relays.cli:main"}
    publishers = {name: f"relays.publishers.{name}:plugin" for name in ("memory", "rabbitmq", "sqs")}
    assert dict(parser["outbox.publishers"]) == publishers


@pytest.mark.parametrize("module", ["outbox", "outbox.migrations"])
def test_importing_the_library_needs_no_broker_and_no_relay(module: str) -> None:
    code = f"import {module}, sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(run.stdout.split())
    assert "outbox" in loaded
    assert loaded.isdisjoint({"boto3", "botocore", "pika", "typer", "rich", "pydantic_settings", "moto", "relays"})


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_says_what_is_public_in_it(path: Path) -> None:
    """Their order, and that they exist, is the linter's business."""
    statements = ast.parse((ROOT / path).read_text()).body
    listed = [node for node in statements if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    assert len(listed) == int(any(isinstance(node, definitions) for node in statements))
