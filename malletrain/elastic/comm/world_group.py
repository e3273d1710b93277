"""The group of a world: by the processes of its nodes and the device of their models."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.carrier import DeviceCarrier
from malletrain.elastic.comm.device_group import DeviceGroup
from malletrain.elastic.comm.gloo_group import make_group
from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.local_rank import LocalRank
from malletrain.elastic.comm.node_group import NodeGroup
from malletrain.elastic.comm.paired_group import PairedGroup
from malletrain.elastic.comm.torch_store import generation_store
from malletrain.elastic.errors import PeerLost


def make_world_group(
    meeting: Meeting,
    node: int,
    nodes: int,
    local_rank: LocalRank,
    host: str,
    timeout: timedelta,
    carrier: DeviceCarrier | None = None,
) -> Group:
    """Make the group of a world of `nodes` nodes with `local_rank.size` processes each; blocks until all have come.

    Args: as of `gloo_group.make_group`, and
        carrier: of device tensors. NCCL finds the nodes' topology itself, so its part is flat over all processes.

    Raises:
        PeerLost: not all peers came within `timeout`, or the store is gone.
        ElasticError: the device of this process has failed.
    """
    group = _host_group(meeting, node, nodes, local_rank, host, timeout)
    if carrier is None or group.size == 1:
        return group

    def connect(attempt: str, limit: timedelta) -> DeviceGroup:
        store = generation_store(meeting, f"-device-{attempt}", limit)
        return DeviceGroup(carrier.connect(store, group.rank, group.size, limit), group.rank, group.size)

    paired = PairedGroup(group, carrier.takes, connect)
    if carrier.beside_limit is not None:
        try:
            paired.connect_beside(carrier.beside_limit)
        except BaseException:
            paired.abandon()
            raise
    return paired


def finish_connecting(group: Group, limit: timedelta, check: Callable[[], None]) -> None:
    """Connect between two steps what was not connected beside training.

    Args:
        group: of `make_world_group`; its members all call this.
        limit: how long to wait for them.
        check: called meanwhile; may raise.

    Raises:
        PeerLost: not all came within `limit`.
        ElasticError: the device of this process has failed.
    """
    if isinstance(group, PairedGroup):
        group.connect_now(limit, check)


def _host_group(
    meeting: Meeting, node: int, nodes: int, local_rank: LocalRank, host: str, timeout: timedelta
) -> Group:
    if local_rank.size == 1:
        return make_group(meeting, node, nodes, host, timeout)
    local = make_group(meeting, local_rank.rank, local_rank.size, host, timeout, f"-node-{node}")
    try:
        across = make_group(meeting, node, nodes, host, timeout, f"-place-{local_rank.rank}")
    except PeerLost:
        local.abandon()
        raise
    return NodeGroup(local, across)
