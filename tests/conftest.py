"""What every test shares: a strict process, double precision on request, the real data."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import HealthCheck, settings

# Much of the time of the tests is compiling: the workers, the processes that tests start, and
# later runs share what was compiled.
CACHE: dict[str, Any] = {
    "jax_compilation_cache_dir": str(Path(__file__).parent.parent / ".pytest_cache" / "xla"),
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
for name, value in CACHE.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)

# A test of algebra runs each program once, on little data: here LLVM optimises less, which is a
# quarter of the time. Tests that start processes (the README, every experiment, the demo, killed
# fits) run as users do; so does all with JAX_DISABLE_MOST_OPTIMIZATIONS=0.
if "JAX_DISABLE_MOST_OPTIMIZATIONS" not in os.environ:
    jax.config.update("jax_disable_most_optimizations", True)

# Tracing and compiling take longer than hypothesis's default deadline, and differ run to run.
settings.register_profile(
    "onebasin",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("onebasin")


# The tests of PyTorch modules need PyTorch; `make test-torch` installs it and runs them.
collect_ignore = [] if "ONEBASIN_TEST_TORCH" in os.environ else ["pytorch"]

# Few tests, long ones: begun last, they would leave one worker alone at the end.
LONGEST = ("test_experiments_xiao", "test_experiments_rossi", "test_readme", "test_fit_resume")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    if not os.environ.get("ONEBASIN_DATA"):
        for item in items:
            if item.get_closest_marker("real_data"):
                item.add_marker(pytest.mark.skip(reason="ONEBASIN_DATA is not set"))


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


@pytest.fixture
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that name their folders themselves, and their own server."""
    monkeypatch.delenv("ONEBASIN_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
