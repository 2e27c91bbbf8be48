"""mypy agrees with event_api.py: the types it asserts, and every mistake that it marks."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def mypy(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=170)


@pytest.mark.slow
def test_the_public_api_has_the_types_it_promises() -> None:
    """Strict mode reports an unused `type: ignore`, so a mistake that passes is a failure here."""
    done = mypy(HERE / "event_api.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_mistake_is_not_overlooked(tmp_path: Path) -> None:
    """Or the test above would also pass if mypy saw no types at all."""
    path = tmp_path / "wrong.py"
    path.write_text('from outbox import OutboxEvent\n\nOutboxEvent(topic="t", type="T").topic + 1\nx: int = "y"\n')
    done = mypy(path)
    assert done.returncode == 1
    assert 'wrong.py:3: error: Unsupported operand types for + ("str" and "int")' in done.stdout
