"""The engine's account: what each change costs, and the laws that hold at every instant."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.job import Curve, ResizeCosts
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.engine import Engine
from malletrain.replay.options import Options
from malletrain.replay.result import Cause, PilotRows, Result
from malletrain.replay.sizer import PolicySizer, parse_policy
from malletrain.replay.traces.trace import BUSY, DOWN, IDLE
from malletrain.replay.workload import TrainingJob
from tests.replay.small import START, intervals, job, trace, traces, with_rules, workloads

AT_ONCE = Options()


def run(machine: ClusterTrace, jobs: list[TrainingJob], policy: str = "exact", options: Options = AT_ONCE) -> Result:
    return Engine(machine, jobs, PolicySizer(parse_policy(policy, None), jobs), options).run()


def test_one_job_trains_on_what_is_idle() -> None:
    machine = trace([(100.0, 0, IDLE), (200.0, 1, IDLE), (300.0, 0, BUSY), (400.0, 1, BUSY)], 2, 1000.0)
    result = run(machine, [job()])
    assert result.totals.idle == pytest.approx(400.0)
    assert result.totals.occupied == pytest.approx(400.0)
    assert result.samples[0] == pytest.approx(4000.0)
    assert result.totals.speedup == result.totals.ideal == pytest.approx(400.0)
    assert (result.totals.activations, result.totals.preemptions, result.totals.rescales) == (2, 2, 2)


def test_activation_keeps_the_old_world_training() -> None:
    """10 s of activation: the second node joins at 210, the first trains on meanwhile."""
    machine = trace([(100.0, 0, IDLE), (200.0, 1, IDLE)], 2, 300.0)
    result = run(machine, [job(costs=ResizeCosts(10.0, 0.0, 0.0))])
    assert result.totals.activating == pytest.approx(20.0)
    assert result.samples[0] == pytest.approx(10 * (100.0 + 90.0 + 90.0))


def test_growing_stalls_the_whole_world_but_starting_does_not() -> None:
    machine = trace([(100.0, 0, IDLE), (200.0, 1, IDLE)], 2, 300.0)
    result = run(machine, [job(costs=ResizeCosts(0.0, 5.0, 3.0))])
    assert result.totals.stalled == pytest.approx(2 * 5.0)
    assert result.samples[0] == pytest.approx(10 * (100.0 + 2 * 95.0))
    assert result.totals.rescales == 1


def test_a_lost_node_stalls_the_rest() -> None:
    machine = trace([(0.0, 0, IDLE), (0.0, 1, IDLE), (100.0, 0, BUSY)], 2, 200.0)
    result = run(machine, [job(costs=ResizeCosts(0.0, 5.0, 3.0))])
    assert result.totals.stalled == pytest.approx(3.0)
    assert result.samples[0] == pytest.approx(10 * (2 * 100.0 + 97.0))
    assert result.totals.preemptions == 1


def test_overlapping_stalls_begin_anew_and_do_not_add_up() -> None:
    machine = trace([(0.0, 0, IDLE), (100.0, 1, IDLE), (102.0, 2, IDLE)], 3, 200.0)
    result = run(machine, [job(costs=ResizeCosts(0.0, 5.0, 3.0))])
    assert result.totals.stalled == pytest.approx(2 * 2.0 + 3 * 5.0)


def test_a_job_ends_when_its_samples_are_trained() -> None:
    machine = trace([(0.0, 0, IDLE), (0.0, 1, IDLE)], 2, 1000.0)
    result = run(machine, [job(samples=2000.0), job(2, at=500.0)])
    assert result.finished[0] == pytest.approx(START + 100.0)
    assert result.samples[0] == pytest.approx(2000.0)
    assert result.totals.completed == 1
    assert math.isnan(result.finished[1])
    assert result.totals.occupied == pytest.approx(200.0 + 1000.0)


def test_a_tick_leaves_new_nodes_idle_until_it_comes() -> None:
    machine = trace([(95.0, 0, IDLE)], 1, 200.0)
    result = run(machine, [job()], options=Options(tick_s=30.0))
    assert result.totals.occupied == pytest.approx(200.0 - 120.0)
    assert result.log.pilots.rows().start[0] == pytest.approx(START + 120.0)


def test_the_reserve_stays_idle() -> None:
    machine = trace([(0.0, n, IDLE) for n in range(3)], 3, 100.0)
    assert run(machine, [job()], options=with_rules(Options(), keep_idle=1)).totals.occupied == pytest.approx(200.0)


def test_a_pilot_leaves_at_its_limit_and_the_node_is_taken_again() -> None:
    machine = trace([(0.0, 0, IDLE)], 1, 250.0)
    result = run(machine, [job(costs=ResizeCosts(10.0, 0.0, 0.0))], options=with_rules(Options(), max_pilot_s=100.0))
    assert result.log.pilots.rows().cause.tolist() == [Cause.LIMIT, Cause.LIMIT, Cause.WINDOW]
    assert result.totals.activations == 3
    assert result.samples[0] == pytest.approx(10 * (250.0 - 30.0))


def test_waits_and_starts_that_meet_pilots() -> None:
    rows = [(20.0, 0, IDLE), (20.0, 1, IDLE), (60.0, 0, BUSY), (80.0, 0, IDLE), (90.0, 1, DOWN)]
    result = run(trace(rows, 2, 200.0), [job(most=1)])
    assert result.first_start[0] == START + 20.0
    assert (result.totals.main_starts, result.totals.main_starts_on_pilots) == (1, 1)


def test_a_job_below_its_minimum_does_not_train() -> None:
    machine = trace([(0.0, 0, IDLE), (0.0, 1, IDLE), (100.0, 1, BUSY)], 2, 200.0)
    result = run(machine, [job(least=2, curve=Curve(((2, 10.0),)))])
    assert result.samples[0] == pytest.approx(1000.0)
    assert result.totals.occupied == pytest.approx(200.0)


@given(machine=traces(), jobs=workloads(), policy=st.sampled_from(["exact", "equal", "bftrainer", "one-node"]),
       tick=st.sampled_from([0.0, 30.0]), limit=st.sampled_from([math.inf, 600.0]))  # fmt: skip
def test_laws(machine: ClusterTrace, jobs: list[TrainingJob], policy: str, tick: float, limit: float) -> None:
    options = with_rules(Options(tick_s=tick), max_pilot_s=limit)
    result = run(machine, jobs, policy, options)
    t, log = result.totals, result.log
    idle, _ = machine.counts
    lasts = np.diff(np.append(machine.time, machine.end))
    # main + used + idle + down = total: what the account calls idle is what the trace calls idle.
    assert t.idle == pytest.approx(float(idle @ lasts), abs=1e-3)
    assert -1e-6 <= t.occupied <= t.idle + 1e-3
    assert t.occupied == pytest.approx(t.productive + t.stalled + t.activating, abs=1e-3)
    assert t.occupied == pytest.approx(float(t.by_job.sum()), abs=1e-3)
    assert t.occupied == pytest.approx(float((log.pilots.rows().end - log.pilots.rows().start).sum()), abs=1e-3)
    assert (log.held <= log.idle).all()
    # No policy beats the ideal.
    assert t.speedup <= t.ideal * (1 + 1e-9) + 1e-6
    # samples = integral of rates less costs: speed-ups count the same training in other units.
    unit = np.array([each.curve.throughput(1) or each.curve.points[0][1] / each.curve.points[0][0] for each in jobs])
    assert float((result.samples / unit).sum()) == pytest.approx(t.speedup, rel=1e-9, abs=1e-6)
    for j, each in enumerate(jobs):
        if each.job.total_samples is not None:
            assert result.samples[j] <= each.job.total_samples * (1 + 1e-6)
    _no_pilot_on_a_busy_node(machine, result)


def _no_pilot_on_a_busy_node(machine: ClusterTrace, result: Result) -> None:
    """Each pilot lies within one idle interval of its node, and pilots of one node do not overlap."""
    holes = intervals(machine)
    log = result.log
    for node, start, end in zip(log.pilots.rows().node, log.pilots.rows().start, log.pilots.rows().end, strict=True):
        mine = holes.node == node
        assert ((holes.begin[mine] <= start) & (end <= holes.end[mine])).any()
    order = np.lexsort((log.pilots.rows().start, log.pilots.rows().node))
    node, start, end = log.pilots.rows().node[order], log.pilots.rows().start[order], log.pilots.rows().end[order]
    assert (start[1:] >= end[:-1])[node[1:] == node[:-1]].all()


@given(machine=traces(), jobs=workloads())
def test_the_same_replay_twice_gives_the_same_bytes(machine: ClusterTrace, jobs: list[TrainingJob]) -> None:
    first, second = run(machine, jobs), run(machine, jobs)
    for name in (
        "time",
        "idle",
        "held",
        "speed",
    ):
        assert getattr(first.log, name).tobytes() == getattr(second.log, name).tobytes()
    for name in PilotRows._fields:
        one, other = (getattr(each.log.pilots.rows(), name) for each in (first, second))
        assert one.tobytes() == other.tobytes()
    assert first.samples.tobytes() == second.samples.tobytes()


@given(machine=traces(), jobs=workloads(finite=False))
def test_free_of_cost_the_best_sizes_are_the_ideal(machine: ClusterTrace, jobs: list[TrainingJob]) -> None:
    free = [TrainingJob(each.job, ResizeCosts(0.0, 0.0, 0.0)) for each in jobs]
    totals = run(machine, free).totals
    assert totals.speedup == pytest.approx(totals.ideal, rel=1e-9, abs=1e-6)


def test_down_nodes_are_not_idle() -> None:
    machine = trace([(0.0, 0, DOWN), (0.0, 1, IDLE)], 2, 100.0)
    result = run(machine, [job()])
    assert result.totals.idle == pytest.approx(100.0)
    assert set(result.log.pilots.rows().node.tolist()) == {1}
