"""The only maker of process groups. A group is an object; torch.distributed's global state is never touched.

Groups cannot be repaired, only replaced: a generation gets a fresh one, on its own prefix of the store of its oldest
member. Operations are waited for in slices, so that a worker never hangs on a peer that will not answer.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed

from malletrain.elastic.comm.background import Background
from malletrain.elastic.errors import PeerLost

#: Much of what is needed here is exported without types.
dist: Any = torch.distributed
_c10d: Any = torch._C._distributed_c10d

#: An operation that nobody interrupts gives up after this: longer than any step or evaluation on one rank.
OPERATION_TIMEOUT = timedelta(hours=2)

#: A message of at most 64 MiB between two peers.
MESSAGE_TIMEOUT = timedelta(minutes=2)


T = TypeVar("T")


class Pending(Protocol):
    """An operation under way."""

    def wait(self, seconds: float) -> bool:
        """Whether it is done, after at most `seconds`.

        Raises:
            PeerLost: it failed; the group is of no more use.
        """
        ...


class Group(Protocol):
    """What the runtime needs of a process group. Every member calls the same operations in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        """Sum over members, in place."""
        ...

    def all_gather(self, into: Sequence[torch.Tensor], tensor: torch.Tensor) -> Pending:
        """`into[r]` becomes the `tensor` of rank r."""
        ...

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        """Blocks: for a thread of its own. Raises `PeerLost`."""
        ...

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        """Blocks: for a thread of its own. Raises `PeerLost`."""
        ...

    def abandon(self) -> None:
        """Give the group up, whatever is still under way in it. Returns at once."""
        ...


class StoreServer:
    """The store that a worker serves for its life: worlds whose oldest member it is meet there."""

    def __init__(self, host: str) -> None:
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self.address = join_address(host, self._store.port)
        self.board = Board(self._store)


class Board:
    """Short texts in a store. A process that is frozen accepts connections and never answers, whatever time-out its
    client was given: every call is made in a thread that can be left behind.

    Args:
        store: to read and write.
        patience: for how long a call may take.
    """

    def __init__(self, store: Any, patience: timedelta = timedelta(seconds=1)) -> None:
        self._store = store
        self._patience = patience

    @staticmethod
    def at(address: str, patience: timedelta) -> Board:
        """The board that a member serves.

        Raises:
            PeerLost: nobody answers there within `patience`.
        """
        where, port = split_address(address)
        try:
            # The store's client would go on trying where nobody listens.
            socket.create_connection((where, port), patience.total_seconds()).close()
        except OSError as error:
            raise PeerLost(_first_line(error)) from error
        return Board(
            _within(patience, lambda: dist.TCPStore(where, port, timeout=patience, wait_for_workers=False)), patience
        )

    def put(self, key: str, text: str) -> None:
        """Write, over what is there. Raises `PeerLost`."""
        _within(self._patience, lambda: self._store.set(key, text))

    def get(self, key: str) -> str | None:
        """What is there, or None. Raises `PeerLost`."""

        def read() -> str | None:
            return self._store.get(key).decode() if self._store.check([key]) else None

        return _within(self._patience, read)


def _within(patience: timedelta, call: Callable[[], T]) -> T:
    got: list[T] = []
    work = Background(lambda: got.append(call()), "store")
    try:
        if not work.wait(patience.total_seconds()):
            raise PeerLost(f"no answer from a peer's store for {patience.total_seconds():g} s")
    except RuntimeError as error:  # DistStoreError and DistNetworkError are such
        raise PeerLost(_first_line(error)) from error
    return got[0]


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """The inverse of `join_address`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def own_host(daemon_host: str | None, override: str | None) -> str:
    """The address at which peers reach this machine: what the user says, else the one that faces the daemon."""
    if override:
        return override
    if daemon_host:
        for family, _, _, _, where in socket.getaddrinfo(daemon_host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)
                return str(probe.getsockname()[0])
    return socket.gethostbyname(socket.gethostname())


def make_group(
    address: str, generation: int, rank: int, size: int, host: str, patience: timedelta, part: str = ""
) -> Group:
    """A group of `size` members that meet at the store `address`; blocks until the others come. `part` tells the
    groups of one generation apart.

    Raises:
        PeerLost: they did not come within `patience`, or the store is gone.
    """
    if size == 1:
        return Solo()
    where, port = split_address(address)
    try:
        store = dist.TCPStore(where, port, is_master=False, timeout=patience, wait_for_workers=False)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        # While the group is being made, peers that never come must not hold this thread for hours.
        options._timeout = patience
        group = dist.ProcessGroupGloo(dist.PrefixStore(f"generation-{generation}{part}", store), rank, size, options)
        group._set_default_timeout(OPERATION_TIMEOUT)
    except RuntimeError as error:  # DistStoreError and DistNetworkError are such
        raise PeerLost(_first_line(error)) from error
    return Gloo(group, rank, size)


class Gloo:
    """CPU tensors over TCP."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self._group: Any = group
        self.rank = rank
        self.size = size
        self._pending: list[Any] = []

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        options = dist.AllreduceOptions()
        options.timeout = OPERATION_TIMEOUT
        return self._start(lambda group: group.allreduce([tensor], options))

    def all_gather(self, into: Sequence[torch.Tensor], tensor: torch.Tensor) -> Pending:
        options = _c10d.AllgatherOptions()
        options.timeout = OPERATION_TIMEOUT
        return self._start(lambda group: group.allgather([list(into)], [tensor], options))

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        self._through(lambda group: group.send([tensor], to, tag))

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        self._through(lambda group: group.recv([tensor], source, tag))

    def _through(self, call: Any) -> None:
        # Unlike a collective, a message whose wait runs out takes the whole group with it: one long wait, no slices.
        group = self._group
        if group is None:
            raise PeerLost("the group was given up")
        try:
            call(group).wait(MESSAGE_TIMEOUT)
        except RuntimeError as error:
            raise PeerLost(_first_line(error)) from error

    def abandon(self) -> None:
        """Closing a group blocks while an operation of it is stuck (and neither abort nor shutdown help), so a
        thread does it; what the operations may still write to stays alive as long."""
        if self._group is None:
            return
        grave = [self._pending, self._group]
        self._group, self._pending = None, []
        digger = threading.Thread(target=grave.clear, name="malletrain-bury", daemon=True)
        _graves[:] = [*(each for each in _graves if each.is_alive()), digger]
        digger.start()

    def _start(self, call: Any) -> Pending:
        group = self._group  # another thread may give it up
        if group is None:
            raise PeerLost("the group was given up")
        try:
            work = call(group)
        except RuntimeError as error:
            raise PeerLost(_first_line(error)) from error
        self._pending = [other for other in self._pending if not other.done]
        pending = _Work(work)
        self._pending.append(pending)
        return pending


#: Threads that close given-up groups.
_graves: list[threading.Thread] = []


def all_closed(seconds: float) -> bool:
    """Whether every group that was given up is closed by now. One that is stuck in an operation is not, and a
    process that ends by the usual way then dies of it in the C++ runtime."""
    end = time.monotonic() + seconds
    for digger in _graves:
        digger.join(max(0.0, end - time.monotonic()))
    return not any(digger.is_alive() for digger in _graves)


class _Work:
    def __init__(self, work: Any) -> None:
        self._work = work
        self.done = False

    def wait(self, seconds: float) -> bool:
        if self.done:
            return True
        try:
            self._work.wait(timedelta(seconds=max(seconds, 0.001)))
        except RuntimeError as error:
            if not self._work.is_completed():
                return False  # the slice is over, not the operation
            # It completed, maybe in this very moment: ask again whether well or ill.
            try:
                self._work.wait(timedelta(seconds=0.001))
            except RuntimeError as final:
                self.done = True
                raise PeerLost(_first_line(final)) from error
        self.done = True
        return True


class Solo:
    """A world of one: every operation is done already."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        return _Done()

    def all_gather(self, into: Sequence[torch.Tensor], tensor: torch.Tensor) -> Pending:
        into[0].copy_(tensor)
        return _Done()

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        raise PeerLost("alone")

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        raise PeerLost("alone")

    def abandon(self) -> None:
        pass


class _Done:
    def wait(self, seconds: float) -> bool:
        return True


def _first_line(error: Exception) -> str:
    """What gloo says, without the place in its source and the well-meant rest."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^\]]*\]\s*", "", line).partition(". This is typically")[0][:300]
