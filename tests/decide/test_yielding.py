"""Yield first: which pilots leave for which main jobs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.yielding import MOST_TIMES_CHEAPEST, HarvestedNode, plan_yields
from malletrain.domain.snapshot import NodeState, SlurmJob, SlurmState, Snapshot
from tests.world import RULES, START, main_job, node

PILOT = {"user": "alice", "account": "harvest", "partition": "harvest", "qos": "", "state": SlurmState.RUNNING}


def world(harvested: int, idle: int, *jobs: SlurmJob) -> tuple[Snapshot, list[HarvestedNode]]:
    """`harvested` nodes h0.. with pilots of rising cost, `idle` nodes i0.."""
    pilots = tuple(
        SlurmJob(id=f"9_{n}", raw_id=900 + n, nodes=(f"h{n}",), **PILOT)  # type: ignore[arg-type]
        for n in range(harvested)
    )
    nodes = tuple(node(f"h{n}", NodeState.ALLOCATED) for n in range(harvested))
    nodes += tuple(node(f"i{n}") for n in range(idle))
    costs = [HarvestedNode(f"h{n}", f"9_{n}", float(n)) for n in range(harvested)]
    return Snapshot(START, nodes, pilots + jobs), costs


def test_the_cheapest_sufficient_pilots_leave() -> None:
    snapshot, harvested = world(4, 1, main_job(1, count=3))
    answer = plan_yields(snapshot, harvested, {}, START, RULES)
    assert answer.leave == {"9_0": "1", "9_1": "1"}
    assert answer.claimed == {"i0": "1"}


def test_no_one_leaves_for_a_job_that_could_not_start_anyway() -> None:
    for waiting in (
        main_job(1, count=9),
        main_job(1, count=2, reason="Dependency"),
        main_job(1, count=2, reason="JobHeldUser"),
        main_job(1, count=2, reason="AssocGrpNodeLimit"),
        main_job(1, count=2, features="gpu"),
    ):
        snapshot, harvested = world(4, 0, waiting)
        assert plan_yields(snapshot, harvested, {}, START, RULES).leave == {}, waiting


def test_a_pilot_on_a_node_that_slurm_no_longer_has_stalls_nobody() -> None:
    snapshot, harvested = world(3, 0, main_job(1, count=2))
    gone = replace(snapshot, nodes=tuple(each for each in snapshot.nodes if each.name != "h0"))
    assert plan_yields(gone, harvested, {}, START, RULES).leave == {"9_1": "1", "9_2": "1"}


def test_idle_nodes_suffice() -> None:
    snapshot, harvested = world(2, 3, main_job(1, count=3))
    answer = plan_yields(snapshot, harvested, {}, START, RULES)
    assert answer.leave == {}
    assert set(answer.claimed) == {"i0", "i1", "i2"}


def test_a_backfillable_job_yields_only_if_it_ends_before_the_blocked_one_starts() -> None:
    top = main_job(1, count=8, start=START + 300, planned=["h0", "h1", "h2", "h3"], priority=200)
    for limit_s, leaves in ((200.0, 2), (400.0, 0)):
        snapshot, harvested = world(4, 0, top, main_job(2, count=2, limit_s=limit_s))
        assert len(plan_yields(snapshot, harvested, {}, START, RULES).leave) == leaves


def test_the_parts_of_a_heterogeneous_job_start_together_or_not_at_all() -> None:
    parts = [main_job(n, count=2, het_id=10) for n in (10, 11)]
    snapshot, harvested = world(4, 0, *parts)
    assert len(plan_yields(snapshot, harvested, {}, START, RULES).leave) == 4
    snapshot, harvested = world(3, 0, *parts)
    assert plan_yields(snapshot, harvested, {}, START, RULES).leave == {}


def test_nodes_of_a_heterogeneous_job_are_given_back_at_once_and_those_of_others_are_not() -> None:
    parts = [main_job(n, count=2, het_id=10) for n in (10, 11)]
    snapshot, harvested = world(4, 1, *parts)
    assert dict(plan_yields(snapshot, harvested, {}, START, RULES).at_once) == dict.fromkeys(
        ["i0", "h0", "h1", "h2"], "10"
    )
    snapshot, harvested = world(4, 1, main_job(10, count=4))
    assert plan_yields(snapshot, harvested, {}, START, RULES).at_once == {}


def test_a_heterogeneous_job_that_slurm_put_off_is_given_all_its_nodes_when_it_begins_and_none_before() -> None:
    begins = START + 120.0
    first = main_job(10, count=1, het_id=10, reason="BeginTime", start=begins)
    second = main_job(11, count=3, het_id=10, start=START, planned=["h0", "h1", "h2"])
    snapshot, harvested = world(4, 1, first, second)
    since = {"10": START}
    for now, nodes in ((START, 0), (begins - 60.0, 0), (begins - 40.0, 4), (begins + 60.0, 4), (begins + 100.0, 0)):
        answer = plan_yields(snapshot, harvested, since, now, RULES)
        assert (len(answer.leave) + len(answer.claimed), len(answer.at_once)) == (nodes, nodes), now - begins


def test_a_heterogeneous_job_whose_part_slurm_takes_back_just_now_is_given_nothing() -> None:
    going = replace(main_job(10, nodes=["i0"], het_id=10), state=SlurmState.COMPLETING)
    snapshot, harvested = world(4, 1, going, main_job(11, count=3, het_id=10))
    answer = plan_yields(snapshot, harvested, {}, START, RULES)
    assert (answer.leave, answer.claimed) == ({}, {})


def test_two_jobs_do_not_share_a_node() -> None:
    snapshot, harvested = world(3, 1, main_job(1, count=2), main_job(2, count=2), main_job(3, count=2))
    answer = plan_yields(snapshot, harvested, {}, START, RULES)
    assert len(answer.leave) == 3
    assert set(answer.startable) == {"1", "2"}


def test_a_job_that_something_else_holds_up_loses_its_claim() -> None:
    snapshot, harvested = world(1, 1, main_job(1, count=2))
    first = plan_yields(snapshot, harvested, {}, START, RULES)
    assert first.startable == {"1": START}
    late = plan_yields(snapshot, harvested, first.startable, START + RULES.claim_patience_s + 1, RULES)
    assert late.leave == {}
    assert late.claimed == {}
    assert late.startable == {"1": START}


def test_nodes_that_are_coming_free_are_not_asked_for_twice() -> None:
    """Between a pilot's leaving and the end of the epilog its node is neither idle nor a pilot's."""
    for state, jobs in (
        (NodeState.COMPLETING, ()),
        (NodeState.ALLOCATED, (SlurmJob(id="9_7", raw_id=907, nodes=("c0",), **PILOT),)),  # type: ignore[arg-type]
    ):
        snapshot, harvested = world(3, 0, main_job(1, count=2), *jobs)
        nodes = (*snapshot.nodes, node("c0", state))
        snapshot = Snapshot(START, nodes, snapshot.jobs)
        assert set(plan_yields(snapshot, harvested, {}, START, RULES).leave) == {"9_0"}


def test_each_task_of_an_array_is_given_nodes() -> None:
    snapshot, harvested = world(5, 0, main_job(1, count=2, task_count=10))
    assert len(plan_yields(snapshot, harvested, {}, START, RULES).leave) == 4


def test_a_claim_that_lapsed_is_made_again_later() -> None:
    snapshot, harvested = world(1, 1, main_job(1, count=2))
    later = START + RULES.claim_again_s + 1
    assert plan_yields(snapshot, harvested, {"1": START}, later, RULES).leave != {}


def _on_leaves(snapshot: Snapshot, **leaves: str) -> Snapshot:
    return replace(snapshot, leaves={name: leaf for leaf, names in leaves.items() for name in names.split()})


def test_a_job_that_asks_for_one_leaf_is_given_the_cheapest_whole_one() -> None:
    snapshot, harvested = world(6, 2, main_job(1, count=3, switches=1))
    snapshot = _on_leaves(snapshot, a="h0 h1 i0", b="h2 h3 h4 i1", c="h5")
    answer = plan_yields(snapshot, harvested, {}, START, RULES)
    assert (set(answer.leave), set(answer.claimed)) == ({"9_0", "9_1"}, {"i0"})


def test_idle_nodes_on_other_leaves_do_not_help_a_job_that_asks_for_one() -> None:
    snapshot, harvested = world(3, 3, main_job(1, count=3, switches=1))
    snapshot = _on_leaves(snapshot, a="h0 h1 h2", b="i0 i1", c="i2")
    answer = plan_yields(snapshot, harvested, {}, START, RULES)
    assert (set(answer.leave), answer.claimed) == ({"9_0", "9_1", "9_2"}, {})


def test_a_job_that_asks_for_two_leaves_gets_nodes_of_no_more() -> None:
    snapshot, harvested = world(4, 4, main_job(1, count=4, switches=2))
    snapshot = _on_leaves(snapshot, a="h0 i0", b="h1 i1", c="h2 i2", d="h3 i3")
    answer = plan_yields(snapshot, harvested, {}, START, RULES)
    assert {snapshot.leaves[name] for name in answer.kept} == {"a", "b"}


def test_where_no_leaf_is_wide_enough_any_nodes_are_given() -> None:
    snapshot, harvested = world(2, 2, main_job(1, count=4, switches=1))
    snapshot = _on_leaves(snapshot, a="h0 h1", b="i0 i1")
    answer = plan_yields(snapshot, harvested, {}, START, RULES)
    assert len(answer.leave) + len(answer.claimed) == 4


def test_main_jobs_that_pilots_stand_in_the_way_of_are_named_and_whether_only_backfill_starts_them() -> None:
    blocked = main_job(1, count=8, start=START + 300, planned=["h0"], priority=200)
    leaving = SlurmJob(id="9_7", raw_id=907, nodes=("c0",), **PILOT)  # type: ignore[arg-type]
    short, alone = main_job(2, count=1, limit_s=60.0), main_job(2, count=2, limit_s=60.0)
    snapshot, harvested = world(1, 0, blocked, short)
    assert plan_yields(snapshot, harvested, {}, START, RULES).delayed == {"2": True}
    snapshot, harvested = world(1, 0, alone, leaving)
    snapshot = replace(snapshot, nodes=(*snapshot.nodes, node("c0", NodeState.ALLOCATED)))
    assert plan_yields(snapshot, harvested, {}, START, RULES).delayed == {"2": False}
    snapshot, harvested = world(1, 2, alone)
    assert plan_yields(snapshot, harvested, {}, START, RULES).delayed == {}, "idle nodes suffice"


def test_a_job_that_asks_for_no_leaf_finds_one_all_the_same() -> None:
    snapshot, harvested = world(6, 0, main_job(1, count=3))
    snapshot = _on_leaves(snapshot, a="h0 h3", b="h1 h4 h5", c="h2")
    harvested = [replace(each, cost=1.0 + each.cost / 10) for each in harvested]
    answer = plan_yields(snapshot, harvested, {}, START, RULES)
    assert answer.kept == {"h1", "h4", "h5"}


def test_pilots_that_cost_training_much_more_stay_wherever_they_are() -> None:
    snapshot, harvested = world(4, 0, main_job(1, count=2))
    snapshot = _on_leaves(snapshot, a="h0", b="h1", c="h2 h3")
    # The two on one leaf are of a job that weighs ten times as much.
    costs = [replace(each, cost=1.0 if n < 2 else 10.0) for n, each in enumerate(harvested)]
    assert plan_yields(snapshot, costs, {}, START, RULES).kept == {"h0", "h1"}


@given(
    leaf_of=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    costs=st.lists(st.integers(1, 4), min_size=12, max_size=12),
    idle=st.integers(0, 3), count=st.integers(1, 8),
)  # fmt: skip
def test_leaves_change_which_pilots_leave_and_never_how_many(
    leaf_of: list[int], costs: list[int], idle: int, count: int
) -> None:
    held = max(0, len(leaf_of) - idle)
    snapshot, harvested = world(held, len(leaf_of) - held, main_job(1, count=count))
    harvested = [replace(each, cost=float(cost)) for each, cost in zip(harvested, costs, strict=False)]
    cheapest = plan_yields(snapshot, harvested, {}, START, RULES)
    leaves = {each.name: f"leaf{n}" for each, n in zip(snapshot.nodes, leaf_of, strict=True)}
    chosen = plan_yields(replace(snapshot, leaves=leaves), harvested, {}, START, RULES)
    assert len(chosen.leave) == len(cheapest.leave)
    assert chosen.claimed.keys() == cheapest.claimed.keys()
    cost = {each.pilot: each.cost for each in harvested}
    loss = [sum(cost[pilot] for pilot in plan.leave) for plan in (chosen, cheapest)]
    assert loss[0] <= MOST_TIMES_CHEAPEST * loss[1]
    on_leaf = [sum(leaves[node.node] == leaf for node in harvested) for leaf in set(leaves.values())]
    if len(set(costs)) == 1 and max(on_leaf) >= len(chosen.leave):
        on = {leaves[node.node] for node in harvested if node.pilot in chosen.leave}
        assert len(on) <= 1
