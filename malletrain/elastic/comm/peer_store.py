"""Key-value stores that workers serve for each other (torch's TCPStore), with calls that always return in time."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed

from malletrain.elastic.comm.addresses import join_address, split_address
from malletrain.elastic.comm.background import Background
from malletrain.elastic.errors import PeerLost

#: Much of what is needed here is exported without types.
_dist: Any = torch.distributed

T = TypeVar("T")


class StoreServer:
    """The store that a worker serves until its process ends. Groups of the worlds whose oldest member it is
    rendezvous there."""

    def __init__(self, host: str) -> None:
        self._store = _dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self.address = join_address(host, self._store.port)
        self.peer_store = PeerStore(self._store)


class PeerStore:
    """Short texts in a worker's store, read and written by itself and by its peers.

    A frozen process still accepts connections and never answers, whatever timeout TCPStore's client has. So each call
    runs in a thread that is left behind when `timeout` expires.

    Args:
        store: the TCPStore.
        timeout: of each call.
    """

    def __init__(self, store: Any, timeout: timedelta = timedelta(seconds=1)) -> None:
        self._store = store
        self._timeout = timeout

    @staticmethod
    def at(address: str, timeout: timedelta) -> PeerStore:
        """Connect to the store that a member serves.

        Raises:
            PeerLost: no answer within `timeout`.
        """
        where, port = split_address(address)
        try:
            # TCPStore's client retries for long where nothing listens; a plain connection fails at once.
            socket.create_connection((where, port), timeout.total_seconds()).close()
        except OSError as error:
            raise PeerLost(first_line(error)) from error
        return PeerStore(
            _within(timeout, lambda: _dist.TCPStore(where, port, timeout=timeout, wait_for_workers=False)), timeout
        )

    def put(self, key: str, text: str) -> None:
        """Set a key, replacing its value. Raises `PeerLost`."""
        _within(self._timeout, lambda: self._store.set(key, text))

    def get(self, key: str) -> str | None:
        """The value of a key, or None if it is not set. Raises `PeerLost`."""

        def read() -> str | None:
            return self._store.get(key).decode() if self._store.check([key]) else None

        return _within(self._timeout, read)


def _within(timeout: timedelta, call: Callable[[], T]) -> T:
    got: list[T] = []
    work = Background(lambda: got.append(call()), "store")
    try:
        if not work.wait(timeout.total_seconds()):
            raise PeerLost(f"no answer from a peer's store for {timeout.total_seconds():g} s")
    except RuntimeError as error:  # the base class of DistStoreError and DistNetworkError
        raise PeerLost(first_line(error)) from error
    return got[0]


def first_line(error: Exception) -> str:
    """The message of a c10d error, without source location and general advice."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^\]]*\]\s*", "", line).partition(". This is typically")[0][:300]
