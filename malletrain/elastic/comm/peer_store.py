"""Key-value stores that workers serve for the members of their generations, through which process groups exchange
their addresses. A call returns in time, or raises."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed

from malletrain.elastic.comm.addresses import join_address
from malletrain.elastic.comm.authentication import (
    PROOF_TIMEOUT_S,
    Channel,
    Meeting,
    NotKnownYet,
    accept,
    close_socket,
    connect,
)
from malletrain.elastic.errors import ElasticError, PeerLost

#: Exported without types.
_dist: Any = torch.distributed

#: Generations whose members are let in: the newest ones. Members vote in one that they were bound to before.
GENERATIONS_KEPT = 16

#: Connections that have not proven themselves yet; of more, the oldest is closed.
MAX_STRANGERS = 64

#: A request waits for a key at the server for at most this long; the client repeats it.
WAIT_SLICE_S = 0.25

#: A client gives a server this long to answer, beyond what it asked it to wait.
ANSWER_TIMEOUT_S = 1.0

_REQUEST = struct.Struct("!cHId")
_SET, _GET, _ADD = b"S", b"G", b"A"


class StoreServer:
    """The store that a worker serves until its process ends, on one `address`. Groups of the worlds whose oldest
    member it is rendezvous there. Raises `ElasticError`: `host` is no address of this machine."""

    def __init__(self, host: str) -> None:
        try:
            family, kind, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
            self._listener = socket.socket(family, kind)
            self._listener.bind(where)
            self._listener.listen(128)
        except OSError as error:
            raise ElasticError(
                f"the store of this worker cannot listen on {host} ({error}): set MALLETRAIN_ADDRESS to an address "
                "of this machine at which the job's other nodes reach it"
            ) from error
        self.address = join_address(host, self._listener.getsockname()[1])
        self._secrets: dict[int, str] = {}
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._strangers: dict[socket.socket, None] = {}
        threading.Thread(target=self._accept, name="malletrain-store", daemon=True).start()

    def trust(self, meeting: Meeting) -> None:
        """Let the members of a generation in. Does nothing where it has no secret."""
        if not meeting.secret:
            return
        with self._changed:
            self._secrets[meeting.generation] = meeting.secret
            for old in sorted(self._secrets)[:-GENERATIONS_KEPT]:
                del self._secrets[old]
            self._changed.notify_all()

    def set(self, key: str, text: str) -> None:
        self._answer(_SET, key, text.encode(), 0.0)

    def look(self, key: str) -> str | None:
        """The value of a key, or None if it is not set."""
        found = self._answer(_GET, key, b"", 0.0)
        return None if found is None else found.decode()

    def close(self) -> None:
        """Stop to listen; connections that are open remain."""
        close_socket(self._listener)

    # --- threads ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(0.1)  # no descriptor is left
                continue
            with self._changed:
                if len(self._strangers) >= MAX_STRANGERS:
                    close_socket(next(iter(self._strangers)))
                    del self._strangers[next(iter(self._strangers))]
                self._strangers[connection] = None
            threading.Thread(target=self._serve, args=(connection,), name="malletrain-peer", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(PeerLost, OSError), connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            try:
                channel = accept(connection, self.address, self._secret_of)
            finally:
                with self._changed:
                    self._strangers.pop(connection, None)
            while True:
                operation, key, value, wait_s = _decode(channel.receive(None))
                found = self._answer(operation, key, value, min(wait_s, WAIT_SLICE_S))
                channel.send(b"0" if found is None else b"1" + found)

    def _secret_of(self, generation: int) -> str:
        """The secret of a generation; a peer may have heard of it before this worker."""
        with self._changed:
            self._changed.wait_for(lambda: generation in self._secrets, PROOF_TIMEOUT_S)
            return self._secrets.get(generation, "")

    def _answer(self, operation: bytes, key: str, value: bytes, wait_s: float) -> bytes | None:
        """Carry a request out; None where there is no such key."""
        values = self._values
        with self._changed:
            if operation == _GET:
                self._changed.wait_for(lambda: key in values, wait_s)
                return values.get(key)
            if operation == _ADD:
                value = str(int(values.get(key, b"0")) + int(value)).encode()
            values[key] = value
            self._changed.notify_all()
            return value


class PeerStore(_dist.Store):  # type: ignore[misc]  # of torch, without types
    """A store that another worker serves, or the keys of one group of a generation in it. Its calls may come from
    several threads, and all raise `PeerLost`. It has the calls that gloo and NCCL make; keep it as long as a process
    group uses it: torch keeps a part of it only. `patience`: how long to wait for a key, or for an answer."""

    def __init__(self, channel: Channel, patience: timedelta, prefix: str = "") -> None:
        super().__init__()
        self._channel = channel
        self._patience = patience
        self._prefix = prefix
        self._lock = threading.Lock()

    @staticmethod
    def at(meeting: Meeting, timeout_s: float, part: str | None = None) -> PeerStore:
        """Connect to the store of a meeting; the member that serves it may hear of the generation late. `part`: where
        one group of the generation meets; None: the whole store. Raises `PeerLost`: nothing answers in time, or it
        does not prove that it is a member."""
        end, patience = time.monotonic() + timeout_s, timedelta(seconds=timeout_s)
        prefix = "" if part is None else f"generation-{meeting.generation}{part}/"
        while True:
            try:
                return PeerStore(connect(meeting, max(0.001, end - time.monotonic())), patience, prefix)
            except NotKnownYet:
                if time.monotonic() + WAIT_SLICE_S > end:
                    raise
                time.sleep(WAIT_SLICE_S)

    def look(self, key: str) -> str | None:
        """The value of a key, or None if it is not set."""
        found = self._ask(_GET, key)
        return None if found is None else found.decode()

    def close(self) -> None:
        self._channel.close()

    # --- as torch calls it ------------------------------------------------------------------------------------

    def set(self, key: str, value: bytes | str) -> None:
        self._ask(_SET, key, value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        return self._get(key, self._patience)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._get(key, timeout or self._patience)

    def check(self, keys: list[str]) -> bool:
        return all(self._ask(_GET, key) is not None for key in keys)

    def add(self, key: str, number: int) -> int:
        return int(self._ask(_ADD, key, str(number).encode()) or b"0")

    def has_extended_api(self) -> bool:
        return False

    def clone(self) -> PeerStore:
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        self._patience = timeout

    def _get(self, key: str, patience: timedelta) -> bytes:
        end = time.monotonic() + patience.total_seconds()
        while True:
            left = max(0.0, end - time.monotonic())
            found = self._ask(_GET, key, wait_s=min(left, WAIT_SLICE_S))
            if found is not None:
                return found
            if left == 0.0:
                raise PeerLost(f"not all peers have come within {patience.total_seconds():g} s")

    def _ask(self, operation: bytes, key: str, value: bytes = b"", wait_s: float = 0.0) -> bytes | None:
        with self._lock:
            self._channel.send(_encode(operation, self._prefix + key, value, wait_s))
            answer = self._channel.receive(wait_s + max(ANSWER_TIMEOUT_S, self._patience.total_seconds()))
        return answer[1:] if answer[:1] == b"1" else None


def _encode(operation: bytes, key: str, value: bytes, wait_s: float) -> bytes:
    name = key.encode()
    return _REQUEST.pack(operation, len(name), len(value), wait_s) + name + value


def _decode(payload: bytes) -> tuple[bytes, str, bytes, float]:
    operation, length, _, wait_s = _REQUEST.unpack_from(payload)
    name = payload[_REQUEST.size : _REQUEST.size + length]
    return operation, name.decode(), payload[_REQUEST.size + length :], wait_s


def first_line(error: Exception) -> str:
    """The message of a c10d error, without source location and general advice."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^\]]*\]\s*", "", line).partition(". This is typically")[0][:300]
