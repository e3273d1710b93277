"""The fast path and the daemon's own loop decide alike, and their figures agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import ResizeCosts
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.engine import Engine
from malletrain.replay.loop_engine import replay_through_loop, score_by_loop
from malletrain.replay.options import Options
from malletrain.replay.run import replay
from malletrain.replay.scoring.figures import Score, score
from malletrain.replay.scoring.journal_score import score_journal
from malletrain.replay.sizer import PolicySizer, SizeBounds, parse_policy
from malletrain.replay.traces.trace import BUSY, IDLE
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.registry import policy
from tests.replay.small import START, job, trace, traces, workloads
from tests.world import data_of

#: What the ledger assumes of a job that has measured nothing yet: so both paths plan with the same costs.
COSTS = ResizeCosts()


def both(machine: ClusterTrace, jobs: list[TrainingJob]) -> tuple[Score, Score]:
    sizer = PolicySizer(parse_policy("exact", None), jobs)
    fast = Engine(machine, jobs, sizer, Options()).run()
    journal = replay_through_loop(machine, jobs, policy("exact"))
    return score(fast, machine.seconds), score_journal(journal, machine.end)


def test_the_same_sizes_at_every_event() -> None:
    rows = [(10.0 * t + n, n, IDLE if (t + n) % 3 else BUSY) for t in range(14) for n in range(8)]
    machine = trace(rows, 8, 200.0)
    # Equal jobs: no node ever changes hands, which takes the daemon several rounds and the engine none.
    jobs = [job(i + 1, costs=COSTS, most=4) for i in range(3)]
    fast: dict[float, list[int]] = {}

    class Listening(PolicySizer):
        engine: Engine

        def __call__(
            self, live: Sequence[int], counts: Sequence[int], nodes: int, bounds: SizeBounds | None = None
        ) -> list[int]:
            sizes = super().__call__(live, counts, nodes, bounds)
            fast[round(self.engine.now - START)] = sizes
            return sizes

    sizer = Listening(parse_policy("exact", None), jobs)
    sizer.engine = Engine(machine, jobs, sizer, Options())
    sizer.engine.run()
    whole: dict[float, list[int]] = {}
    for event in replay_through_loop(machine, jobs, policy("exact")):
        if event.kind == "decided":
            sizes = cast(Mapping[str, int], data_of(event)["sizes"])
            whole[round(event.at - START)] = [sizes[str(each.job.id)] for each in jobs]
    # The journal tells of decisions that differ from the last one; rounds within one event end in its last.
    last: list[int] = []
    compared = 0
    for moment, sizes_now in sorted(fast.items()):
        last = whole.get(moment, last)
        assert sizes_now == last, moment
        compared += 1
    assert compared > 60


@settings(max_examples=25)
@given(machine=traces(max_nodes=5), jobs=workloads(finite=False))
def test_the_same_figures(machine: ClusterTrace, jobs: list[TrainingJob]) -> None:
    fast, whole = both(machine, [TrainingJob(each.job, COSTS) for each in jobs])
    assert whole.idle_node_seconds == pytest.approx(fast.idle_node_seconds, abs=1.0)
    assert whole.ideal_speedup_node_seconds == pytest.approx(fast.ideal_speedup_node_seconds, rel=1e-3, abs=1.0)
    assert whole.samples == pytest.approx(fast.samples, rel=0.02, abs=100.0)


@settings(max_examples=10)
@given(machine=traces(max_nodes=4), jobs=workloads())
def test_the_daemons_loop_over_the_same_trace_writes_the_same_journal(
    machine: ClusterTrace, jobs: list[TrainingJob]
) -> None:
    first, second = (replay_through_loop(machine, jobs, policy("exact")) for _ in range(2))
    assert first == second
    assert any(event.kind == "daemon_stopped" for event in first)


def test_a_journal_scores_as_the_engine_counts() -> None:
    machine = trace([(0.0, 0, IDLE), (50.0, 1, IDLE), (120.0, 0, BUSY), (300.0, 2, IDLE), (400.0, 1, BUSY)], 3, 600.0)
    fast, whole = both(machine, [job(costs=COSTS)])
    for name in fast.as_json():
        if name in ("solve_s", "wall_s", "beyond_cap_node_seconds", "reserve_node_seconds", "waterfall"):
            continue
        counted, scored = getattr(fast, name), getattr(whole, name)
        assert (scored is None) == (counted is None), name
        assert scored == counted or scored == pytest.approx(counted, rel=1e-3, abs=0.1), name


@settings(max_examples=10)
@given(machine=traces(max_nodes=4), jobs=workloads(finite=False), tick_s=st.sampled_from([5.0, 30.0]))
def test_a_tick_costs_both_engines_about_the_same(
    machine: ClusterTrace, jobs: list[TrainingJob], tick_s: float
) -> None:
    """The loop sees a change at its next tick, and hands a node over in two ticks where the engine takes one."""
    jobs = [TrainingJob(each.job, COSTS) for each in jobs]
    choice = parse_policy("exact", None)
    fast = score(Engine(machine, jobs, PolicySizer(choice, jobs), Options(tick_s=tick_s)).run(), machine.seconds)
    loop = score_by_loop(machine, jobs, choice, Options(by_loop=True, tick_s=tick_s))
    changes = len(machine.node) + len(jobs)
    assert abs(loop.idle_node_seconds - fast.idle_node_seconds) <= tick_s * changes
    assert abs(loop.occupied_node_seconds - fast.occupied_node_seconds) <= 2 * tick_s * changes


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("bftrainer", Options(), "--policy"),
        ("one-node", Options(), "--policy"),
    ],
)
def test_what_the_loop_does_not_do_is_refused_by_name(name: str, options: Options, what: str) -> None:
    machine = trace([(0.0, 0, IDLE)], 1, 100.0)
    with pytest.raises(InvalidInput, match=what):
        replay(machine, [job()], [parse_policy(name, None)], replace(options, by_loop=True), processes=1)


def test_an_empty_journal_is_worth_nothing() -> None:
    assert score_journal([]).idle_node_seconds == 0.0
    assert score_journal([], until=START).share_of_ideal is None
