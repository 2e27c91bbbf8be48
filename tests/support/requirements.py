"""What happens when a test needs something that this machine does not have."""

import os
from typing import NoReturn

import pytest

__all__ = ["in_ci", "unavailable"]


def in_ci() -> bool:
    """Whether a missing server is a failure: CI has to run everything."""
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


def unavailable(reason: str) -> NoReturn:
    """Skip the test, saying what is missing; in CI fail."""
    if in_ci():
        pytest.fail(f"{reason} (a test that can't run is a failure in CI)", pytrace=False)
    pytest.skip(reason)
