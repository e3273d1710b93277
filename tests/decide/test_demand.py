"""What is remembered between decisions changes none of them; the quick answers of yielding are the slow ones'."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.decision import decide
from malletrain.decide.draft import DecisionCache, Situation
from malletrain.decide.rules import Rules
from malletrain.decide.sizes import demand_of
from malletrain.decide.yielding import HarvestedNode, any_pending_fits, plan_yields
from malletrain.domain.job import Curve, Elastic, JobPhase, JobView, Pilot, PilotPhase, ResizeCosts
from malletrain.domain.snapshot import NodeState, SlurmJob, SlurmState, Snapshot
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.profiling import change_interval_s
from malletrain.sizing.objective import Objective
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import Problem, Sizes
from malletrain.sizing.registry import policy
from malletrain.sizing.values import ValueRowCache
from tests.world import START, job, main_job, node

PHASES = [JobPhase.QUEUED, JobPhase.RUNNING, JobPhase.RUNNING, JobPhase.HELD]
RULES = Rules(margin_s=10.0, min_hole_s=70.0)


T = TypeVar("T")


def pick(random: np.random.Generator, options: list[T]) -> T:
    """One of them as it is: numpy's own choice would make a word of an enumeration."""
    return options[int(random.integers(len(options)))]


@st.composite
def situations(draw: st.DrawFn) -> list[Situation]:
    """A few looks at a cluster of twelve nodes: pilots come and go, main jobs wait, plan and run, staff and owners
    want nodes back."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = [f"n{i:02d}" for i in range(12)]
    views = {
        j: JobView(job(j, least=int(random.integers(1, 3)), most=6), JobPhase.QUEUED, curve=Curve.linear(6, 5.0))
        for j in (1, 2, 3)
    }
    found = []
    for look in range(draw(st.integers(1, 6))):
        owner = random.choice([0, 0, 1, 2, 3, 8, 9], size=len(names))
        now = START + 10.0 * look
        rows = [_pilot_row(j, t, names[t]) for t, j in enumerate(owner) if j in views]
        main = [names[t] for t, j in enumerate(owner) if j == 8]
        rows += [main_job(80, nodes=main)] if main else []
        rows += [
            main_job(
                90 + i, count=int(random.integers(1, 10)), start=now + 300.0 * i or None, planned=names[i : i + 4]
            )
            for i in range(random.integers(0, 3))
        ]
        for j in views:
            if random.random() < 0.7:  # the others are the very same view as before
                pilots = {
                    f"{j}_{t}": Pilot(
                        f"{j}_{t}",
                        j,
                        *_phase(random),
                        START,
                        names[t],
                        START,
                        now + pick(random, [15.0, 45.0, 3000.0]),
                    )
                    if owner[t] == j
                    else Pilot(f"{j}_{t}", j, PilotPhase.HELD, START)
                    for t in range(len(names))
                }
                views[j] = replace(views[j], pilots=pilots, phase=pick(random, PHASES))
        states = [NodeState.ALLOCATED if o in (1, 2, 3, 8) else NodeState.IDLE for o in owner]
        states[int(random.integers(12))] = pick(random, [NodeState.DRAINED, NodeState.ALLOCATED])
        snapshot = Snapshot(now, tuple(map(node, names, states)), tuple(rows))
        open_holes = {n: START - 100.0 * i for i, n in enumerate(names[:9])}
        drained = frozenset(names[:1]) if random.random() < 0.2 else frozenset()
        found.append(Situation(snapshot, dict(views), now, drained=drained, open_holes=open_holes))
    return found


def _phase(random: np.random.Generator) -> tuple[PilotPhase]:
    return (pick(random, [PilotPhase.RUNNING, PilotPhase.RUNNING, PilotPhase.RELEASED, PilotPhase.LEAVING]),)


def _pilot_row(job_id: int, task: int, name: str) -> SlurmJob:
    return SlurmJob(
        f"{job_id}_{task}", job_id, "alice", "harvest", "harvest", "low", SlurmState.RUNNING, nodes=(name,)
    )


@given(situations(), st.integers(0, 3), st.sampled_from([1.0, 0.6]))
def test_decisions_with_a_memory_are_those_without(looks: list[Situation], keep_idle: int, share: float) -> None:
    memo, auto = DecisionCache(), policy("auto")
    rules = replace(RULES, keep_idle=keep_idle, user_share=share)
    for look in looks:
        assert repr(decide(look, auto, rules, memo)) == repr(decide(look, auto, rules))


@given(situations())
def test_where_nobody_fits_nobody_yields(looks: list[Situation]) -> None:
    for look in looks:
        if not any_pending_fits(look.snapshot, RULES):
            nodes = [HarvestedNode(p.node, p.id, 1.0) for view in look.views.values() for p in view.staying]
            answer = plan_yields(look.snapshot, nodes, {}, look.now, RULES)
            assert (answer.leave, answer.claimed, answer.startable) == ({}, {}, {})


def test_a_demand_counts_in_speedups_and_has_no_more_nodes_than_tasks() -> None:
    curve = Curve(((1, 50.0), (4, 150.0)))
    pilots = {f"1_{t}": Pilot(f"1_{t}", 1, PilotPhase.HELD, START) for t in range(3)}
    demand = demand_of(JobView(job(1, most=8), JobPhase.QUEUED, pilots, curve=curve), (), JobKnowledge(), RULES)
    assert demand.curve.points == ((1, 1.0), (4, 3.0))
    assert (demand.current, demand.max) == (0, 3)


def restarting(*worlds_at: float) -> JobView:
    return JobView(replace(job(1), elastic=Elastic.RESTART), JobPhase.RUNNING, worlds_at=worlds_at)


def test_a_restart_pays_over_the_mean_time_between_a_jobs_own_changes() -> None:
    at = [START + 100.0 * i for i in range(8)]
    assert change_interval_s(restarting(), 300.0, START) is None, "it has not begun"
    assert change_interval_s(restarting(START), 300.0, START) == 300.0, "nothing is known: the horizon"
    assert change_interval_s(restarting(START), 300.0, START + 2100.0) == 2400.0, "it keeps its nodes"
    often = change_interval_s(restarting(*at), 300.0, at[-1])
    assert often == pytest.approx(300.0 * 2**-1.5), "1,000 s over 8, rounded down"
    slow = replace(restarting(START, *at[1:3]), costs=ResizeCosts(grow_s=150.0))
    assert change_interval_s(slow, 300.0, START + 300.0) == 300.0 * 2.0, "pilots that start one after the other"
    assert change_interval_s(replace(restarting(*at), job=job(1)), 300.0, at[-1]) is None, "live resizes are cheap"


@given(st.lists(st.floats(0.0, 1e5), max_size=17), st.floats(1.0, 1e5), st.floats(0.0, 1e5))
def test_an_interval_is_the_mean_of_one_horizon_and_what_was_seen(
    gaps: list[float], horizon_s: float, since_s: float
) -> None:
    times = [START]
    for gap in gaps:
        times.append(times[-1] + gap)
    changes = sum(gap > ResizeCosts().grow_s for gap in gaps)
    now = times[-1] + since_s
    found = change_interval_s(restarting(*times), horizon_s, now)
    assert found is not None
    mean = (horizon_s + now - START) / (1 + changes)
    assert mean / 2**0.25 * (1 - 1e-6) <= found <= mean * (1 + 1e-6)


def test_who_is_resized_often_is_resized_for_more() -> None:
    """A fourth node would pay within the horizon, and within an hour, but not before the job's next change."""
    curve = Curve(((1, 1.0), (3, 2.5), (4, 2.75)))
    pilots = {
        f"1_{t}": Pilot(f"1_{t}", 1, PilotPhase.RUNNING, START, f"n{t}", START, START + 7200.0, ready=True)
        for t in range(3)
    } | {"1_3": Pilot("1_3", 1, PilotPhase.HELD, START)}
    costs = ResizeCosts(activate_s=5.0, grow_s=18.0, shrink_s=12.0)
    view = replace(restarting(), pilots=pilots, curve=curve, costs=costs)

    def size(now: float, *worlds_at: float) -> int:
        nodes = (*(node(f"n{t}", NodeState.MIXED) for t in range(3)), node("n3"))
        situation = Situation(Snapshot(now, nodes), {1: replace(view, worlds_at=worlds_at)}, now)
        return decide(situation, policy("auto"), Rules()).decision.sizes[1]

    steady, often = [START], [START + 30.0 * i for i in range(10)]
    assert size(START + 300.0, *steady) == 4
    assert size(START + 300.0, *often) == 3


def test_a_world_that_stands_still_is_not_sized_again() -> None:
    class Counting(Policy):
        name = "counting"

        def __init__(self) -> None:
            self.asked = 0

        def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
            self.asked += 1
            return policy("auto").size(problem)

    held = {f"1_{t}": Pilot(f"1_{t}", 1, PilotPhase.HELD, START) for t in range(3)}
    views = {1: JobView(job(1, most=3), JobPhase.QUEUED, held, curve=Curve.linear(3), nodes_since=START)}
    nodes, counting, memo = tuple(node(f"n{i}") for i in range(2)), Counting(), DecisionCache()

    def look(at: float, count: int) -> None:
        decide(Situation(Snapshot(START + at, nodes[:count]), views, START + at), counting, RULES, memo)

    look(0.0, 2)
    look(10.0, 2)
    assert counting.asked == 1
    look(20.0, 1)
    assert counting.asked == 2


@pytest.mark.parametrize(
    ("objective", "totals", "sizes"),
    [
        (Objective.THROUGHPUT, (1e6, 1e4), (4, 4)),
        (Objective.SRPT, (1e6, 1e4), (2, 6)),
        (Objective.SRPT, (None, None), (4, 4)),
        (Objective.JCT, (1e6, 1e4), (0, 8)),
    ],
)
def test_the_job_that_ends_first_has_most_nodes(
    objective: Objective, totals: tuple[float | None, float | None], sizes: tuple[int, int]
) -> None:
    curve = Curve(tuple((n, 10.0 * n**0.7) for n in range(1, 9)))
    views = {
        j: JobView(
            replace(job(j, most=8), total_samples=total, given_curve=curve),
            JobPhase.QUEUED,
            {f"{j}_{t}": Pilot(f"{j}_{t}", j, PilotPhase.HELD, START) for t in range(8)},
            curve=curve,
            nodes_since=START,
        )
        for j, total in zip((1, 2), totals, strict=True)
    }
    nodes = tuple(node(f"n{i}") for i in range(8))
    rules = replace(RULES, objective=objective, alpha=0.0, user_share=1.0)
    decided = decide(Situation(Snapshot(START, nodes), views, START), policy("exact"), rules)
    assert tuple(decided.decision.sizes[j] for j in (1, 2)) == sizes
