"""What main jobs are given, in random worlds and in bursts: laws, and processor time."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from random import Random

import pytest

from malletrain.decide.rules import Rules
from malletrain.decide.yielding import HarvestedNode, YieldPlan, plan_yields
from malletrain.domain.snapshot import Node, NodeState, SlurmJob, SlurmState, Snapshot
from scripts.bench.yielding import BURST_AT, BURSTS, burst
from tests.decide.plain_yielding import PlainYields
from tests.world import RULES, START, main_job

#: Any of the bursts takes a tenth of it at 4,000 nodes; where each job sorts all nodes anew, up to twenty times it.
MOST_S = 1.0


@pytest.mark.parametrize("waiting", BURSTS)
@pytest.mark.parametrize(("leaf", "width"), [(0, 1), (32, 1), (32, 40)])
def test_a_burst_of_waiting_jobs_that_fit_is_decided_at_once(waiting: str, leaf: int, width: int) -> None:
    snapshot, harvested = burst(4000, waiting, leaf, width)
    began = time.process_time()
    given = plan_yields(snapshot, harvested, {}, START, RULES).kept
    assert time.process_time() - began < MOST_S
    assert len(given) >= 499


@pytest.mark.parametrize("waiting", ["an array", "an array, --switches=1"])
@pytest.mark.parametrize("leaf", [0, 32])
def test_tasks_of_an_array_are_not_looked_at_one_by_one(waiting: str, leaf: int) -> None:
    snapshot, harvested = burst(10_000, waiting, leaf)
    least_s = float("inf")
    for _ in range(3):
        began = time.process_time()
        assert len(plan_yields(snapshot, harvested, {}, START, RULES).kept) == 10_000
        least_s = min(least_s, time.process_time() - began)
    assert least_s < 0.2, "a tenth of a second at most; one by one a third to three quarters"


def test_jobs_of_other_limits_cost_little_where_each_has_a_planned_start() -> None:
    snapshot, harvested = burst(10_000, "each planned, of another limit", leaf=32)
    rows = [
        replace(job, start_time=BURST_AT + 60 * job.raw_id, time_limit_s=60.0 * job.raw_id + 30)
        for job in snapshot.pending
    ]
    snapshot = replace(snapshot, jobs=(*snapshot.holding, *rows))
    began = time.process_time()
    assert len(plan_yields(snapshot, harvested, {}, BURST_AT, RULES).kept) == 500
    assert time.process_time() - began < MOST_S


def test_jobs_whose_claim_has_lapsed_are_no_dearer() -> None:
    snapshot, harvested = burst(4000, "wide", leaf=32)
    since = {job.id: START - RULES.claim_patience_s - 1.0 for job in snapshot.pending}
    began = time.process_time()
    assert plan_yields(snapshot, harvested, since, START, RULES).startable == since
    assert time.process_time() - began < MOST_S


def random_world(random: Random) -> tuple[Snapshot, list[HarvestedNode]]:
    """Idle nodes, nodes that are coming free, pilots of one node or more, on leaf switches or not; jobs of all
    kinds, some with planned starts."""
    names = [f"n{at:02d}" for at in range(random.randint(4, 30))]
    nodes, jobs, harvested = [], [], []
    widest, left = random.choice((1, 1, 4)), list(names)
    random.shuffle(left)
    while left:
        here = [left.pop() for _ in range(min(len(left), random.randint(1, widest)))]
        use, features = random.choice(("idle", "coming", "pilot", "pilot", "pilot")), random.choice((("a",), ()))
        state = {"idle": NodeState.IDLE, "coming": NodeState.COMPLETING}.get(use, NodeState.ALLOCATED)
        nodes += [Node(name, state, ("batch", "harvest"), features=features) for name in here]
        if use == "pilot":
            together = frozenset(here) if len(here) > 1 else frozenset()
            cost = random.choice((0.5, 1.0, 2.5))
            harvested += [HarvestedNode(name, f"9_{name}", cost, together) for name in here]
            jobs.append(_pilot(here))
    number = 0
    while number < random.randint(1, 12):
        number += 1
        parts = random.choice((1, 1, 1, 2))
        for part in range(parts):
            planned = random.sample(names, random.randint(1, len(names))) if random.random() < 0.3 else []
            jobs.append(
                main_job(
                    number + part, count=random.choice((1, 1, 2, 5)), priority=random.randint(1, 3),
                    het_id=number if parts > 1 else None, switches=random.choice((None, None, 1, 2)),
                    task_count=1 if parts > 1 else random.choice((1, 1, 6, 40)),
                    limit_s=random.choice((60.0, 900.0)), start=START + 300.0 if planned else None, planned=planned,
                    excluded_nodes=tuple(random.sample(names, random.choice((0, 0, 2)))),
                    features=random.choice(("", "", "a")),
                    required_nodes=tuple(random.sample(names, random.choice((0, 0, 0, 0, 1)))),
                )
            )  # fmt: skip
        number += parts - 1
    leaves = {name: f"leaf{random.randint(0, 3)}" for name in names} if random.random() < 0.5 else {}
    return Snapshot(START, tuple(nodes), tuple(jobs), leaves=leaves), harvested


def _pilot(names: list[str]) -> SlurmJob:
    return SlurmJob(
        f"9_{names[0]}", 900, "alice", "harvest", "harvest", "", SlurmState.RUNNING, nodes=tuple(names)
    )  # fmt: skip


WORLDS = range(400)


def test_what_is_given_is_as_where_each_job_sorts_all_nodes_anew() -> None:
    for seed in WORLDS:
        random = Random(seed)
        snapshot, harvested = random_world(random)
        rules = replace(RULES, keep_idle=random.choice((0, 2)))
        since = {job.id: START - random.choice((0.0, 0.0, 1.0 + rules.claim_patience_s)) for job in snapshot.pending}
        plan = plan_yields(snapshot, harvested, since, START, rules)
        plain = PlainYields(snapshot, harvested, START, rules).plan(since)
        for each in fields(plan):
            mine, theirs = getattr(plan, each.name), getattr(plain, each.name)
            assert mine == theirs, (seed, each.name)
            assert list(mine) == list(theirs), (seed, each.name)


def _plan(snapshot: Snapshot, harvested: list[HarvestedNode], rules: Rules = RULES) -> YieldPlan:
    return plan_yields(snapshot, harvested, {}, START, rules)


def test_neither_the_order_of_rows_nor_that_of_nodes_matters() -> None:
    for seed in WORLDS:
        random = Random(seed)
        snapshot, harvested = random_world(random)
        plan = _plan(snapshot, harvested)
        nodes, jobs = list(snapshot.nodes), list(snapshot.jobs)
        # Of one heterogeneous job the parts stand in their order.
        others = sorted(jobs, key=lambda job: (job.het_id or random.random(), job.raw_id))
        random.shuffle(nodes)
        random.shuffle(harvested)
        assert _plan(replace(snapshot, nodes=tuple(nodes), jobs=tuple(others)), harvested) == plan, seed


def test_what_a_job_is_given_it_may_have_and_has_alone() -> None:
    for seed in WORLDS:
        snapshot, harvested = random_world(Random(seed))
        plan = _plan(snapshot, harvested)
        rows = {job.id: job for job in snapshot.pending}
        of_pilot = {each.pilot: each.node for each in harvested}
        pairs = [*plan.claimed.items(), *((of_pilot[pilot], name) for pilot, name in plan.leave.items())]
        assert len({node for node, _ in pairs}) == len(pairs), seed
        assert {node for node, _ in pairs} <= plan.kept, seed
        for node, name in pairs:
            parts = [job for job in rows.values() if job.id == name or (rows[name].het_id or 0) == job.het_id]
            assert any(_may_have(part, node, parts, snapshot) for part in parts), (seed, node, name)


def _may_have(job: SlurmJob, node: str, own: list[SlurmJob], snapshot: Snapshot) -> bool:
    rank = (-job.priority, job.raw_id)
    planned = {
        name
        for other in snapshot.pending
        if other not in own
        and (-other.priority, other.raw_id) < rank
        and START + (job.time_limit_s or 0) > START + 300
        for name in other.planned_nodes
    }
    lacking = job.features and job.features not in snapshot.node[node].features
    return node not in planned and node not in job.excluded_nodes and not lacking


def test_a_worse_job_takes_nothing_from_a_better_one() -> None:
    for seed in WORLDS:
        snapshot, harvested = random_world(Random(seed))
        plan = _plan(snapshot, harvested)
        worst = max(snapshot.pending, key=lambda job: (-job.priority, job.raw_id))
        if worst.het_id:
            continue
        without = _plan(replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job is not worst)), harvested)
        assert {pilot: name for pilot, name in plan.leave.items() if name != worst.id} == without.leave, seed
        assert {node: name for node, name in plan.claimed.items() if name != worst.id} == without.claimed, seed


def test_the_cheapest_nodes_are_given_where_no_leaf_and_no_task_says_otherwise() -> None:
    for seed in WORLDS:
        snapshot, harvested = random_world(Random(seed))
        snapshot = replace(snapshot, leaves={}, jobs=(*snapshot.holding, main_job(1, count=3, features="a")))
        harvested = [replace(each, co_allocated=frozenset()) for each in harvested]
        cost = {each.node: each.cost for each in harvested}
        usable = sorted(
            (
                node.state is NodeState.ALLOCATED,
                node.state is NodeState.COMPLETING,
                cost.get(node.name, 0.0),
                node.name,
            )
            for node in snapshot.nodes
            if "a" in node.features
        )
        given = _plan(snapshot, harvested).kept
        assert given == (frozenset(name for *_, name in usable[:3]) if len(usable) >= 3 else frozenset()), seed
