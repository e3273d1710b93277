"""Faults on a real Slurm (docs/reliability.md): every job ends as its static run does, and nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.chaos.__main__ import play
from scripts.chaos.laws import Outcome
from scripts.lab import UsageError

pytestmark = pytest.mark.slurm


def played(directory: Path, *, minutes: float = 0.0, seed: int = 0, crash_points: int = 0) -> Outcome:
    try:
        found = play(minutes, seed, crash_points, 4, directory)
    except UsageError as error:
        pytest.skip(f"no Slurm lab here: {error}")
    for at, what in found.faults:
        print(f"{at:.1f} s {what}")
    print(found.summary())
    return found


def test_faults_of_all_kinds(lab_directory: Path) -> None:
    found = played(lab_directory, minutes=0.3, seed=4, crash_points=2)
    assert found.broken == []
    assert found.jobs >= 2
    assert len(found.faults) >= 1
    assert found.crashes


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_twenty_minutes_of_faults(lab_directory: Path, seed: int) -> None:
    assert played(lab_directory, minutes=20.0, seed=seed).broken == []


@pytest.mark.nightly
def test_three_hundred_crash_points(lab_directory: Path) -> None:
    assert played(lab_directory, crash_points=300).broken == []
