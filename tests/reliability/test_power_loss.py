"""Power is lost at any write of the journal: what was acknowledged is there, whatever the disk kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.reliability.power_loss import Call, record, search


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call]]:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (apt-get install strace)")
    source = tmp_path_factory.mktemp("disk") / "source"
    source.mkdir()
    try:
        return source, record(source, appends=90)
    except RuntimeError as error:
        pytest.skip(f"this machine lets no process be traced: {error}")


def test_nothing_acknowledged_is_lost(traced: tuple[Path, list[Call]], tmp_path: Path) -> None:
    source, calls = traced
    assert search(calls, source, tmp_path / "image", images=150, seed=1) == []


@pytest.mark.nightly
def test_nothing_acknowledged_is_lost_at_any_write(traced: tuple[Path, list[Call]], tmp_path: Path) -> None:
    source, calls = traced
    assert search(calls, source, tmp_path / "image", images=10_000, seed=2) == []


def test_a_journal_that_is_not_synced_is_found_out(traced: tuple[Path, list[Call]], tmp_path: Path) -> None:
    """The check itself: the same writes without their syncs."""
    source, calls = traced
    lazy = [call for call in calls if call.name != "sync"]
    assert search(lazy, source, tmp_path / "image", images=10, seed=1)
