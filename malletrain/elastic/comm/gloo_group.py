"""Process groups over gloo: CPU tensors over TCP.

Gloo takes whoever connects to its port first, and sends the small number of a pair, for that pair's member. So each
two members prove to each other that they are who they are, before anything else is sent.
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from malletrain.elastic.comm.authentication import MAC_BYTES, NONCE_BYTES, Meeting, mac
from malletrain.elastic.comm.background import BackgroundThread
from malletrain.elastic.comm.group import Group, SoloGroup, Work, abandoned
from malletrain.elastic.comm.peer_store import PeerStore, first_line
from malletrain.elastic.errors import PeerLost

#: Much of what is needed here is exported without types.
_dist: Any = torch.distributed

#: Gloo's own limit on a collective, and NCCL's: longer than any step or evaluation on one rank. Callers wait in short
#: slices, and the daemon says who is gone.
OPERATION_TIMEOUT = timedelta(hours=2)

#: Limit on a message of at most 64 MiB between two peers.
MESSAGE_TIMEOUT = timedelta(minutes=2)

#: How long a member has to answer. It may have come to the group later, or be slow.
ANSWER_TIMEOUT_S = 15.0

#: Tag of its messages.
_TAG = 0


def make_group(meeting: Meeting, rank: int, size: int, host: str, timeout: timedelta, part: str = "") -> Group:
    """Rendezvous with `size - 1` peers and connect to them; blocks until all have come and proven that they are
    members. `host`: the address at which peers reach this process, and the only one that it listens on. `part`: tells
    several groups of one generation apart. Raises `PeerLost`: not all peers came within `timeout`, one of them is a
    stranger, or the store is gone."""
    if size == 1:
        return SoloGroup()
    store = PeerStore.at(meeting, timeout.total_seconds(), part)
    try:
        options = _dist.ProcessGroupGloo._Options()
        # Pairs are connected now: a stranger could take one that is connected later.
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname=host, lazy_init=False)]
        # While the group is made, a peer that never comes must not hold this thread for OPERATION_TIMEOUT.
        options._timeout = timeout
        group = _dist.ProcessGroupGloo(store, rank, size, options)
        group._set_default_timeout(OPERATION_TIMEOUT)
    except RuntimeError as error:  # the base class of DistStoreError and DistNetworkError
        raise PeerLost(first_line(error)) from error
    finally:
        store.close()
    held = [group]
    try:
        prove_pairs(group, rank, size, meeting, part, held)
    except PeerLost:
        del group
        BackgroundThread(held.clear, "close-group")
        raise
    return GlooGroup(group, rank, size)


class GlooGroup:
    """A `Group` over a `ProcessGroupGloo`."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self._group: Any = group
        self.rank = rank
        self.size = size
        self._pending: list[_GlooWork] = []

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        options = _dist.AllreduceOptions()
        options.timeout = OPERATION_TIMEOUT
        work = _GlooWork(self._call(lambda group: group.allreduce([tensor], options)))
        self._pending = [*(other for other in self._pending if not other.done), work]
        return work

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        # Unlike a collective, a message whose wait times out breaks the whole group: one long wait, no slices.
        self._call(lambda group: group.send([tensor], to, tag).wait(MESSAGE_TIMEOUT))

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        self._call(lambda group: group.recv([tensor], source, tag).wait(MESSAGE_TIMEOUT))

    def abandon(self) -> None:
        """Give the group up. Closing it blocks while one of its operations is stuck (abort and shutdown do not help),
        so a thread does that, and keeps alive the tensors that operations may still write to."""
        if self._group is None:
            return
        held = [self._group, *(each.given_up() for each in self._pending)]  # closed after they are dropped
        self._group, self._pending = None, []
        BackgroundThread(held.clear, "close-group")

    def _call(self, call: Callable[[Any], Any]) -> Any:
        group = self._group  # another thread may abandon it meanwhile
        if group is None:
            raise abandoned()
        try:
            return call(group)
        except RuntimeError as error:
            raise PeerLost(first_line(error)) from error


class _GlooWork:
    """Keeps torch's work no longer than it must: dropping a group's last one closes it, and takes 20 ms."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.done = False

    def given_up(self) -> Any:
        """Torch's work, which its group's thread drops."""
        work, self._work = self._work, None
        return work

    def wait(self, seconds: float) -> bool:
        if self.done:
            return True
        if (work := self._work) is None:
            raise abandoned()
        try:
            work.wait(timedelta(seconds=max(seconds, 0.001)))
        except RuntimeError as error:
            if not work.is_completed():
                return False  # this wait timed out; the operation goes on
            # It completed, possibly just now: wait once more to learn whether it failed.
            try:
                work.wait(timedelta(seconds=0.001))
            except RuntimeError as final:
                raise PeerLost(first_line(final)) from error
        self.done, self._work = True, None
        return True


def prove_pairs(group: Any, rank: int, size: int, meeting: Meeting, part: str, held: list[Any]) -> None:
    """Prove membership to each other member, and have each prove it. All members call this first.

    Both ends of a pair send a random number, and answer the other's with an HMAC of both, of their ranks and of the
    group under the generation's secret. A stranger who took a pair cannot answer, nor have the answer from another
    member: that would name another pair. Who can alter the packets of a connection afterwards is not kept out.

    `held` gets what operations may write to; keep it as long as the group. Raises `PeerLost`: a peer is lost, or is
    no member.
    """
    peers = [peer for peer in range(size) if peer != rank]
    end = time.monotonic() + ANSWER_TIMEOUT_S
    mine = {peer: os.urandom(NONCE_BYTES) for peer in peers}
    theirs = _exchange(group, mine, NONCE_BYTES, end, held)

    def proof(prover: int, verifier: int, its: bytes, other: bytes) -> bytes:
        return mac(meeting.secret, "pair", meeting.generation, part, prover, verifier, its, other)

    answers = _exchange(
        group, {peer: proof(rank, peer, mine[peer], theirs[peer]) for peer in peers}, MAC_BYTES, end, held
    )
    for peer in peers:
        if not hmac.compare_digest(answers[peer], proof(peer, rank, theirs[peer], mine[peer])):
            raise PeerLost(f"who connected as rank {peer} has not the secret of generation {meeting.generation}")


def _exchange(group: Any, messages: dict[int, bytes], size: int, end: float, held: list[Any]) -> dict[int, bytes]:
    """Send each peer a message and receive one of `size` bytes from it."""
    sent = {peer: torch.frombuffer(bytearray(message), dtype=torch.uint8) for peer, message in messages.items()}
    received = {peer: torch.zeros(size, dtype=torch.uint8) for peer in messages}
    held += [sent, received]
    try:
        works = [group.recv([received[peer]], peer, _TAG) for peer in messages]
        works += [group.send([sent[peer]], peer, _TAG) for peer in messages]
        held += works
        for work in works:
            work.wait(timedelta(seconds=max(0.001, end - time.monotonic())))
    except RuntimeError as error:
        raise PeerLost(f"a peer has not proven itself: {str(error).splitlines()[0][-200:]}") from error
    return {peer: tensor.numpy().tobytes() for peer, tensor in received.items()}
