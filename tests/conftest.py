"""What every test shares: a strict process, double precision on request, the real data."""

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, settings

# Tracing and compiling take longer than hypothesis's default deadline, and differ run to run.
settings.register_profile(
    "onebasin",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("onebasin")


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision for the length of one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def real_data() -> Path:
    """The folder with the publishers' own files."""
    folder = os.environ.get("ONEBASIN_DATA")
    if not folder:
        pytest.skip("ONEBASIN_DATA is not set")
    return Path(folder)
