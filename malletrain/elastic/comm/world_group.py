"""The group of a world: by the processes of its nodes and the device of their models."""

from __future__ import annotations

import json
import secrets
from datetime import timedelta

import torch

from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.carrier import DeviceCarrier
from malletrain.elastic.comm.device_group import DeviceGroup, PairedGroup
from malletrain.elastic.comm.gloo_group import make_group
from malletrain.elastic.comm.group import Group, table_of, wait_complete
from malletrain.elastic.comm.node_group import LocalRank, NodeGroup
from malletrain.elastic.comm.peer_store import PeerStore, StoreServer
from malletrain.elastic.errors import ElasticError, PeerLost

#: Room for an address and a secret.
MAX_MEETING_BYTES = 512


def make_world_group(
    meeting: Meeting,
    node: int,
    nodes: int,
    local_rank: LocalRank,
    host: str,
    timeout: timedelta,
    carrier: DeviceCarrier | None = None,
) -> Group:
    """Make the group of a world of `nodes` nodes with `local_rank.size` processes each, as `gloo_group.make_group`;
    blocks until all have come. `carrier`: of device tensors; NCCL's part is flat over all processes. Raises
    `PeerLost`: not all peers came within `timeout`, the store is gone, or a peer has another carrier; `ElasticError`:
    the device of this process has failed, or its carrier is not that of the first member."""
    group = _host_group(meeting, node, nodes, local_rank, host, timeout)
    try:
        require_one_carrier(group, carrier)
    except BaseException:
        group.abandon()
        raise
    if carrier is None or group.size == 1:
        return group

    paired = _paired(group, carrier, meeting)
    try:
        paired.connect_in_background(carrier.connect_limit)
    except BaseException:
        paired.abandon()
        raise
    return paired


def require_one_carrier(group: Group, carrier: DeviceCarrier | None) -> None:
    """Refuse a group in which some members sum gradients on their devices and others in host memory: their sums would
    wait for each other for ever. Blocks until all members have called it. Raises `ElasticError`: this process differs
    from the first; `PeerLost`: another one does, or is lost."""
    if group.size == 1:
        return
    table = table_of(group, [int(carrier is not None)])
    wait_complete(group.all_reduce(table))
    kinds = [bool(each) for each in table]
    others = [rank for rank, kind in enumerate(kinds) if kind != kinds[0]]
    if not others:
        return
    if group.rank in others:
        mine, theirs = ("NCCL", "gloo") if kinds[group.rank] else ("gloo", "NCCL")
        raise ElasticError(
            f"this process sums gradients over {mine}, and the first of its world over {theirs}: all nodes of a job "
            "need the same (whole GPUs or slices, MALLETRAIN_BACKEND, a torch with NCCL); --gpus-per-node=TYPE:N "
            "asks for nodes of one kind"
        )
    raise PeerLost(f"rank {', '.join(map(str, others))} sums gradients in another way than rank 0")


def with_device(group: Group, carrier: DeviceCarrier, host: str, limit: timedelta) -> Group:
    """Add a device part to the group of processes that were started together; blocks until all have it. Rank 0 serves
    a store for that on `host`, and the group tells the others where it is and what it asks for. A group that has such
    a part is returned as it is. Raises `PeerLost`: not all came within `limit`; `ElasticError`: the device of this
    process has failed."""
    if group.size == 1 or isinstance(group, PairedGroup):
        return group
    server = StoreServer(host) if group.rank == 0 else None
    word = torch.zeros(MAX_MEETING_BYTES, dtype=torch.int64)
    if server is not None:
        meeting = Meeting(server.address, 1, secrets.token_hex())
        server.trust(meeting)
        text = json.dumps([meeting.address, meeting.secret]).encode()
        word[: len(text)] = torch.tensor(list(text))
    wait_complete(group.all_reduce(word))
    address, secret = json.loads(bytes(word.tolist()).rstrip(b"\0"))
    meeting = Meeting(address, 1, secret)

    paired = _paired(group, carrier, meeting)
    paired.connect_now(limit, lambda: None)
    return paired


def _paired(group: Group, carrier: DeviceCarrier, meeting: Meeting) -> PairedGroup:
    def connect(attempt: str, limit: timedelta) -> DeviceGroup:
        store = PeerStore.at(meeting, limit.total_seconds(), f"-device-{attempt}")
        return DeviceGroup(carrier.connect(store, group.rank, group.size, limit), group.rank, group.size)

    return PairedGroup(group, carrier.takes, connect)


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
