"""Sizing problems for tests: a hypothesis strategy with every field in use, and slow answers that are right."""

from __future__ import annotations

import itertools
from dataclasses import replace
from importlib.metadata import entry_points

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from malletrain.domain.job import Curve
from malletrain.sizing import registry
from malletrain.sizing.constraints import cap, check, guaranteed_share
from malletrain.sizing.problem import JobDemand, JobId, LinearLimit, Problem, Value
from malletrain.sizing.values import ValueTable, value_table

#: Whether hypothesis runs a longer profile than the usual one.
LONG = (settings.default or settings()).max_examples > 50


def examples(count: int, long: int | None = None) -> settings:
    """So many examples in the quick profile; `long`, or those of the profile, in a longer one."""
    usual = (settings.default or settings()).max_examples
    return settings(max_examples=(long or max(count, usual)) if LONG else count)


def job(name: JobId, current: int, most: int, curve: Curve | None = None, **more: object) -> JobDemand:
    """A job with the fields that a test does not care about filled in."""
    fields = {"min": 1, "grow_s": 1.0, "shrink_s": 1.0} | more
    return JobDemand(id=name, current=current, max=most, curve=curve or Curve.linear(most), **fields)  # type: ignore[arg-type]


def curves(most: int, *, wild: bool = True) -> st.SearchStrategy[Curve]:
    """Linear ones (many ties), small whole rates (ties between jobs), any at all (not concave, falling, flat)."""
    rates = st.one_of(st.integers(0, 20).map(float), st.floats(0.1, 1e3))
    if wild:
        rates = st.one_of(rates, st.floats(1e-6, 1e9))
    free = st.dictionaries(st.integers(1, most), rates, min_size=1, max_size=5)
    return st.one_of(
        st.builds(Curve.linear, st.just(most), st.sampled_from([1.0, 1.7, 2.0])),
        free.map(lambda points: Curve(tuple(sorted(points.items())))),
    )


@st.composite
def jobs(draw: st.DrawFn, name: JobId, most: int, wild: bool) -> JobDemand:
    top = draw(st.integers(0, most))
    return JobDemand(
        id=name,
        current=draw(st.integers(0, most)),
        min=draw(st.integers(0, top)),
        max=top,
        sizes=draw(st.one_of(st.just(()), st.lists(st.integers(0, most), max_size=4).map(tuple))),
        weight=draw(st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.0, 3.0])),
        grow_s=draw(st.sampled_from([0.0, 0.3, 18.0, 400.0])),
        shrink_s=draw(st.sampled_from([0.0, 0.1, 12.0, 400.0])),
        activate_s=draw(st.sampled_from([0.0, 5.0, 400.0])),
        curve=draw(curves(most, wild=wild)),
        remaining_samples=draw(st.one_of(st.none(), st.none(), st.floats(0, 1e5))),
        doubt=draw(st.sampled_from([0.0, 0.0, 0.02, 0.5])),
        must_run=draw(st.sampled_from([False, False, False, True])),
        interval_s=draw(st.sampled_from([None, None, 20.0, 3600.0])),
    )


@st.composite
def problems(draw: st.DrawFn, most_jobs: int = 5, most: int = 8, most_nodes: int = 24, wild: bool = True) -> Problem:
    """Problems without side constraints. Wild ones mix rates of all magnitudes, beyond any solver's tolerances."""
    names: list[JobId] = draw(
        st.lists(
            st.one_of(st.integers(0, 99), st.text(st.sampled_from("ab7 é"), max_size=3)),
            max_size=most_jobs,
            unique_by=lambda name: (isinstance(name, str), name),
        )
    )
    same = draw(st.booleans()) and names  # several jobs that differ in nothing but the id
    demands = [draw(jobs(name, most, wild)) for name in names]
    if same:
        demands = [replace(demands[0], id=d.id) if i % 2 else d for i, d in enumerate(demands)]
    return Problem(
        horizon_s=draw(st.sampled_from([0.0, 10.0, 300.0])),
        nodes=draw(st.integers(0, most_nodes)),
        jobs=tuple(demands),
        value=draw(st.sampled_from(list(Value))),
        alpha=draw(st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0])),
    )


@st.composite
def constrained(
    draw: st.DrawFn, most_jobs: int = 4, most: int = 6, most_nodes: int = 16, wild: bool = True
) -> Problem:
    """Problems with side constraints of every kind, soluble or not."""
    problem = draw(problems(most_jobs, most, most_nodes, wild).filter(lambda p: len(p.jobs) > 0))
    names = [j.id for j in problem.jobs]
    groups = st.lists(st.sampled_from(names), unique=True)
    limits: list[LinearLimit] = []
    if draw(st.booleans()):
        limits.append(cap("cap", draw(groups), draw(st.integers(0, most_nodes))))
    if draw(st.booleans()):
        watts = {name: draw(st.floats(0.1, 3)) for name in names}
        limits.append(LinearLimit("power", watts, draw(st.floats(0, 2.0 * most_nodes))))
    if draw(st.booleans()):
        group = set(draw(groups))
        limits.append(
            guaranteed_share(
                "share", [j for j in problem.jobs if j.id in group], draw(st.integers(0, 9)), problem.nodes
            )
        )
    return replace(problem, constraints=tuple(limits))


def magnitude(table: ValueTable) -> float:
    """What differences are compared with; values far below a sample are nothing to a solver."""
    return max(float(np.abs(table.value).max(initial=0.0)), 1e-150)


def full_dp(table: ValueTable, nodes: int) -> float:
    """The best objective by the textbook's dynamic programme over every job, size and node count."""
    best = np.zeros(nodes + 1)
    for i in range(len(table.ids)):
        with_job = np.full(nodes + 1, -np.inf)
        for row in range(table.start[i], table.start[i + 1]):
            size = table.size[row]
            np.maximum(with_job[size:], best[: nodes + 1 - size] + table.value[row], out=with_job[size:])
        best = with_job
    return float(best[nodes])


def every_plan(problem: Problem) -> list[tuple[float, dict[JobId, int]]]:
    """Every plan that keeps all constraints, with its worth."""
    table = value_table(problem)
    plans = []
    for rows in itertools.product(*(range(a, b) for a, b in itertools.pairwise(table.start.tolist()))):
        chosen = np.array(rows, dtype=np.int64)
        sizes = dict(zip(table.ids, table.size[chosen].tolist(), strict=True))
        if not check(problem, sizes):
            plans.append((table.worth(chosen), sizes))
    return plans


def shipped() -> tuple[str, ...]:
    """The names of the policies that come with this package, sorted; a site's own are none of these."""
    own = (e.name for e in entry_points(group=registry.GROUP) if e.value.startswith("malletrain.sizing.papers."))
    return tuple(sorted({*registry.CORE, *own}))
