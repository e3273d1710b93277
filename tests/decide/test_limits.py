"""What a site allows groups of jobs: as constraints, and kept over a history by the whole loop."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.decide.limits import constraints_for
from malletrain.decide.rules import Rules, SiteLimit
from malletrain.domain.job import Curve, JobPhase, JobView, MalleableJob
from malletrain.sizing.constraints import check
from malletrain.sizing.problem import JobDemand, LinearLimit, Problem
from tests.sizing.problems import job as demand
from tests.world import RULES, START, World


def whose(job_id: int, user: str, account: str, least: int = 1, most: int = 8) -> MalleableJob:
    return MalleableJob(
        job_id, f"job{job_id}", user, 1001, account, least, most, START, given_curve=Curve.linear(most)
    )


def view(job_id: int, user: str, account: str = "harvest") -> JobView:
    return JobView(whose(job_id, user, account), JobPhase.QUEUED)


VIEWS = {1: view(1, "ann", "vision"), 2: view(2, "ann", "speech"), 3: view(3, "bob", "speech")}
DEMANDS: tuple[JobDemand, ...] = tuple(demand(i, 0, 8) for i in VIEWS)


def test_caps_shares_and_resources_of_users_and_accounts() -> None:
    limits = (
        SiteLimit("ann's", users=frozenset({"ann"}), most_nodes=5),
        SiteLimit("speech", accounts=frozenset({"speech"}), least_nodes=4),
        SiteLimit("power", available=9.0, per_node=2.0),
        SiteLimit("nobody's", users=frozenset({"eve"}), most_nodes=0),
    )
    found = constraints_for(Rules(limits=limits), VIEWS, DEMANDS, 24)
    assert [each.name for each in found] == ["ann's (most_nodes)", "speech (least_nodes)", "power (available)"]
    assert isinstance(found[0], LinearLimit) and dict(found[0].coefficients) == {1: 1.0, 2: 1.0}
    assert isinstance(found[2], LinearLimit) and dict(found[2].coefficients) == {1: 2.0, 2: 2.0, 3: 2.0}
    assert check(Problem(300, 24, DEMANDS, constraints=found), {1: 0, 2: 0, 3: 5})[0].startswith("power (available)")


def test_limits_that_cannot_bind_are_left_out() -> None:
    assert constraints_for(Rules(limits=(SiteLimit("all", most_nodes=24),)), VIEWS, DEMANDS, 24) == ()


def test_nobody_has_more_than_the_share_while_others_want_some() -> None:
    found = constraints_for(Rules(user_share=0.6, max_wait_s=0.0), VIEWS, DEMANDS, 12)
    assert [(each.name, each.upper) for each in found if isinstance(each, LinearLimit)] == [
        ("user ann (sizing.user_share)", 7), ("user bob (sizing.user_share)", 7),
    ]  # fmt: skip
    alone = {1: VIEWS[1], 2: VIEWS[2]}
    assert constraints_for(Rules(user_share=0.5, max_wait_s=0.0), alone, DEMANDS[:2], 12) == ()


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.integers(4, 40)), min_size=2, max_size=8),
    st.integers(1, 60),
    st.sampled_from([0.1, 0.5, 0.9]),
)
def test_the_share_leaves_no_node_idle_that_somebody_wants(
    wanted: list[tuple[str, int, int]], nodes: int, share: float
) -> None:
    views = {i: view(i, user) for i, (user, _, _) in enumerate(wanted)}
    demands = tuple(demand(i, 0, most) for i, (_, _, most) in enumerate(wanted))
    found = {
        c.name: c
        for c in constraints_for(Rules(user_share=share, max_wait_s=0.0), views, demands, nodes)
        if isinstance(c, LinearLimit)
    }
    held = 0.0
    for user in {user for user, _, _ in wanted}:
        wants = min(nodes, sum(most for whose, _, most in wanted if whose == user))
        limit = found.get(f"user {user} (sizing.user_share)")
        held += wants if limit is None else min(wants, limit.upper)
    assert held >= min(nodes, sum(most for _, _, most in wanted))


def test_one_who_wants_little_does_not_halve_the_other() -> None:
    demands = (demand(1, 0, 8), demand(2, 0, 8), demand(3, 0, 2))
    found = constraints_for(Rules(user_share=0.5, max_wait_s=0.0), VIEWS, demands, 12)
    assert [(each.name, each.upper) for each in found if isinstance(each, LinearLimit)] == [
        ("user ann (sizing.user_share)", 10)
    ]


def test_the_loop_keeps_a_cap_at_every_tick() -> None:
    limits = (SiteLimit("ann's", users=frozenset({"ann"}), most_nodes=3),)
    world = World(12, replace(RULES, limits=limits))
    for number, user in enumerate(("ann", "ann", "bob"), start=1):
        world.submit(whose(number, user, "harvest"))
    for _ in range(8):
        world.tick()
        decision = world.loop.last_decision
        assert decision is not None
        assert decision.sizes[1] + decision.sizes[2] <= 3
    assert world.nodes_of(1) + world.nodes_of(2) == 3
    assert world.nodes_of(3) == 8
