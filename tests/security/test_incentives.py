"""What a user gains by lying: of the curve, the samples, the sizes, the number of jobs. Two users want all nodes.

Each lie is played for an hour and a half on 16 nodes against the same user telling the truth; Bob is honest. Counted
are node hours, which `malletrain report` shows by user with their share of the day.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from malletrain.domain.event import JsonValue
from malletrain.domain.job import Curve, MalleableJob
from tests.world import RULES, World, event_of, job

NODES, TICK_S, HOURS = 16, 60.0, 1.5
SITE = replace(RULES, user_share=0.5, max_pilot_s=86_400.0)


def truth(n: int) -> float:
    return float(100.0 * n**0.8)


def honest(number: int, user: str = "alice", **more: object) -> MalleableJob:
    mine = replace(job(number, most=NODES), user=user, uid=1001 if user == "alice" else 1002)
    return replace(mine, **more)  # type: ignore[arg-type]


def inflated(number: int) -> MalleableJob:
    """Claims to scale perfectly."""
    return honest(number, given_curve=Curve.linear(NODES, 100.0))


def superlinear(number: int) -> MalleableJob:
    return honest(number, given_curve=Curve(((1, 100.0), (16, 100_000.0))))


def wide(number: int) -> MalleableJob:
    """Claims that it cannot run on fewer than half of the nodes."""
    return replace(honest(number), min_nodes=NODES // 2)


def all_or_nothing(number: int) -> MalleableJob:
    return replace(honest(number), min_nodes=NODES)


def short(number: int) -> MalleableJob:
    """Claims to have next to nothing left."""
    return honest(number, total_samples=1.0)


LIES: dict[str, tuple[Callable[[int], MalleableJob], int]] = {
    "inflated curve": (inflated, 1), "superlinear curve": (superlinear, 1), "wide minimum": (wide, 1),
    "all or nothing": (all_or_nothing, 1), "next to no samples left": (short, 1), "six jobs for one": (honest, 6),
    "samples that were not trained": (honest, 1),
}  # fmt: skip
#: What a lie may bring at most, over the truth.
MOST_GAIN = 1.1


def node_hours(jobs: Iterable[MalleableJob], boast: float = 1.0) -> dict[str, float]:
    """Node hours by user; the first user's workers report `boast` times the samples that they train."""
    world = World(NODES, SITE)
    users = {}
    for each in jobs:
        world.submit(each, tasks=24)
        users[each.id] = each.user
    members: dict[int, tuple[str, ...]] = {}
    held = dict.fromkeys(users.values(), 0.0)
    generation = 0
    for _ in range(int(HOURS * 3600 / TICK_S)):
        world.tick(TICK_S)
        events, now = [], world.clock.now()
        for number, user in users.items():
            mine = tuple(pilot.id for pilot in world.loop.ledger.views()[number].staying)
            held[user] += len(mine) * TICK_S / 3600
            if mine != members.get(number, ()):
                generation += 1
                data: dict[str, JsonValue] = {"generation": generation, "members": list(mine)}
                events.append(event_of(now, "generation", number, data=data))
            elif mine:
                rate = truth(len(mine)) * (boast * len(mine) ** 0.3 if user == "alice" and boast > 1 else 1.0)
                rated: dict[str, JsonValue] = {"nodes": len(mine), "samples": 10 * rate, "seconds": 10.0, "steps": 20}
                events.append(event_of(now, "samples", number, mine[0], data=rated))
            members[number] = mine
        world.workers.report(*events)
    return held


@functools.cache
def told_the_truth() -> dict[str, float]:
    return node_hours([honest(1), honest(50, "bob")])


@pytest.mark.parametrize("lie", LIES)
def test_no_lie_pays_much(lie: str) -> None:
    """With `user_share` .5 a lie brings no more than half of the nodes while the other user wants them. A job that
    says that it needs every node has them during its turns only (before, it had 80 % of the node time); meanwhile the
    other has all, so that no node stands idle."""
    make, count = LIES[lie]
    bob = honest(50, "bob")
    plain = told_the_truth()
    lied = node_hours([*(make(n) for n in range(1, count + 1)), bob], 3.0 if lie.startswith("samples") else 1.0)
    assert lied["alice"] <= MOST_GAIN * plain["alice"], (lie, plain, lied)
    assert lied["bob"] >= 0.45 * NODES * HOURS, (lie, plain, lied)
    assert sum(lied.values()) >= 0.9 * NODES * HOURS, (lie, lied)
