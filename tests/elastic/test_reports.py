"""What leaves the job: figures of steps that stand at every member, the pace of each, and windows of
undisturbed steps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from malletrain.elastic.link.training_reports import DROPPED_STEPS, MAX_SILENCE_S, MIN_WINDOW_STEPS, Meter
from malletrain.learn.stragglers import MIN_WINDOWS
from malletrain.loop.trackers.straggler_history import StragglerHistory
from malletrain.wire.messages import Samples
from tests.elastic.coordinator import running
from tests.elastic.digits import DIGITS, SCRIPT, Static, assert_every_sample_once, diary
from tests.world import data_of, event_of

EPOCHS, BATCH = 3, 64


def test_a_figure_is_heard_once_and_not_before_its_step_is_done_everywhere(tmp_path: Path) -> None:
    options = ["--epochs", str(EPOCHS), "--report", "--step-seconds", "0.1", "--slow-until", str(tmp_path / "go")]
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, range(5), [SCRIPT, *options])
        daemon.leave(0)
        daemon.wait_world([1, 2, 3, 4])
        pod.kill_after_a_step(4)  # the main worker stays, and makes the step again that this one is lost in
        daemon.wait_world([1, 2, 3])
        pod.kill_after_a_step(1)
        daemon.wait_world([2, 3])
        pod.finish(2, 3)
        figures: list[tuple[float, Any]] = [(event.at, event.payload) for event in daemon.seen("metric")]
    # A step tells how many came before it (begun), and once it is made, how many there are (step).
    heard = [(each.name, at, int(each.value) + (each.name == "begun")) for at, each in figures]
    done_at: dict[int, float] = {}
    # (A worker alone has committed its step when it reports it, which is before it writes it down.)
    for line in (each for each in diary(tmp_path) if each["size"] > 1):
        done_at[line["step"]] = max(done_at.get(line["step"], 0.0), line["at"])
    early = {step for _, at, step in heard if at < done_at.get(step, 0.0)}
    assert len(early) <= 1, f"{early}: but for the step after which the main worker left"
    for name in ("begun", "step"):
        times = Counter(step for each, _, step in heard if each == name)
        assert set(times.values()) == {1}, [step for step, count in times.items() if count > 1]
        lost = set(range(2, EPOCHS * -(-DIGITS // BATCH) + 1)) - set(times)
        assert len(lost) <= 2, f"{lost}: but for what the main worker held, and was telling, when it was killed"


def test_a_slow_worker_is_noticed_and_the_result_is_the_same(tmp_path: Path, static: Static) -> None:
    epochs = "5"
    given = ["--epochs", epochs, "--batch", "60"]
    with running(tmp_path) as (daemon, pod):
        for task in range(3):
            slow = {"SLOW_BY": "0.003" if task == 1 else "0.0005"}
            pod.spawn(daemon.url, task, [SCRIPT, *given, "--wait-for", "3"], 0, **slow)
        assert [pod.wait(task, 120) for task in range(3)] == [0, 0, 0]
        window = [event for event in daemon.seen("samples") if data_of(event)["rates"]][-1]
        rates: Any = data_of(window)["rates"]
        assert rates["100_1.0"] < 0.6 * rates["100_0.0"]
        paces = StragglerHistory()
        for _ in range(MIN_WINDOWS):
            paces.apply(event_of(window.at, window.kind, window.job, data={**data_of(window), "steady": True}))
        assert [straggler.pilot for straggler in paces.slow()[7]] == ["100_1"], "the daemon would replace it"
        assert daemon.told("samples")[-1]["memory_bytes"] > 1e8
        assert set(daemon.told("samples")[-1]["parts"]) == {"data", "compute", "sync"}
    lines = [line for line in diary(tmp_path) if "step" in line]
    assert_every_sample_once(lines, int(epochs))
    static.assert_like(tmp_path, "--epochs", epochs, "--batch", "60")


class Bench:
    def __init__(self) -> None:
        self.at, self.total, self.sent = 0.0, 0, list[Samples]()
        self.meter = Meter(self.sent.append, lambda: self.at)

    def steps(self, count: int, seconds: float = 0.5, nodes: int = 2) -> None:
        for _ in range(count):
            self.at += seconds
            self.total += 10
            self.meter.step(nodes, 10, self.total // 10, self.total, {"step": seconds})


DROPPED, WINDOW = (DROPPED_STEPS, 0.5, 2), (MIN_WINDOW_STEPS, 0.5, 2)


@pytest.mark.parametrize(
    ("acts", "told"),
    [
        ([(DROPPED_STEPS, 9.0, 2), WINDOW], [(True, 2, 14, 10, 100, 5.0)]),
        ([(7, 0.5, 2), "disturbed", "disturbed"], [(False, 2, 7, 3, 70, 3.5)]),
        ([(3, 0.5, 2), "disturbed", (14, 0.5, 4)], [(False, 2, 3, 0, 30, 1.5), (True, 4, 17, 10, 100, 5.0)]),
        ([(7, 0.5, 2), "paused", (1, 200.5, 2), WINDOW], [(True, 2, 15, 10, 100, 5.0)]),
        ([(2, 0.5, 2), "flush", "flush"], [(False, 2, 2, 0, 20, 1.0)]),
        ([DROPPED, (191, 1 / 64, 2)], []),
        ([DROPPED, (193, 1 / 64, 2)], [(True, 2, 196, 192, 1920, 3.0)]),
    ],
    ids=["first steps", "a switch, once", "another world", "over a pause", "the end, once", "too short", "enough"],
)
def test_windows_are_of_undisturbed_steps_and_the_rest_is_progress(acts: list[Any], told: list[Any]) -> None:
    """`acts`: so many steps of so many seconds on so many nodes, or a call."""
    bench = Bench()
    for act in acts:
        bench.steps(*act) if isinstance(act, tuple) else getattr(bench.meter, act)()
    assert [(s.steady, s.nodes, s.step, s.steps, s.samples, s.seconds) for s in bench.sent] == told
    assert all(s.total == 10 * s.step and (not s.steady or s.parts == {"step": s.seconds}) for s in bench.sent)


def test_long_steps_are_told_of_before_they_make_a_window() -> None:
    """Else a job would look as if it held its nodes for nothing."""
    bench = Bench()
    bench.steps(DROPPED_STEPS + MIN_WINDOW_STEPS, seconds=MAX_SILENCE_S)
    assert [window.steady for window in bench.sent] == [False] * (DROPPED_STEPS + MIN_WINDOW_STEPS - 1) + [True]
    assert [window.total for window in bench.sent] == [10 * (n + 1) for n in range(len(bench.sent))]
    assert (bench.sent[-1].samples, bench.sent[-1].seconds) == (100, 10 * MAX_SILENCE_S)
    assert bench.sent[0].samples == 10
