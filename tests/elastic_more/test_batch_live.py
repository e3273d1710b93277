"""A batch that follows the world, in real processes: equal to a run alone with the same batches."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from malletrain.domain.event import EventKind
from tests.elastic.coordinator import JOB, running
from tests.elastic.digits import Line, State, assert_equal, assert_every_sample_once, diary, run_alone, wait_lines
from tests.waiting import wait_until

HERE = Path(__file__).parent
SCRIPT = str(HERE / "train_live.py")


def replayed(directory: Path, lines: list[Line], *options: str) -> State:
    """Run the same script in one process with the batches recorded in the diaries."""
    home = directory / "replayed"
    home.mkdir()
    batches = {line["step"]: line["batch"] for line in lines}
    assert sorted(batches) == list(range(1, len(batches) + 1))
    (home / "batches.json").write_text(json.dumps([batches[step] for step in sorted(batches)]))
    return run_alone(home, SCRIPT, *options, "--replay", str(home / "batches.json"))


def test_the_daemon_chooses_the_batch_with_the_world(tmp_path: Path) -> None:
    """The daemon's choice takes effect with the next generation, on every member after the same step."""
    epochs = 8
    options = ["batches", "--rate", "sqrt", "--epochs", str(epochs)]
    slow = ["--step-seconds", "0.1", "--slow-until", str(tmp_path / "go")]
    with running(tmp_path) as (daemon, pod):
        daemon.gate.choose_batches(JOB, ((1, 16), (3, 64), (4, 4096)))
        pod.begin(daemon, (0,), [SCRIPT, *options, *slow])
        wait_until(lambda: len(diary(tmp_path)) > 3, 60, "steps alone")
        for task in (1, 2):
            pod.spawn(daemon.url, task, [SCRIPT, *options, *slow])
        daemon.wait_world([0, 1, 2])
        wait_until(lambda: any(line["size"] == 3 for line in diary(tmp_path)), 60, "a step of three")
        pod.spawn(daemon.url, 3, [SCRIPT, *options, *slow])
        daemon.wait_world([0, 1, 2, 3])
        wait_until(lambda: any(line["size"] == 4 for line in diary(tmp_path)), 60, "a step of four")
        pod.kill_after_a_step(2)
        daemon.wait_world([0, 1, 3], 90)
        wait_lines(tmp_path, 3, 60, "steps of three")
        pod.finish(0, 1, 3)
        reported = [data.get("noise_scale") for data in daemon.told(EventKind.SAMPLES)]
        told = {len(data["members"]): data.get("batch") for data in daemon.told(EventKind.GENERATION)}
    lines = diary(tmp_path)
    # Two may be there for a moment, and the step in which one was killed is repeated by three with its own batch.
    passing = {(2, 16), (3, 128)}
    assert {(line["size"], line["batch"]) for line in lines} - passing == {(1, 16), (3, 64), (4, 128)}, "128: high"
    assert told[1] == 16 and told[3] == 64 and told[4] == 4096
    assert_every_sample_once(lines, epochs)
    noises = {(line["step"], line["noise"]) for line in lines}
    assert len(noises) == len(dict(noises)), "alike on all workers"
    assert any(noise is not None and noise > 0 for noise in reported), "the noise scale is reported"
    assert_equal(torch.load(tmp_path / "final.pt"), replayed(tmp_path, lines, *options), 1e-12)
