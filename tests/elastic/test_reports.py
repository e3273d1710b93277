"""What leaves the job tells only of steps that stand at every member."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from malletrain.domain.event import EventKind
from tests.elastic.coordinator import running
from tests.elastic.digits import DIGITS, SCRIPT, diary
from tests.world import data_of

EPOCHS, BATCH = 3, 64


def test_a_figure_is_heard_once_and_not_before_its_step_is_done_everywhere(tmp_path: Path) -> None:
    options = ["--epochs", str(EPOCHS), "--report", "--step-seconds", "0.1", "--slow-until", str(tmp_path / "go")]
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, range(4), [SCRIPT, *options])
        daemon.leave(0)
        daemon.wait_world([1, 2, 3])
        pod.kill_after_a_step(1)
        daemon.wait_world([2, 3])
        pod.finish(2, 3)
        heard = []
        for event in daemon.seen(EventKind.METRIC):
            value = data_of(event)["value"]
            assert isinstance(value, int | float)
            heard.append((event.at, int(value)))
    done_at: dict[int, float] = {}
    for line in diary(tmp_path):
        # (A worker alone has committed its step when it reports it, which is before it writes it down.)
        if line["size"] > 1:
            done_at[line["step"]] = max(done_at.get(line["step"], 0.0), line["at"])
    early = [step for at, step in heard if at < done_at.get(step, 0.0)]
    assert len(early) <= 1, f"{early}: but for the step after which the main worker left"
    times = Counter(step for _, step in heard)
    assert set(times.values()) == {1}
    steps = EPOCHS * -(-DIGITS // BATCH)
    lost = set(range(1, steps + 1)) - set(times)
    assert len(lost) <= 2, f"{lost}: but for what the main worker held, and was telling, when it was killed"
