"""Sizing by (job, class of nodes) against an oracle of its own: every mixture enumerated, solved by SciPy's MILP."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.optimize import LinearConstraint, milp

from malletrain.cli.sizing import plan
from malletrain.domain.decision import SizingStatus
from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve
from malletrain.sizing.class_values import class_table
from malletrain.sizing.constrained import size_within_constraints
from malletrain.sizing.constraints import cap, check
from malletrain.sizing.problem import JobDemand, JobId, LinearLimit, OnClasses, Problem, Synchronous
from malletrain.sizing.registry import policy

Counts = dict[str, int]


def rate(job: JobDemand, counts: Counts) -> float:
    """Samples/s on such a mixture, written down anew."""
    held = {name: k for name, k in counts.items() if k}
    if not held:
        return 0.0
    nodes = sum(held.values())
    on = job.on_classes
    if job.synchronous is not None and on is None:
        compute = sum(job.synchronous.class_rates[name] * k for name, k in held.items())
        step = job.synchronous.step_samples / compute + job.synchronous.exchange_s * (nodes - 1) / nodes
        return job.synchronous.step_samples / step
    assert on is not None
    rates = {name: on.curves[name].throughput(nodes) for name in held}
    if len(held) > 1 and not on.spans:
        return min(rates.values())
    return sum(k / nodes * rates[name] for name, k in held.items())


def worth(problem: Problem, job: JobDemand, counts: Counts) -> float:
    """The value of a mixture, with what a change costs."""
    horizon = problem.horizon_s
    held = dict(job.on_classes.current) if job.on_classes else {}
    same = all(counts.get(name, 0) == held.get(name, 0) for name in {*counts, *held})
    kept = {name: min(k, held.get(name, 0)) for name, k in counts.items()}
    if same:
        value = horizon * rate(job, counts)
    elif all(k <= held.get(name, 0) for name, k in counts.items()):
        value = (horizon - job.shrink_s) * rate(job, counts)
    else:
        before = rate(job, kept)
        stall = job.grow_s if job.current else 0.0
        value = job.activate_s * before + (horizon - job.activate_s - stall) * rate(job, counts)
    return job.weight * value


def mixtures(problem: Problem, job: JobDemand) -> list[Counts]:
    """Every mixture that the job may have."""
    names = sorted(problem.classes)
    on = job.on_classes or OnClasses(spans=job.synchronous is not None)
    found: list[Counts] = [{}]
    for counts in itertools.product(*(range(problem.classes[name] + 1) for name in names)):
        held = {name: k for name, k in zip(names, counts, strict=True) if k}
        nodes = sum(held.values())
        if not held or not job.permits(nodes) or (len(held) > 1 and not on.spans):
            continue
        if any(nodes < on.min.get(name, 0) for name in held) and len(held) == 1:
            continue
        if on.curves and any(name not in on.curves for name in held):
            continue
        found.append(held)
    return found


def oracle(problem: Problem) -> float:
    """The best objective over every mixture of every job."""
    names = sorted(problem.classes)
    every = [(i, m) for i, job in enumerate(problem.jobs) for m in mixtures(problem, job)]
    value = np.array([worth(problem, problem.jobs[i], m) for i, m in every])
    one = np.array([[float(i == j) for i, _ in every] for j in range(len(problem.jobs))])
    use = np.array([[float(m.get(name, 0)) for _, m in every] for name in names])
    rows = [LinearConstraint(one, 1, 1), LinearConstraint(use, -np.inf, [problem.classes[n] for n in names])]
    for limit in problem.constraints:
        line = [limit.coefficients.get(problem.jobs[i].id, 0.0) * sum(m.values()) for i, m in every]
        rows.append(LinearConstraint(np.array([line]), limit.lower, limit.upper))
    options = {"mip_rel_gap": 1e-9}
    found = milp(-value, constraints=rows, integrality=np.ones(len(every)), bounds=(0, 1), options=options)
    assert found.x is not None
    return -float(found.fun)


def test_a_move_to_another_class_costs_a_stall_though_no_node_is_kept() -> None:
    """In restart mode the script is relaunched on nodes that are all new as on any others."""
    line = Curve(((1, 1.0), (2, 2.0)))
    on = OnClasses({"a": line, "b": line}, current={"a": 2})
    moving = JobDemand(1, 2, 1, 2, line, grow_s=18.0, shrink_s=12.0, activate_s=30.0, on_classes=on)
    table = class_table(Problem(300.0, 4, (moving,), classes={"a": 2, "b": 2}))
    worth = {tuple(c): v for c, v in zip(table.counts.T.tolist(), table.values.value.tolist(), strict=True)}
    assert worth[0, 2] == (300 - 30 - 18) * 2.0
    often = replace(moving, interval_s=60.0)
    table = class_table(Problem(300.0, 4, (often,), classes={"a": 2, "b": 2}))
    worth = {tuple(c): v for c, v in zip(table.counts.T.tolist(), table.values.value.tolist(), strict=True)}
    assert worth[0, 2] == (300 - 30 - 90) * 2.0
    assert (worth[2, 0], worth[1, 0]) == (600.0, 300 - 60)


def random_problem(seed: int, jobs: int = 5, classes: int = 3, most: int = 6, spans: float = 0.5) -> Problem:
    random = np.random.default_rng(seed)
    names = [f"class{q}" for q in range(classes)]
    supply = {name: int(random.integers(2, most + 1)) for name in names}
    left, demands = dict(supply), []
    for i in range(jobs):
        top = int(random.integers(2, most + 3))
        curves = {}
        for name in names:
            speed, bend = random.uniform(1, 4), random.uniform(0.5, 1.0)
            curves[name] = Curve(tuple((k, speed * k**bend) for k in range(1, top + 1)))
        if random.random() < 0.2:
            del curves[names[0]]
        on = OnClasses(curves, {}, {}, bool(random.random() < spans))
        held: Counts = {}
        for name in sorted(curves) if on.spans else sorted(curves)[: 1 + int(random.integers(len(curves)))][-1:]:
            take = min(left[name], int(random.integers(0, 3)))
            if take and sum(held.values()) + take <= top:
                held[name] = take
                left[name] -= take
        fewest = {names[1]: 2} if random.random() < 0.3 else {}
        demands.append(
            JobDemand(
                i, sum(held.values()), int(random.integers(1, 3)), top, curves[names[1]],
                weight=random.uniform(0.5, 2), grow_s=random.choice([0.3, 18.0]), shrink_s=random.choice([0.1, 12.0]),
                activate_s=random.choice([0.0, 10.0]), on_classes=replace(on, current=held, min=fewest),
            )
        )  # fmt: skip
    return Problem(300.0, sum(supply.values()), tuple(demands), classes=supply)


def assert_keeps(problem: Problem, sizes: dict[JobId, int], classes: dict[JobId, Counts]) -> None:
    assert check(problem, sizes) == []
    for name, nodes in problem.classes.items():
        assert sum(held.get(name, 0) for held in classes.values()) <= nodes
    for job in problem.jobs:
        assert sum(classes.get(job.id, {}).values()) == sizes[job.id]
        assert classes.get(job.id, {}) in mixtures(problem, job)


@pytest.mark.parametrize("seed", range(60))
def test_jobs_of_one_class_at_a_time_are_placed_best(seed: int) -> None:
    problem = random_problem(seed, spans=0.0)
    answer = policy("auto").size(problem)
    assert answer.status is SizingStatus.OPTIMAL
    assert_keeps(problem, dict(answer.sizes), {j: dict(c) for j, c in answer.classes.items()})
    ours = sum(worth(problem, job, dict(answer.classes.get(job.id, {}))) for job in problem.jobs)
    assert ours == pytest.approx(answer.objective, rel=1e-9)
    assert ours == pytest.approx(oracle(problem), rel=1e-7)


@pytest.mark.parametrize("seed", range(40))
def test_mixtures_are_within_half_a_percent_of_the_best(seed: int) -> None:
    """Of three classes: mixtures of two are looked at, mixtures of all three are not."""
    problem = random_problem(seed, spans=0.7)
    answer = policy("auto").size(problem)
    assert_keeps(problem, dict(answer.sizes), {j: dict(c) for j, c in answer.classes.items()})
    ours = sum(worth(problem, job, dict(answer.classes.get(job.id, {}))) for job in problem.jobs)
    assert ours == pytest.approx(answer.objective, rel=1e-9)
    assert ours >= 0.995 * oracle(problem)


@pytest.mark.parametrize("seed", range(25))
def test_side_constraints_hold_across_classes(seed: int) -> None:
    problem = random_problem(100 + seed, spans=0.3)
    problem = replace(
        problem,
        constraints=(cap("user", [0, 1], 3), LinearLimit("watts", {1: 1.5, 2: 2.0}, upper=9.0)),
    )
    answer = policy("auto").size(problem)
    assert_keeps(problem, dict(answer.sizes), {j: dict(c) for j, c in answer.classes.items()})
    assert answer.objective >= 0.995 * oracle(problem)
    share = replace(problem, constraints=(LinearLimit("share", {0: 1.0, 1: 1.0}, lower=2),))
    answer = policy("auto").size(share)
    if answer.status is not SizingStatus.FALLBACK:
        assert_keeps(share, dict(answer.sizes), {j: dict(c) for j, c in answer.classes.items()})
        assert answer.objective >= 0.995 * oracle(share)


def test_shares_in_proportion_are_those_of_tpds() -> None:
    steps = Synchronous(400.0, {"old": 20.0, "new": 60.0}, 0.5)
    job = JobDemand(1, 0, 1, 6, Curve.linear(6), synchronous=steps)
    problem = Problem(300.0, 6, (job,), classes={"old": 4, "new": 2})
    table = class_table(problem)
    for row in range(len(table.values.size)):
        counts = {name: int(k) for name, k in zip(table.names, table.counts[:, row], strict=True)}
        assert table.values.value[row] == pytest.approx(300.0 * rate(job, counts))
    answer = policy("auto").size(problem)
    assert dict(answer.classes[1]) == {"new": 2, "old": 4}


def test_a_job_moves_only_where_that_pays_for_new_nodes() -> None:
    curves = {"old": Curve.linear(4, 10.0), "new": Curve.linear(4, 11.0)}
    job = JobDemand(1, 4, 1, 4, curves["old"], activate_s=60.0, on_classes=OnClasses(curves, {"old": 4}))
    problem = Problem(300.0, 8, (job,), classes={"old": 4, "new": 4})
    assert dict(policy("auto").size(problem).classes[1]) == {"old": 4}, "a tenth more is not worth a minute"
    faster = replace(job, on_classes=OnClasses({**curves, "new": Curve.linear(4, 14.0)}, {"old": 4}))
    assert dict(policy("auto").size(replace(problem, jobs=(faster,))).classes[1]) == {"new": 4}


def test_fewest_by_class_and_classes_that_are_not_permitted() -> None:
    curves = {"small": Curve.linear(8, 10.0), "large": Curve.linear(8, 5.0)}
    on = OnClasses(curves, min={"small": 4})
    job = JobDemand(1, 0, 1, 8, curves["large"], on_classes=on)
    problem = Problem(300.0, 6, (job,), classes={"small": 3, "large": 3})
    assert dict(policy("auto").size(problem).classes[1]) == {"large": 3}, "the model does not fit three small nodes"
    only = replace(job, on_classes=OnClasses({"small": curves["small"]}))
    assert dict(policy("auto").size(replace(problem, jobs=(only,))).classes[1]) == {"small": 3}


def test_ten_thousand_nodes_of_four_classes_are_shared_out_at_once() -> None:
    """1,000 jobs; the published bound is .3 s on the bench (`python -m scripts.bench.policies classes`)."""
    random = np.random.default_rng(3)
    names = [f"c{q}" for q in range(4)]
    demands = []
    for i in range(1000):
        bend = random.uniform(0.85, 0.99)
        points = [(k, k**bend) for k in (1, 2, 4, 8, 16, 32, 64)]
        curves = {n: Curve(tuple((k, random.uniform(1, 4) * v) for k, v in points)) for n in names}
        curves = {n: Curve(tuple((k, float(random.uniform(1, 4)) * v) for k, v in points)) for n in names}
        demands.append(JobDemand(i, 0, 1, 64, curves["c0"], activate_s=5.0, on_classes=OnClasses(curves)))
    problem = Problem(300.0, 10_000, tuple(demands), classes=dict.fromkeys(names, 2500))
    began = time.process_time()
    answer = policy("auto").size(problem)
    assert time.process_time() - began < 3.0
    assert answer.objective >= (1 - 1e-3) * answer.bound
    assert sum(answer.sizes.values()) >= 9990


def test_of_very_many_jobs_those_that_span_classes_keep_their_mixtures_and_get_no_new_ones() -> None:
    """With all mixtures 1,000 jobs on four classes took 1.3 s, and their plan was worse."""
    names = [f"class{q}" for q in range(4)]
    curves = {name: Curve(tuple((k, (1 + q) * k**0.9) for k in range(1, 65))) for q, name in enumerate(names)}
    held = {"class0": 2, "class1": 3}
    jobs = [
        JobDemand(i, 5 if i == 0 else 0, 1, 64, curves["class0"], grow_s=299.0, shrink_s=299.0, activate_s=299.0,
                  on_classes=OnClasses(curves, held if i == 0 else {}, spans=True))
        for i in range(300)
    ]  # fmt: skip
    wide = JobDemand(300, 0, 150, 200, Curve(((200, 2e5),)), on_classes=OnClasses(
        {name: Curve(((200, 2e5),)) for name in names}, spans=True))  # fmt: skip
    problem = Problem(300.0, 400, (*jobs, wide), classes=dict.fromkeys(names, 100))
    table = class_table(problem)
    mixed = np.flatnonzero((table.counts > 0).sum(axis=0) > 1)
    assert set(table.values.row_job[mixed].tolist()) == {0, 300} and not table.whole
    assert policy("auto").size(problem).sizes[300] >= 150, "no class has room for it alone"
    answer = policy("auto").size(replace(problem, jobs=tuple(jobs)))
    assert dict(answer.classes[0]) == held, "what it has costs nothing to keep"


def test_plan_takes_curves_by_class(tmp_path: Path) -> None:
    file = tmp_path / "problem.json"
    on = {"curves": {"a100": {"1": 90, "4": 300}, "v100": {"1": 40, "4": 150}}, "current": {"v100": 2}}
    jobs = [{"id": "a", "current": 2, "max": 4, "throughput": {"1": 40, "4": 150}, "on_classes": on}]
    whole = {"horizon_s": 300, "nodes": 6, "classes": {"a100": 3, "v100": 3}, "jobs": jobs}
    file.write_text(json.dumps(whole))
    done = CliRunner().invoke(plan, [str(file)])
    assert done.exit_code == 0, done.exception
    assert json.loads(done.output)["classes"] == {"a": {"a100": 3}}
    on["spans"] = True
    file.write_text(json.dumps(whole))
    assert json.loads(CliRunner().invoke(plan, [str(file)]).output)["classes"] == {"a": {"a100": 3, "v100": 1}}
    faults: tuple[dict[str, object], ...] = ({"spans": 1}, {"current": {"a100": -1}}, {"curves": {"a100": {}}})
    for wrong in faults:
        file.write_text(json.dumps({**whole, "jobs": [{**jobs[0], "on_classes": wrong}]}))
        assert isinstance(CliRunner().invoke(plan, [str(file)]).exception, InvalidInput), wrong


@pytest.mark.parametrize("name", ["equal", "greedy", "efficiency", "utility"])
def test_policies_that_know_counts_only_are_placed_by_class(name: str) -> None:
    for seed in range(8):
        problem = random_problem(seed, spans=0.3)
        answer, _ = size_within_constraints(policy(name), problem)
        counts = policy(name).size(replace(problem, classes={}))
        assert_keeps(problem, dict(answer.sizes), {j: dict(c) for j, c in answer.classes.items()})
        assert all(answer.sizes[j.id] <= max(counts.sizes[j.id], j.current) for j in problem.jobs)
