"""Habits of real scripts: each is right, or an error that names the line and the cure; alone as with others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from _pytest.mark.structures import ParameterSet

from tests.elastic.coordinator import HERE, Forked, outside_slurm, run_together, running
from tests.elastic.digits import assert_equal, run_alone
from tests.elastic.train_habits import HABITS, Kind
from tests.waiting import wait_until

SCRIPT = str(HERE / "train_habits.py")


def of(kind: Kind) -> list[str]:
    return [name for name, habit in HABITS.items() if habit.kind is kind]


def nightly(*habits: str) -> list[ParameterSet]:
    """Each takes half a minute of processor time, and its parts have tests of their own."""
    return [pytest.param(each, marks=pytest.mark.nightly) for each in habits]


#: Those that are tried at each change, and the others.
DAILY = [habit for habit in of(Kind.RIGHT) if HABITS[habit].daily]
LATER = [habit for habit in of(Kind.RIGHT) if not HABITS[habit].daily and not habit.startswith("meta_")]


def steps_of(directory: Path, task: int) -> list[str]:
    path = directory / f"steps-{task}"
    return path.read_text().splitlines() if path.exists() else []


def wait_for_steps(directory: Path, task: int, number: int) -> None:
    wait_until(lambda: len(steps_of(directory, task)) >= number, 60, f"step {number} of worker {task}")


def alone(folder: Path, habit: str) -> tuple[int, str]:
    """The exit status without a daemon, and what was printed."""
    log = folder / "alone.log"
    status = Forked(outside_slurm(MALLETRAIN_TEST_DIR=str(folder)), log, [SCRIPT, habit]).wait(180)
    return status, log.read_text()


@pytest.mark.parametrize("habit", of(Kind.ALONE))
def test_wrong_alone_as_on_the_cluster(habit: str, tmp_path: Path) -> None:
    status, text = alone(tmp_path, habit)
    assert status == 1, text
    assert_matches(HABITS[habit].said, text)


def assert_matches(pattern: str, text: str) -> None:
    assert re.search(pattern, text.replace("\n", " ")), text[-3000:]


@pytest.mark.parametrize("habit", of(Kind.TOGETHER))
def test_wrong_with_two_workers(habit: str, tmp_path: Path) -> None:
    statuses, text = run_together(tmp_path, [SCRIPT, habit, *HABITS[habit].options])
    assert statuses == [1, 1], text
    assert_matches(HABITS[habit].said, text)


@pytest.mark.parametrize("habit", of(Kind.JOINING))
def test_wrong_once_a_worker_joins(habit: str, tmp_path: Path) -> None:
    """In the middle of an epoch, which lasts minutes: a newcomer at its start may count like the others, by right."""
    script = [SCRIPT, habit, "--times", "200"]
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, script)
        wait_for_steps(tmp_path, 0, 3)
        pod.spawn(daemon.url, 1, script)
        assert pod.wait(0) == 1, pod.logs()
    assert_matches(HABITS[habit].said, pod.logs())


@pytest.mark.parametrize("habit", [*DAILY, *nightly(*LATER)])
def test_equal_over_changes_of_size(habit: str, tmp_path: Path) -> None:
    changes_of_size(tmp_path, habit)


def changes_of_size(folder: Path, habit: str, **trouble: str) -> str:
    """From one worker to three; the last is killed, or dies of its trouble; another joins. What all printed."""
    static = run_alone(folder / "static", SCRIPT, habit)
    with running(folder) as (daemon, pod):
        pod.spawn(daemon.url, 0, [SCRIPT, habit])
        wait_for_steps(folder, 0, 2)
        pod.spawn(daemon.url, 1, [SCRIPT, habit])
        pod.spawn(daemon.url, 2, [SCRIPT, habit], 0, **trouble)
        if not trouble:
            daemon.wait_world([0, 1, 2])
        wait_for_steps(folder, 2, 2)
        if not trouble:
            pod.kill(2)
        daemon.wait_world([0, 1])
        wait_for_steps(folder, 0, len(steps_of(folder, 0)) + 1)
        pod.grow(daemon, (3,), [SCRIPT, habit])
        pod.finish(0)
    assert_equal(torch.load(folder / "final.pt"), static, 1e-12)
    return pod.logs()


@pytest.mark.parametrize(
    "habit", ["gan", "gathered", "sum_gathered", "several_means", *nightly("weighted", "unfreezes", "all_reduces")]
)
def test_equal_with_three_processes_of_a_node(habit: str, tmp_path: Path) -> None:
    static = run_alone(tmp_path / "static", SCRIPT, habit)
    statuses, text = run_together(tmp_path, [SCRIPT, habit], 3)
    assert statuses == [0, 0, 0], text
    assert "statistical" not in text
    assert_equal(torch.load(tmp_path / "final.pt"), static, 1e-12)


def test_parameters_that_are_changed_at_the_end_to_save_them_are_right(tmp_path: Path) -> None:
    statuses, text = run_together(tmp_path, [SCRIPT, "meddles_at_the_end"])
    assert statuses == [0, 0], text


def test_other_parameters_at_the_end_are_an_error_where_no_worker_changed_them(tmp_path: Path) -> None:
    statuses, text = run_together(tmp_path, [SCRIPT, "meddles_in_the_last_step"])
    assert statuses == [1, 1], text
    assert_matches(r"after step 30 .* another 0.weight ", text)


def test_a_worker_that_joins_is_told_where_training_is(tmp_path: Path) -> None:
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, [SCRIPT, "joins"])
        wait_for_steps(tmp_path, 0, 3)
        pod.grow(daemon, (1,), [SCRIPT, "joins"])
        wait_for_steps(tmp_path, 1, 1)
        pod.finish(0)
    epoch, step = (tmp_path / "joined-1").read_text().split()
    assert int(step) >= 3
    assert int(epoch) == int(step) // 10
    assert not (tmp_path / "joined-0").exists()


@pytest.mark.parametrize("habit", ["exits", "exits_at_once"])
def test_a_script_that_ends_itself_has_not_completed(habit: str, tmp_path: Path) -> None:
    """It failed, with what to do instead; and its state is kept."""
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, [SCRIPT, habit])
        pod.wait(0)
        (failed,) = daemon.seen("job_failed")
        assert not daemon.seen("job_completed")
        assert re.search(r"without s.finish\(\).*s.agree\(", failed.reason)
        assert "after step 3 is kept" in pod.logs()
    status, text = alone(tmp_path, habit)
    assert status == 0
    assert text.count("without s.finish()") == 1 and "after step 3 " in text
