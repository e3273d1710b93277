"""Settings that every test shares."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import tests.kernels  # noqa: F401  before what loads NumPy

pytest_plugins = ["tests.slurm_fixtures"]  # lab, lab_factory, lab_directory: real Slurm

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

#: What turns by date, such as samples of long tables, is the same in all workers, and again where this is set.
os.environ.setdefault("MALLETRAIN_DAY", str(int(time.time() // 86400)))

settings.register_profile(
    "ci", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("nightly", max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run the long tests too")
    parser.addoption(
        "--release",
        choices=("own", "trixie", "forky"),
        help="only tests on real Slurm of this release (Debian's name)",
    )
    parser.addoption(
        "--half-until", metavar="FILE", help="every other worker runs tests only once there is this file"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """A worker that waits still gives tests to others (`--dist worksteal`)."""
    over, worker = item.config.getoption("--half-until"), os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    while over and int(worker.removeprefix("gw")) % 2 and not Path(over).exists():
        time.sleep(0.1)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files without a test of `-m "slurm ..."` or `-m "alone ..."`: to import all takes 10 s a process."""
    wanted = str(config.getoption("markexpr")).partition(" ")[0]
    if wanted not in ("slurm", "alone") or not collection_path.match("test_*.py"):
        return None
    return None if f"mark.{wanted}" in collection_path.read_text() else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    nightly, only = config.getoption("--nightly"), config.getoption("--release")
    if only is not None:
        kept = [item for item in items if _release(item) == only]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept
    long = pytest.mark.skip(reason="long: run with --nightly")
    other = pytest.mark.skip(reason="another release of Slurm: run with --nightly, or --release")
    for item in items:
        if "nightly" in item.keywords and not nightly:
            item.add_marker(long)
        elif only is None and not nightly and _release(item) not in (None, "own"):
            item.add_marker(other)


def _release(item: pytest.Item) -> str | None:
    """The release of Slurm that a test runs on; None for one on no real Slurm, or on the machine's alone."""
    mark = item.get_closest_marker("release")
    return None if mark is None else str(mark.args[0])


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The real logs, read-only; tests that need them skip where they are missing."""
    if not DATA.is_dir():
        pytest.skip(f"the real data sets are not at {DATA}")
    return DATA
