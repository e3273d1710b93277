"""Over random histories: no node twice, sizes within bounds, nothing on lost nodes, and rest when all is still."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.rules import SiteLimit
from malletrain.domain.decision import StartPilot
from malletrain.domain.job import Curve, MalleableJob
from malletrain.domain.snapshot import LEAVE_STATES, NodeState, SlurmJob
from malletrain.sizing.objective import Objective
from malletrain.sizing.registry import policy
from tests.sizing.problems import LONG, examples
from tests.world import RULES, START, World, main_job

NODES = 10
TICKS = 200 if LONG else 25
SITE = replace(RULES, max_pilot_s=86_400.0, max_wait_s=600.0)


def site(seed: int) -> World:
    """A world with an objective, side constraints and a policy of its own."""
    random = np.random.default_rng(seed)
    rules = replace(
        SITE,
        objective=Objective(random.choice(["throughput", "jct", "srpt", "fair"])),
        limits=(SiteLimit("cap", accounts=frozenset({"a"}), most_nodes=int(random.integers(2, 8))),),
        user_share=float(random.choice([0.5, 1.0])),
        keep_idle=int(random.integers(0, 2)),
    )
    name = str(random.choice(["auto", "exact", "milp", "equal", "greedy", "efficiency"]))
    return World(NODES, rules, policy(name))


def history(seed: int, ticks: int) -> World:
    """Main jobs come and go, nodes are drained and come back, malleable jobs are submitted; checked at every tick."""
    random = np.random.default_rng(seed)
    world, number = site(seed), 0
    main: dict[str, SlurmJob] = {}
    for tick in range(ticks):
        if tick < 5 and random.random() < 0.8:
            number += 1
            least, most = int(random.integers(1, 3)), int(random.integers(3, 9))
            curve = Curve(tuple((n + 1, float(r)) for n, r in enumerate(np.cumsum(random.uniform(0.1, 1, most)))))
            world.submit(
                MalleableJob(
                    number, f"j{number}", str(random.choice(["ann", "bob"])), 1001, str(random.choice(["a", "b"])),
                    least, most, START, given_curve=curve,
                ),
                tasks=60,
            )  # fmt: skip
        for name in [f"n{i}" for i in random.choice(NODES, 2, replace=False)]:
            if name in main:
                del main[name]
            elif random.random() < 0.4:
                main[name] = main_job(5000 + tick * NODES + int(name[1:]), nodes=[name])
            else:
                node = world.cluster.nodes[name]
                up = NodeState.IDLE if node.state in LEAVE_STATES else NodeState.DRAINED
                world.cluster.nodes[name] = replace(node, state=up)
        world.cluster.set_main(list(main.values()))
        before = set(world.running())
        world.tick(30.0)
        check(world, before, set(main))
    return world


def check(world: World, before: set[str], main: set[str]) -> None:
    decision, views = world.loop.last_decision, world.loop.views
    assert decision is not None
    snapshot = world.loop.last_snapshot
    assert snapshot is not None
    lost = {n.name for n in snapshot.nodes if n.state in LEAVE_STATES} | main
    starts = [a.node for a in decision.actions if isinstance(a, StartPilot)]
    assert len(starts) == len(set(starts)), "a node given twice"
    assert not set(starts) & (before - (before & main)), "a node that a pilot holds is handed over"
    assert not set(starts) & lost, "a lost node is planned"
    held = [p.node for view in views.values() for p in view.active]
    assert len(held) == len(set(held)), "two pilots on a node"
    for job_id, size in decision.sizes.items():
        assert views[job_id].job.permits(size), f"job {job_id} may not have {size} nodes"
    free_or_held = {hole.node for hole in decision.holes}
    assert sum(decision.sizes.values()) <= len(free_or_held)


@examples(8, 300)
@given(st.integers(0, 2**32 - 1))
def test_safe_at_every_tick_and_at_rest_once_the_world_stands_still(seed: int) -> None:
    world = history(seed, TICKS)
    for _ in range(60):  # with one resize a tick, and turns of those that have waited long
        world.tick(30.0)
        decision = world.loop.last_decision
        assert decision is not None
        if not decision.actions:
            break
    else:
        raise AssertionError(f"still acting: {decision}")


@examples(3, 100)
@given(st.integers(0, 2**32 - 1))
def test_the_same_history_gives_the_same_bytes(seed: int) -> None:
    assert repr(history(seed, TICKS // 2).journal.events) == repr(history(seed, TICKS // 2).journal.events)
