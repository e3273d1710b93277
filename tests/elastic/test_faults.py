"""What goes wrong in the middle: frozen peers, newcomers that die at each stage, members that miss a round."""

from __future__ import annotations

import itertools
import re
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.elastic.coordinator import running
from tests.elastic.digits import EPOCHS, SCRIPT, Static, diary, slow
from tests.waiting import wait_until


@pytest.mark.alone  # how long it takes to be found
def test_a_frozen_peer_is_found_and_left_behind(tmp_path: Path, static: Static) -> None:
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, range(3), [SCRIPT, *slow(tmp_path)])
        wait_until(lambda: len(diary(tmp_path)) >= 5, 60, "some steps of the three")
        pod.kill(1, signal.SIGSTOP)
        frozen_at = time.monotonic()
        daemon.wait_world([0, 2], 90)
        took = time.monotonic() - frozen_at
        steps = sorted({line["at"] for line in diary(tmp_path)})
        normal = sorted(b - a for a, b in itertools.pairwise(steps))[len(steps) // 2]
        assert took < max(5.0, 10 * normal) + 10.0
        pod.kill(1, signal.SIGCONT)
        assert pod.wait(1) == 143, "it learns that it was given up, and ends"
        pod.finish(0, 2)
        assert [event.pilot for event in daemon.seen("worker_lost")] == ["100_1"]
    static.assert_like(tmp_path)


@pytest.mark.parametrize("rounds", [10, 29], ids=["in a step", "in an evaluation"])
def test_a_member_that_missed_a_round_leaves_and_the_others_go_on(
    tmp_path: Path, static: Static, rounds: int
) -> None:
    """29 steps make an epoch; then come its evaluation's rounds. Steps are slow until the three train together, which
    is before the tenth."""
    go = tmp_path / "go"
    given = ["--epochs", "6", "--evaluate", "--wait-for", "3", "--step-seconds", "1", "--slow-until", str(go)]
    with running(tmp_path, check_in_s=20.0, arrive_s=20.0, reconnect_s=30.0) as (daemon, pod):
        for task, lag in enumerate(({}, {"LAG_AT": str(rounds)}, {})):
            pod.spawn(daemon.url, task, [SCRIPT, *given], 0, **lag)
        daemon.wait_world([0, 1, 2])
        go.touch()
        assert [pod.wait(task) for task in range(3)] == [0, 143, 0], pod.logs()
        assert "missed a round" in pod.log(1)
        assert not daemon.seen("worker_lost")
        assert [event.pilot for event in daemon.seen("worker_left")][:1] == ["100_1"]
    static.assert_like(tmp_path, "--epochs", "6", "--evaluate")


@pytest.mark.parametrize(
    ("options", "environ", "says"),
    [
        (["--fail", "in a step:15"], {}, "RuntimeError: made to"),
        ([], {"TROUBLE": "memory@backward#9"}, "OutOfMemoryError: CUDA"),
        ([], {"STANDIN_FAILS": "60"}, "ElasticError: cuda:0 .* CUDA error: .* Xid"),
    ],
    ids=["exception", "out of memory", "the device is lost"],
)
def test_a_worker_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, static: Static, options: list[str], environ: dict[str, str], says: str
) -> None:
    script = [SCRIPT, *slow(tmp_path), "--wait-for", "3"]
    with running(tmp_path) as (daemon, pod):
        for task, more in enumerate(({}, environ, {})):
            pod.spawn(daemon.url, task, script + options * (task == 1), 0, STANDIN="20", **more)
        reason = daemon.wait_seen("worker_lost").reason
        daemon.wait_world([0, 2])
        pod.finish(0, 2)
        assert pod.wait(1) not in (0, 143)
    assert re.search(rf"100_1\.0: {says}", reason), reason
    # The others may have committed the step in which the device was lost, with this worker's part of it.
    static.assert_like(tmp_path)


@pytest.mark.parametrize(
    ("flip", "said"),
    [
        ({"FLIP_AT": "15"}, "100_1.0 has another 0.weight"),
        # The highest bit of the exponent: -1e-3 becomes -1e305; the sum is finite, and what follows from it is not.
        ({"FLIP_GRADIENT_AT": "15:62"}, "not finite"),
    ],
    ids=["parameter", "gradient"],
)
def test_a_bit_that_flips_in_a_process_ends_the_job_and_nothing_of_it_is_saved(
    tmp_path: Path, flip: dict[str, str], said: str
) -> None:
    with running(tmp_path) as (daemon, pod):
        for task in range(3):
            pod.spawn(daemon.url, task, [SCRIPT, *slow(tmp_path)], 0, **(flip if task == 1 else {}))
        assert said in daemon.wait_seen("job_failed").reason
        assert [pod.wait(task) for task in range(3)] == [1, 1, 1]
    assert not list((tmp_path / "checkpoints").glob("step-*"))


def test_a_state_that_cannot_be_saved_is_told_and_the_nodes_are_given_back_at_once(tmp_path: Path) -> None:
    """A researcher's folder is full; here it cannot be made."""
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, range(2), [SCRIPT, *slow(tmp_path)])
        (tmp_path / "checkpoints").write_text("a file")
        for task in range(2):
            daemon.leave(task)
        assert pod.wait(0) == pod.wait(1) == 143
        assert daemon.seen("worker_lost") == []
        left = daemon.told("worker_left")
        assert len(left) == 2
        (said,) = [data["unsaved"] for data in left if "unsaved" in data]
        assert re.search(r"checkpoints/step-\d+: .*: ", said)


@pytest.mark.nightly
def test_a_flip_in_a_gradient_before_it_is_summed_is_in_all_replicas_alike(tmp_path: Path, static: Static) -> None:
    """No comparison of replicas can find it: what bounds it is the step itself. This is what the documents say."""
    with running(tmp_path) as (daemon, pod):
        for task, flipping in enumerate(({}, {"FLIP_GRADIENT_AT": "15:54"}, {})):
            pod.spawn(daemon.url, task, [SCRIPT, *slow(tmp_path)], 0, **flipping)
        daemon.wait_world([0, 1, 2])
        pod.finish(*range(3))
        assert daemon.seen("worker_lost") == []
    final, wanted = torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS)
    assert max(float((final[name] - wanted[name]).abs().max()) for name in wanted) > 1e-3, "it is in the result"


@pytest.mark.parametrize(
    ("place", "step", "workers"),
    [
        ("before training", 0, 1),
        ("between steps", 3, 1),
        ("before a step", 3, 1),
        ("in a step", 3, 1),
        ("in a step", 10, 2),
    ],
)
def test_an_exception_is_told_wherever_it_is_raised(tmp_path: Path, place: str, step: int, workers: int) -> None:
    with running(tmp_path) as (daemon, pod):
        for task in range(workers):
            pod.spawn(daemon.url, task, [SCRIPT, *slow(tmp_path), "--fail", f"{place}:{step}"])
        told = rf"RuntimeError: made to fail {place} \(train_digits.py:\d+\)"
        assert re.search(told, daemon.wait_seen("job_failed").reason)
        assert 0 not in [pod.wait(task) for task in range(workers)]
    kept = [path.name for path in (tmp_path / "checkpoints").glob("step-*")]
    assert workers == 2 or kept == (["step-3"] if step else [])


def test_a_worker_with_another_model_is_told_so(tmp_path: Path) -> None:
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0,), [SCRIPT, *slow(tmp_path)])
        for task, other in ((1, ["--width", "33"]), (2, ["--batch", "63"]), (3, ["--optimizer", "adamw"])):
            pod.spawn(daemon.url, task, [SCRIPT, *slow(tmp_path), *other])
            assert pod.wait(task) == 1
        for task, part in ((1, "model"), (2, "data set, batch"), (3, "optimizer")):
            assert re.search(rf"100_{task}\.0 .* 100_0\.0 .* {part}", pod.log(task))
        pod.finish(0)
        assert daemon.seen("job_completed")
