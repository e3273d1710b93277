"""What a researcher and a site say of classes of nodes, from their words to the pilots that start."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest

from malletrain import config
from malletrain.api.requests import LoopRequests
from malletrain.api.roles import Identity
from malletrain.api.schemas import JobBody
from malletrain.domain.event import ArrayAttached, Event
from malletrain.site_rules import rules_from
from malletrain.slurm.site.site_facts import Harvest
from malletrain.slurm.submission.batch_request import request
from malletrain.slurm.submission.directives import BatchOptions
from malletrain.wire.address import Address
from tests.daemon.test_sizing_rules import facts_of
from tests.loop.test_class_sizing import NEW, OLD, Training
from tests.world import World

ADA = Identity(1001, 1001, "alice")


def site(text: str, new: int, old: int) -> World:
    """A daemon's loop with the rules of a configuration file, on so many nodes of two classes."""
    names = [f"n{i}" for i in range(new + old)]
    world = World(new + old, rules_from(config.parse(text, "malletrain.toml"), facts_of(frozenset(names))))
    for i, name in enumerate(names):
        world.cluster.nodes[name] = replace(world.cluster.nodes[name], gres=f"{NEW if i < new else OLD}(S:0-1)")
    return world


def submit(world: World, lines: str) -> int:
    """A job, as `mtbatch` announces the script with these lines, and its array."""
    script = f"#!/bin/bash\n#SBATCH --nodes=1-8\n{lines}\npython train.py\n".encode()
    wanted = request(script, "train.sh", BatchOptions(), (), Address("", "harvest"), "/home/alice")
    requests = LoopRequests(
        world.loop, nullcontext(), world.clock, Harvest("harvest"), lambda count: (), iter(range(1, 9)).__next__
    )
    number = requests.announce(JobBody.model_validate_json(json.dumps(wanted.announcement())), ADA)
    array = world.cluster.submit_array("alice", 60)
    world.loop.record([Event(world.clock.now(), ArrayAttached(array, 60), number)])
    return number


def nodes_after(world: World, number: int) -> dict[str, int]:
    training = Training(world, {number: {NEW: 400.0, OLD: 100.0}}, float)
    for _ in range(25):
        training.tick()
    return training.counts(number)


GREEDY = "[pool]\nkeep_idle = 0\n"


@pytest.mark.parametrize(
    ("lines", "old", "held"),
    [
        ("", 3, {OLD: 3}),
        ("#MALLETRAIN --min-on=v100:4", 3, {}),
        ("#MALLETRAIN --min-on=v100:4", 4, {OLD: 4}),
        ("#MALLETRAIN --min-on=a100:4", 3, {OLD: 3}),
    ],
)
def test_fewest_nodes_of_a_class_hold_in_the_daemon(lines: str, old: int, held: dict[str, int]) -> None:
    world = site(GREEDY, 0, old)
    assert nodes_after(world, submit(world, lines)) == held


def test_a_slow_node_holds_the_others_up_and_is_given_up() -> None:
    world = site(GREEDY, 4, 2)
    assert nodes_after(world, submit(world, "")) == {NEW: 4}
