"""Counts become nodes: never one twice, what a job holds stays, costly jobs get long holes, cohorts stay together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.draft import DecisionCache, Draft, Situation
from malletrain.decide.holes import rank
from malletrain.decide.placement import Placement, place
from malletrain.domain.decision import Hole
from malletrain.domain.job import JobPhase, JobView, Pilot, PilotPhase, ResizeCosts
from malletrain.domain.snapshot import Snapshot
from malletrain.sizing.registry import policy
from tests.world import RULES, START, job, node


def hole(name: str, lasts: float = 3600.0, cohort: float | None = None) -> Hole:
    return Hole(name, START + lasts, "nothing planned", cohort)


def pilot(job_id: int, number: int, node: str, ends: float | None = START + 3600) -> Pilot:
    return Pilot(f"{job_id}_{number}", job_id, PilotPhase.RUNNING, START, node, START, ends)


def view(job_id: int, pilots: tuple[Pilot, ...] = (), costs: ResizeCosts | None = None) -> JobView:
    return JobView(job(job_id, most=64), JobPhase.RUNNING, {p.id: p for p in pilots}, costs=costs or ResizeCosts())


def placed(
    sizes: Mapping[int, int], views: Mapping[int, JobView], stays: Mapping[int, Sequence[Pilot]],
    free: Sequence[Hole] = (), weights: Mapping[str, int] | None = None, held: Mapping[str, Hole] | None = None,
    leaves: Mapping[str, str] | None = None,
) -> Placement:  # fmt: skip
    rows = tuple(replace(node(each.node), weight=(weights or {}).get(each.node, 1)) for each in free)
    snapshot = Snapshot(START, rows, (), leaves=leaves or {})
    draft = Draft(Situation(snapshot, views, START), policy("auto"), RULES, DecisionCache())
    draft.free, draft.holes, draft.staying = list(free), held or {}, dict(stays)
    return place(draft, sizes)


def nodes(placement: Placement, job_id: int) -> set[str]:
    return {h.node for h in placement.take[job_id]}


def test_dear_jobs_take_the_holes_that_last() -> None:
    views = {1: view(1), 2: view(2, costs=ResizeCosts(60.0, 20.0, 10.0))}
    free = [hole("short", 100.0), hole("long", 5000.0)]
    found = placed({1: 1, 2: 1}, views, {}, free)
    assert (nodes(found, 2), nodes(found, 1)) == ({"long"}, {"short"})


def test_cohorts_are_kept_whole() -> None:
    """Jobs of 3, 2 and 3 nodes, cohorts of 2, 3 and 3: each job gets one whole."""
    free = [hole(f"{c}{i}", cohort=float(c)) for c, size in ((3, 2), (2, 3), (1, 3)) for i in range(size)]
    views = {j: view(j) for j in (1, 2, 3)}
    found = placed({1: 3, 2: 2, 3: 3}, views, {}, free)
    for job_id in views:
        assert len({h.cohort for h in found.take[job_id]}) == 1


def test_the_cohort_of_what_a_job_has_comes_first() -> None:
    own = pilot(1, 0, "a0")
    free = [hole("b0", cohort=1.0), hole("a1", cohort=2.0)]
    held = {"a0": hole("a0", cohort=2.0)}
    found = placed({1: 2}, {1: view(1, (own,))}, {1: [own]}, free, held=held)
    assert nodes(found, 1) == {"a1"}


def test_of_like_holes_the_node_that_slurm_prefers_least_is_taken() -> None:
    free = [hole("light", 900.0), hole("heavy", 900.0), hole("brief", 100.0)]
    found = placed({1: 1}, {1: view(1)}, {}, free, {"light": 1, "heavy": 5, "brief": 9})
    assert nodes(found, 1) == {"heavy"}


def test_shrinking_gives_up_what_ends_first() -> None:
    long, limited = pilot(1, 0, "long"), pilot(1, 1, "limited", START + 50)
    found = placed({1: 1}, {1: view(1, (long, limited))}, {1: [long, limited]})
    assert (found.keep[1], found.drop[1]) == ((long,), (limited,))


def test_the_longest_planned_holes_go_first_then_heavy_nodes_then_cohorts_then_names() -> None:
    found = [hole("c"), hole("b"), hole("a", 60.0)]
    assert [h.node for h in sorted(found, key=lambda h: rank(h, 1))] == ["b", "c", "a"]
    assert min(found, key=lambda h: rank(h, {"c": 3}.get(h.node, 1))).node == "c"
    assert min([hole("b", cohort=1.0), hole("a", cohort=2.0)], key=lambda h: rank(h, 1)).node == "b"


HOLES = st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 4), st.integers(1, 3)), max_size=24)


@given(HOLES, st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=6), st.booleans())
def test_no_node_twice_and_what_is_held_stays(
    given_holes: list[tuple[float, int, int]], jobs: list[tuple[int, int]], with_cohorts: bool
) -> None:
    free = [
        hole(f"n{i}", lasts, float(cohort) if with_cohorts else None)
        for i, (lasts, cohort, _) in enumerate(given_holes)
    ]
    weights = {f"n{i}": weight for i, (_, _, weight) in enumerate(given_holes)}
    sizes = {j: size for j, (size, _) in enumerate(jobs, start=1)}
    stays = {j: [pilot(j, i, f"h{j}-{i}") for i in range(held)] for j, (_, held) in enumerate(jobs, start=1)}
    views = {j: view(j, tuple(stays[j])) for j in sizes}
    held = {p.node: hole(p.node, 500.0, 1.0) for pilots in stays.values() for p in pilots}

    found = placed(sizes, views, stays, free, weights, held)

    taken = [h.node for j in sizes for h in found.take[j]]
    assert len(set(taken)) == len(taken)
    assert set(taken) <= {h.node for h in free}
    for j, size in sizes.items():
        assert set(found.keep[j]) | set(found.drop[j]) == set(stays[j])
        assert len(found.keep[j]) == min(size, len(stays[j])), "nothing that may stay is swapped away"
        assert len(found.keep[j]) + len(found.take[j]) + found.short.get(j, 0) == size
    if found.short:
        assert len(taken) == len(free), "nodes lack only when none is left"
    again = placed(dict(reversed(sizes.items())), views, stays, free[::-1], weights, held)
    assert repr(again.take) == repr(found.take) or again.take == found.take


@given(HOLES, st.integers(0, 24))
def test_better_holes_are_never_left_for_worse(given_holes: list[tuple[float | None, int, int]], wanted: int) -> None:
    free = [hole(f"n{i}", e or 0.0, float(c)) for i, (e, c, _) in enumerate(given_holes)]
    weights = {f"n{i}": w for i, (_, _, w) in enumerate(given_holes)}
    found = placed({1: wanted}, {1: view(1)}, {}, free, weights)
    took = [rank(h, weights[h.node])[:2] for h in found.take[1]]
    left = [rank(h, weights[h.node])[:2] for h in free if h not in found.take[1]]
    assert all(a <= b for a, b in itertools.product(took, left))


def test_whole_leaves_are_harvested_first() -> None:
    leaves = {f"{leaf}{i}": leaf for leaf, size in (("a", 6), ("b", 3), ("c", 4)) for i in range(size)}
    free, views = [hole(name, 600.0, 5.0) for name in leaves], {1: view(1), 2: view(2)}
    found = placed({1: 4, 2: 3}, views, {}, free, leaves=leaves)
    assert [{leaves[name] for name in nodes(found, job)} for job in views] == [{"c"}, {"b"}]
    taken = nodes(placed({1: 8}, views, {}, free, leaves=leaves), 1)
    assert sum(leaves[name] == "a" for name in taken) == 6, "the largest where none holds all"


@given(
    st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=20),
    st.dictionaries(st.integers(1, 3), st.integers(0, 8), max_size=3),
)
def test_leaves_change_which_nodes_are_taken_never_how_many(where: list[str], sizes: dict[int, int]) -> None:
    free = [hole(f"n{i}", 600.0 if i % 3 else 60.0, float(i % 2)) for i in range(len(where))]
    leaves, views = {f"n{i}": leaf for i, leaf in enumerate(where) if leaf}, {j: view(j) for j in sizes}
    on_leaves, plain = (placed(sizes, views, {}, free, leaves=known) for known in (leaves, {}))
    assert {j: len(t) for j, t in on_leaves.take.items()} == {j: len(t) for j, t in plain.take.items()}
    taken = [each.node for holes in on_leaves.take.values() for each in holes]
    assert len(taken) == len(set(taken))
