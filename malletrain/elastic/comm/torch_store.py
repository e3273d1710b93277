"""A member's store as a torch `Store`, through which process groups exchange their addresses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed

from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.peer_store import PeerStore
from malletrain.elastic.errors import PeerLost

#: Exported without types.
_dist: Any = torch.distributed


def generation_store(meeting: Meeting, part: str, timeout: timedelta) -> GenerationStore:
    """Connect to the part of a member's store where one group of a generation meets.

    Raises:
        PeerLost: the store does not answer, or does not prove that it is a member's.
    """
    peer_store = PeerStore.at(meeting, timeout.total_seconds())
    return GenerationStore(peer_store, f"generation-{meeting.generation}{part}/", timeout)


class GenerationStore(_dist.Store):  # type: ignore[misc]  # of torch, without types
    """Keys of one group in a member's store. Keep it as long as a process group uses it: torch keeps a part of it
    only. It has the calls that gloo and NCCL make.

    Args:
        peer_store: the member's.
        prefix: of the keys.
        patience: how long to wait for a key.
    """

    def __init__(self, peer_store: PeerStore, prefix: str, patience: timedelta) -> None:
        super().__init__()
        self._peer_store = peer_store
        self._prefix = prefix
        self._patience = patience

    def set(self, key: str, value: bytes | str) -> None:
        self._peer_store.set(self._prefix + key, value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        return self._get(key, self._patience)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._get(key, timeout or self._patience)

    def _get(self, key: str, patience: timedelta) -> bytes:
        found = self._peer_store.wait(self._prefix + key, patience.total_seconds())
        if found is None:
            raise PeerLost(f"not all peers have come within {patience.total_seconds():g} s")
        return found

    def check(self, keys: list[str]) -> bool:
        return all(self._peer_store.wait(self._prefix + key, 0.0) is not None for key in keys)

    def add(self, key: str, number: int) -> int:
        return self._peer_store.add(self._prefix + key, number)

    def has_extended_api(self) -> bool:
        return False

    def clone(self) -> GenerationStore:
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        self._patience = timeout

    def close(self) -> None:
        """Close the connection."""
        self._peer_store.close()
