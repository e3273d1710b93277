"""Real processes, real sockets: join, grow, shrink, lose, finish; and the result of a static run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from malletrain.loop.membership.machine import JobMachine
from malletrain.loop.membership.next_world import JobTerms
from tests.elastic.coordinator import JOB, another, last_generation, running
from tests.elastic.digits import (
    DIGITS,
    EPOCHS,
    SCRIPT,
    Line,
    State,
    Static,
    assert_equal,
    assert_every_sample_once,
    diary,
    run_alone,
    slow,
    wait_lines,
)
from tests.waiting import wait_until


def mains(directory: Path) -> list[str]:
    """Those that became the main worker, one after the other."""
    return (directory / "mains").read_text().splitlines()


def test_grows_shrinks_and_finishes_like_a_static_run(tmp_path: Path, static: Static) -> None:
    options = slow(tmp_path)
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0,), [SCRIPT, *options])
        pod.grow(daemon, (1, 2, 3), [SCRIPT, *options])
        daemon.leave(0)
        daemon.leave(2)
        daemon.wait_world([1, 3])
        assert pod.wait(0) == 143
        assert pod.wait(2) == 143
        pod.finish(1, 3)
        daemon.wait_seen("job_completed")
        assert daemon.told("job_completed")[0]["result"]["samples"] == int(EPOCHS) * DIGITS
        assert len(daemon.seen("worker_left")) >= 2
        assert not daemon.seen("worker_lost")
        assert daemon.events[0].job == JOB
    assert mains(tmp_path)[0] == "0.0" and mains(tmp_path)[1:] in (["1.0"], ["3.0"]), "once each, and on no other"
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    static.assert_like(tmp_path)


def test_survives_the_loss_of_a_worker(tmp_path: Path, static: Static) -> None:
    options = slow(tmp_path)
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, range(4), [SCRIPT, *options])
        pod.kill_after_a_step(1)
        daemon.wait_world([0, 2, 3], 90)
        pod.kill_after_a_step(0)
        daemon.wait_world([2, 3], 90)
        pod.finish(2, 3)
        lost = {event.pilot for event in daemon.seen("worker_lost")}
        assert lost == {"100_0", "100_1"}
    assert mains(tmp_path)[-1] in ("2.0", "3.0") and len(set(mains(tmp_path))) == len(mains(tmp_path))
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    static.assert_like(tmp_path)


def test_resumes_after_all_nodes_are_gone(tmp_path: Path, static: Static) -> None:
    options = slow(tmp_path)
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0, 1), [SCRIPT, *options])
        wait_lines(tmp_path, 20, 90, "some steps")
        daemon.leave(0)
        daemon.leave(1)
        assert pod.wait(0) == pod.wait(1) == 143
        (saved,) = [each["saved"] for each in daemon.told("worker_left") if each.get("saved")]
        assert Path(saved).stat().st_mode & 0o777 == 0o700
        before = max(line["step"] for line in diary(tmp_path))
        pod.spawn(daemon.url, 1, [SCRIPT, *options], restart=1)
        daemon.wait_world([1])
        pod.finish(1)
        after = [line["step"] for line in diary(tmp_path) if line["step"] > before]
        assert min(after) == before + 1
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    static.assert_like(tmp_path)
    assert not (tmp_path / "checkpoints").exists(), "a finished job leaves no checkpoint behind"


@pytest.mark.parametrize("urgent", [False, True])
def test_what_is_trained_is_saved_where_the_next_world_has_newcomers_alone(tmp_path: Path, urgent: bool) -> None:
    """A daemon plans one when it has not heard that a worker began by itself."""
    script = [SCRIPT, *slow(tmp_path)]
    with running(tmp_path, JobTerms(max_nodes=1)) as (daemon, pod):
        pod.begin(daemon, (0,), script)
        pod.spawn(daemon.url, 1, script)
        wait_until(lambda: len(daemon.seen("worker_warm")) == 2, 90, "a newcomer")
        wait_lines(tmp_path, 3, 90, "some steps")
        with daemon.lock:
            job = daemon.membership.job(JOB)
            assert isinstance(job, JobMachine)
            job.publish((job.workers["100_1.0"].seat,), "without whoever trains", urgent=urgent)
        daemon.gate.tick()
        assert pod.wait(0) == 143
        assert Path(daemon.told("worker_left")[0]["saved"]).name.startswith("step-")


def test_when_all_are_killed_at_once_the_last_checkpoint_is_taken_up(tmp_path: Path, static: Static) -> None:
    """There is no time to save: what is lost is what was done since the last one beside training."""
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0, 1), [SCRIPT, *slow(tmp_path), "--checkpoint-s", "0.5"])
        wait_until(lambda: len(list((tmp_path / "checkpoints").glob("step-*"))) == 2, 60, "two checkpoints")
        for task in (0, 1):
            pod.kill(task)
        made = max(line["step"] for line in diary(tmp_path))
        pod.spawn(daemon.url, 2, [SCRIPT, *slow(tmp_path)])
        daemon.wait_world([2])
        pod.finish(2)
    first = min(line["step"] for line in diary(tmp_path) if line["task"] == "2")
    assert 1 < first <= made + 1
    static.assert_like(tmp_path)


@pytest.mark.parametrize("behind", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_trains_on_through_a_restart_of_the_daemon(tmp_path: Path, static: Static, behind: int) -> None:
    """Its database may be of some generations ago: it goes on with higher numbers."""
    options = slow(tmp_path)
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0,), [SCRIPT, *options])
        pod.grow(daemon, (1, 2), [SCRIPT, *options])
        last = last_generation(daemon)[JOB]
        daemon.stop()
        wait_lines(tmp_path, 20, 90, "steps without a daemon")
        with another({JOB: last - behind}, daemon.port) as again:
            again.wait_world([0, 1, 2], 90)
            assert behind or not again.seen("generation"), "a restart of the daemon disturbs no worker"
            pod.grow(again, (3,), [SCRIPT, *options])
            assert min(data["generation"] for data in again.told("generation")) > last
            wait_lines(tmp_path, 8, 90, "steps of four: who is in its first, slow one does not check in within 2 s")
            pod.kill(2)
            again.wait_world([0, 1, 3], 90)
            pod.finish(0, 1, 3)
    static.assert_like(tmp_path)


def test_a_worker_that_has_finished_waits_for_the_daemon_to_hear_of_it(tmp_path: Path, static: Static) -> None:
    """Its training was done again: it ended after ten seconds of a daemon's absence, as finished, and unheard."""
    options = slow(tmp_path)
    with running(tmp_path) as (daemon, pod):
        for task in (0, 1):
            pod.spawn(daemon.url, task, [SCRIPT, *options])
            daemon.wait_world(range(task + 1))
        generations = last_generation(daemon)
        daemon.stop()
        (tmp_path / "go").touch()
        wait_until((tmp_path / "final.pt").exists, 60, "the end of training")
        assert pod.wait(1) == 0, "one that has nothing to report ends"
        with pytest.raises(AssertionError, match="has not ended within 12 s"):
            pod.wait(0, 12)
        with another(generations, daemon.port) as again:
            assert pod.wait(0) == 0
            again.wait_seen("job_completed")
    static.assert_like(tmp_path)


#: Ways to train and of summing, and how near the result is. Those of the second list are tried nightly.
WAYS: list[tuple[list[str], dict[str, str], float]] = [
    (["--shards", "5", "--batch", "60"], {}, 1e-12),  # BatchNorm and dropout, by virtual shards
    (["--norm"], {}, 1e-10),  # BatchNorm over the whole batch
    ([], {"STANDIN": "20"}, 1e-12),  # over a device, connected beside training
    ([], {"STANDIN": "2", "STANDIN_HANGS": "2"}, 1e-12),  # and connected at a boundary, where that hangs
]
NIGHTLY_WAYS: list[tuple[list[str], dict[str, str], float]] = [
    (["--norm", "--sum"], {}, 1e-10),
    (["--optimizer", "adamw"], {}, 1e-8),  # near zero roots of second moments make much of rounding
]


@pytest.mark.parametrize(
    ("how", "environ", "tolerance"),
    [*WAYS, *(pytest.param(*way, marks=pytest.mark.nightly) for way in NIGHTLY_WAYS)],
    ids=str,
)
def test_other_ways_to_train_are_like_a_static_run_too(
    tmp_path: Path, static: Static, how: list[str], environ: dict[str, str], tolerance: float
) -> None:
    script = [SCRIPT, *slow(tmp_path), *how]
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0, 1), script, 0, **environ)
        pod.grow(daemon, (2, 3), script, **environ)
        wait_lines(tmp_path, 8, 90, "some steps")
        pod.kill_between_steps(1)  # in the midst of a commit, others may miss the round, and leave too
        daemon.leave(2)
        daemon.wait_world([0, 3], 90)
        pod.finish(0, 3)
    static.assert_like(tmp_path, "--epochs", EPOCHS, *how, tolerance=tolerance)


def test_members_without_a_sample_take_no_part_in_the_statistics(tmp_path: Path, static: Static) -> None:
    """Batches of three on four workers: one of them computes on a sample of weight 0. (Few steps: BatchNorm over
    three samples makes much of rounding.)"""
    options = ["--norm", "--batch", "3", "--samples", "45", "--epochs", "1"]
    with running(tmp_path) as (daemon, pod):
        for task in range(4):
            pod.spawn(daemon.url, task, [SCRIPT, *slow(tmp_path), *options, "--wait-for", "4"])
        wait_until(lambda: any(line["size"] == 4 for line in diary(tmp_path)), 60, "a step of four")
        pod.finish(*range(4))
    static.assert_like(tmp_path, *options, tolerance=1e-9)


def replayed(directory: Path, lines: list[Line], *options: str) -> State:
    """The same script in one process, with the batches of these lines."""
    directory.mkdir()
    batches = {line["step"]: line["batch"] for line in lines}
    assert sorted(batches) == list(range(1, len(batches) + 1))
    (directory / "batches").write_text(json.dumps([batches[step] for step in sorted(batches)]))
    return run_alone(directory, SCRIPT, *options, "--replay", str(directory / "batches"))


def test_the_daemon_chooses_the_batch_with_the_world(tmp_path: Path) -> None:
    """The daemon's choice takes effect with the next generation, on every member after the same step."""
    script = [SCRIPT, "--batches", *slow(tmp_path)]
    with running(tmp_path) as (daemon, pod):
        daemon.gate.choose_batches(JOB, ((1, 16), (3, 64), (4, 4096)))
        pod.begin(daemon, (0,), script)
        wait_until(lambda: len(diary(tmp_path)) > 3, 60, "steps alone")
        pod.grow(daemon, (1, 2), script)
        wait_until(lambda: any(line["size"] == 3 for line in diary(tmp_path)), 60, "a step of three")
        pod.grow(daemon, (3,), script)
        wait_until(lambda: any(line["size"] == 4 for line in diary(tmp_path)), 60, "a step of four")
        pod.kill_after_a_step(2)
        daemon.wait_world([0, 1, 3], 90)
        wait_lines(tmp_path, 3, 60, "steps of three")
        pod.finish(0, 1, 3)
        reported = [data.get("noise_scale") for data in daemon.told("samples")]
        told = {len(data["members"]): data.get("batch") for data in daemon.told("generation")}
    lines = diary(tmp_path)
    # Two may be there for a moment, and the step in which one was killed is repeated by three with its own batch.
    passing = {(2, 16), (3, 128)}
    assert {(line["size"], line["batch"]) for line in lines} - passing == {(1, 16), (3, 64), (4, 128)}, "128: high"
    assert told[1] == 16 and told[3] == 64 and told[4] == 4096
    assert_every_sample_once(lines, int(EPOCHS))
    noises = {(line["step"], line["noise"]) for line in lines}
    assert len(noises) == len(dict(noises)), "alike on all workers"
    assert any(noise is not None and noise > 0 for noise in reported), "the noise scale is reported"
    alone = replayed(tmp_path / "replayed", lines, "--batches", "--epochs", EPOCHS)
    assert_equal(torch.load(tmp_path / "final.pt"), alone, 1e-12)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)])
def test_a_compiled_model_takes_every_share_without_recompiling(tmp_path: Path, static: Static, backend: str) -> None:
    """It is compiled during the warm-up, and never during training."""

    def shares() -> set[int]:
        return {len(line["indices"]) for line in diary(tmp_path)}

    script = [SCRIPT, "--compiled", backend, "--batch", "50", "--held", *slow(tmp_path)]
    with running(tmp_path) as (daemon, pod):
        for task in range(3):
            pod.spawn(daemon.url, task, script, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / f"cache-{task}"))
        wait_until(lambda: len(list(tmp_path.glob("here-*"))) == 3, 120, "three workers are built")
        (tmp_path / "start-0.0").touch()
        daemon.wait_world([0], 120)
        wait_until(lambda: len(diary(tmp_path)) > 3, 60, "steps alone")
        (tmp_path / "start-1.0").touch()
        (tmp_path / "start-2.0").touch()
        daemon.wait_world([0, 1, 2], 120)
        wait_until(lambda: shares() >= {16, 17}, 60, "a whole step of three")
        pod.kill(0)
        daemon.wait_world([1, 2], 90)
        wait_lines(tmp_path, 3, 60, "steps of two")
        pod.finish(1, 2)
    assert shares() >= {50, 17, 16, 25, 24}, "shares of three sizes"
    static.assert_like(tmp_path, "--batch", "50", "--epochs", EPOCHS, tolerance=1e-10)


@pytest.mark.nightly
def test_a_newcomer_can_be_ended_while_it_compiles(tmp_path: Path) -> None:
    script = [SCRIPT, "--compiled", "aot_eager", "--batch", "50", *slow(tmp_path)]
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0,), script)
        pod.spawn(daemon.url, 1, script, TROUBLE="term@compile")
        assert pod.wait(1, 120) == 143
        assert (tmp_path / "here-1.0").exists(), "it ended in the rehearsal, not before"
        wait_lines(tmp_path, 3, 60, "steps of the other")
        assert daemon.world() == ("100_0",)
        pod.finish(0)
