"""Each two members of a gloo group prove to each other that they are who they are, before anything else is sent.

Gloo takes whoever connects to its port first, and sends the small number of a pair, for that pair's member. So both
ends of each pair send a random number, and answer the other's with an HMAC of both, of their ranks and of the group
under the generation's secret. A stranger who took a pair cannot answer, nor have the answer from another member: that
would name another pair. Who can read and alter the packets of a connection afterwards is not kept out.
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from malletrain.elastic.comm.authentication import MAC_BYTES, NONCE_BYTES, Meeting, mac
from malletrain.elastic.errors import PeerLost

#: How long a member has to answer. It may have come to the group later, or be slow.
ANSWER_TIMEOUT_S = 15.0

#: Tag of the messages.
_TAG = 0


def prove_pairs(group: Any, rank: int, size: int, meeting: Meeting, part: str, held: list[Any]) -> None:
    """Prove membership to each other member, and have each prove it. All members call this first.

    Args:
        group: the `ProcessGroupGloo`.
        part: as of `gloo_group.make_group`.
        held: gets what operations may write to; keep it as long as the group.

    Raises:
        PeerLost: a peer is lost, or is no member.
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
    works = [_start(lambda p=peer: group.recv([received[p]], p, _TAG)) for peer in messages]  # type: ignore[misc]
    works += [_start(lambda p=peer: group.send([sent[p]], p, _TAG)) for peer in messages]  # type: ignore[misc]
    held += works
    for work in works:
        left = timedelta(seconds=max(0.001, end - time.monotonic()))
        _start(lambda work=work, left=left: work.wait(left))  # type: ignore[misc]
    return {peer: tensor.numpy().tobytes() for peer, tensor in received.items()}


def _start(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RuntimeError as error:
        raise PeerLost(f"a peer has not proven itself: {str(error).splitlines()[0][-200:]}") from error
