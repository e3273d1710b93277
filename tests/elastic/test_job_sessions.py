"""Several sessions in a job's script: folds and stages are those of a static run, whatever joins and is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.elastic.coordinator import HERE, Coordinator, run_together, running
from tests.elastic.digits import State, assert_equal, run_alone
from tests.waiting import wait_until

SCRIPT = str(HERE / "train_folds.py")
SESSIONS = 4


def steps(directory: Path, task: int | str) -> list[dict[str, Any]]:
    path = directory / f"steps-{task}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def in_session(directory: Path, task: int, number: int) -> int:
    return sum(line["session"] == number for line in steps(directory, task))


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> State:
    return run_alone(tmp_path_factory.mktemp("static"), SCRIPT)


def assert_complete(
    daemon: Coordinator, home: Path, tasks: list[int], static: State, *, all_lost: bool = False
) -> None:
    assert len(daemon.seen("job_completed")) == 1
    assert not daemon.seen("job_failed")
    for task in tasks:
        assert_equal(torch.load(home / f"final-{task}.pt"), static, 1e-12)
    # Code after the block runs also where the first step of a session is given up: its line says step 0.
    made = {(line["session"], line["step"]) for task in (0, 1, 2, 3) for line in steps(home, task)}
    begun = {(number, 0) for number in range(SESSIONS)}
    assert made - begun == {(number, step) for number in range(SESSIONS) for step in range(1, 21)}, "no step is lost"
    mains = [line.split()[0] for line in (home / "mains").read_text().splitlines()]
    assert sorted(set(mains)) == [str(number) for number in range(SESSIONS)], "the main worker's part is done"
    assert all_lost or len(mains) == SESSIONS, "the main worker's part is done once"


def test_folds_on_two_workers_with_a_join_and_a_kill(tmp_path: Path, static: State) -> None:
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0, 1), [SCRIPT, "--slow-in", "1"])
        wait_until(lambda: in_session(tmp_path, 0, 1) >= 1, 60, "a step of the second fold")
        pod.spawn(daemon.url, 2, [SCRIPT, "--slow-in", "1"])
        wait_until(lambda: in_session(tmp_path, 2, 1) >= 1, 60, "a step of the newcomer")
        assert not in_session(tmp_path, 2, 0), "it passes over the first fold"
        made = len(steps(tmp_path, 1))
        wait_until(lambda: len(steps(tmp_path, 1)) > made, 60, "the end of a step: in its round one could miss it")
        pod.kill(1)
        daemon.wait_world([0, 2])
        pod.finish(0, 2)
        assert_complete(daemon, tmp_path, [0, 2], static)


@pytest.mark.parametrize("session", [1, 3], ids=["between two sessions", "after the last"])
def test_the_main_worker_is_lost(tmp_path: Path, static: State, session: int) -> None:
    """Another one completes the job."""
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0, 1), [SCRIPT, "--die-after", str(session), "--slow-in", "1"])
        (tmp_path / "go").touch()
        ends = {task: pod.wait(task) for task in (0, 1)}
        assert sorted(ends.values()) == [-9, 0], pod.logs()
        assert_complete(daemon, tmp_path, [task for task, status in ends.items() if not status], static)


def test_one_that_joins_when_all_are_lost_passes_over_what_they_have_ended(tmp_path: Path, static: State) -> None:
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 1, [SCRIPT, "--hold"])
        wait_until(lambda: (tmp_path / "held").exists(), 60, "one that is about to join")
        pod.spawn(daemon.url, 0, [SCRIPT, "--die-after", "1"])
        assert pod.wait(0) == -9, pod.logs()
        pod.finish(1)
        assert not in_session(tmp_path, 1, 0) and not in_session(tmp_path, 1, 1)
        assert_complete(daemon, tmp_path, [1], static, all_lost=True)


def test_all_are_lost_and_the_job_goes_on_in_its_session(tmp_path: Path, static: State) -> None:
    with running(tmp_path) as (daemon, pod):
        for task in (0, 1):
            pod.spawn(daemon.url, task, [SCRIPT, "--die-after", "1", "--slow-in", "2"])
        wait_until(lambda: (tmp_path / "died").exists(), 60, "the first loss")
        other = 1 if "1 0" in (tmp_path / "mains").read_text().splitlines() else 0
        wait_until(lambda: in_session(tmp_path, other, 2) >= 1, 60, "a step of the third fold")
        pod.kill(other)
        pod.spawn(daemon.url, 2, [SCRIPT])
        assert pod.wait(2) == 0, pod.logs()
        assert not in_session(tmp_path, 2, 0) and not in_session(tmp_path, 2, 1)
        assert_complete(daemon, tmp_path, [2], static, all_lost=True)
    assert not list(tmp_path.glob(".malletrain/*")), "what was saved is removed"


def test_folds_of_processes_that_were_started_together(tmp_path: Path, static: State) -> None:
    statuses, text = run_together(tmp_path, [SCRIPT])
    assert statuses == [0, 0], text
    for each in ("0", "1"):
        assert_equal(torch.load(tmp_path / f"final-{each}.pt"), static, 1e-12)
