"""Nodes that cannot reach the daemon, or one another, while nobody is told: real workers in network namespaces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.lab.node_network import DAEMON, NodeNetwork
from tests.elastic.coordinator import Coordinator, Pod, running
from tests.elastic.digits import SCRIPT, Static, diary, slow, wait_lines
from tests.node_network import network_of
from tests.waiting import wait_until

#: Cuts are shorter or longer than what workers wait for. A default sibling: tests/lab/test_node_network.py.
pytestmark = [pytest.mark.nightly, pytest.mark.alone]

#: How long a worker's poll lasts, and time limits of membership: short, so that a cut outlasts them.
POLL_S, SILENCE_S, FENCE_S = 1.0, 10.0, 8.0


@pytest.fixture
def network() -> Iterator[NodeNetwork]:
    yield from network_of(3)


def begin(network: NodeNetwork, daemon: Coordinator, pod: Pod) -> None:
    """Three workers that train, a node each."""
    for task in range(3):
        near = {"NETWORK": network.namespace(task), "POLL": str(POLL_S)}
        pod.spawn(daemon.url, task, [SCRIPT, *slow(pod.directory)], 0, **near)
    daemon.wait_world([0, 1, 2])
    wait_until(lambda: len(diary(pod.directory)) >= 6, 60, "some steps of the three")


def finish(daemon: Coordinator, pod: Pod, static: Static) -> None:
    """Members end, whoever was given up learns of it, and the result is right."""
    (pod.directory / "go").touch()
    statuses = [pod.wait(task, 120) for task in range(3)]
    assert set(statuses) in ({0}, {0, 143}), statuses
    assert daemon.seen("job_failed") == []
    static.assert_like(pod.directory)


#: From where to where nothing arrives.
CUTS = {
    "daemon": ((2, DAEMON), (DAEMON, 2)),
    "to the daemon": ((2, DAEMON),),
    "from the daemon": ((DAEMON, 2),),
    "main worker and daemon": ((0, DAEMON), (DAEMON, 0)),
    "two nodes": ((0, 2), (2, 0)),
    "two nodes, one way": ((2, 0),),
    "one node and both others": ((0, 2), (2, 0), (1, 2), (2, 1)),
    "one node and everybody": ((0, 2), (2, 0), (1, 2), (2, 1), (2, DAEMON), (DAEMON, 2)),
}


@pytest.mark.parametrize("seconds", [2.0, 20.0], ids=["shortly", "for long"])
@pytest.mark.parametrize("cut", CUTS)
def test_whatever_is_cut_the_result_is_that_of_a_static_run(
    tmp_path: Path, static: Static, network: NodeNetwork, cut: str, seconds: float
) -> None:
    """Shorter and longer than what the daemon and workers wait for."""
    with running(tmp_path, host=network.daemon_host, silence_s=SILENCE_S, fence_s=FENCE_S) as (daemon, pod):
        begin(network, daemon, pod)
        for source, target in CUTS[cut]:
            network.cut_one_way(source, target)
        time.sleep(seconds)  # the length of the fault, not a wait for something
        if cut == "one node and everybody" and seconds > SILENCE_S:
            daemon.wait_world([0, 1], 60)
            wait_lines(tmp_path, 3, 60, "the two go on")
        for node in range(3):
            network.rejoin(node)
        finish(daemon, pod, static)
