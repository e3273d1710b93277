"""The actuator: the one process with Slurm's rights, on a Unix socket, for one user's orders.

It knows four verbs (`orders`), each carried out by `SlurmCluster` as ever: every task is read again before it is
touched, and what is not a sound pilot in the harvest partition, account and QOS is left alone. It keeps no state, so
it may be killed and started at any moment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from malletrain.domain.decision import CancelTasks, CutLimit, RecyclePilot, StartPilot
from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.slurm.actuator.protocol import (
    MAX_LINE_BYTES,
    ActuatorReply,
    ActuatorRequest,
    read_request,
    write_reply,
)
from malletrain.slurm.cluster import SlurmCluster
from malletrain.slurm.command import Commands
from malletrain.slurm.site_facts import Harvest

log = logging.getLogger("malletrain.actuator")

#: Who connects must have said all within so many seconds.
REQUEST_TIMEOUT_S = 5.0

#: A user who may not give orders is given so long.
REFUSAL_TIMEOUT_S = 0.5

#: So often (seconds) the server looks whether it shall end.
_STOP_POLL_S = 1.0

#: A wait for the other side is looked at so often (seconds).
_WAIT_SLICE_S = 0.25

#: struct ucred (unix(7), SO_PEERCRED): pid, uid, gid.
_UCRED = struct.Struct("3i")


class Actuator:
    """Carries out orders. `most_s`: no pilot's limit is set longer (seconds)."""

    def __init__(
        self, commands: Commands, harvest: Harvest, most_s: float, now: Callable[[], float] = time.time
    ) -> None:
        self._commands = commands
        self._harvest = harvest
        self._most_s = most_s
        self._now = now

    def answer(self, line: bytes) -> ActuatorReply:
        """What became of the order in `line`; nothing that it holds can raise."""
        try:
            order = read_request(line, self._most_s)
        except InvalidInput as error:
            return ActuatorReply(refused=str(error))
        try:
            return self._carry_out(order)
        except InvalidInput as error:
            return ActuatorReply(refused=str(error))
        except ClusterUnavailable as error:
            return ActuatorReply(unavailable=str(error))

    def _carry_out(self, order: ActuatorRequest) -> ActuatorReply:
        cluster = SlurmCluster(self._commands, self._harvest, order.owners.get, self._now)
        starts = [action for action in order.actions if isinstance(action, StartPilot)]
        if starts:
            return ActuatorReply(tuple(cluster.start(starts)))
        recycled = [action for action in order.actions if isinstance(action, RecyclePilot)]
        if recycled:
            return ActuatorReply(tuple(cluster.recycle(recycled)))
        outcomes = []
        for action in order.actions:
            if isinstance(action, CutLimit):
                outcomes.append(cluster.cut(action))
            elif isinstance(action, CancelTasks):
                outcomes.append(cluster.cancel(action))
        return ActuatorReply(tuple(outcomes))


class ActuatorServer:
    """The socket. One order at a time, in the order in which they come; the daemon waits for each anyway."""

    def __init__(self, path: Path, actuator: Actuator, allowed: frozenset[int], alive: Callable[[], object]) -> None:
        """Listen at `path`, which is made anew. Only users in `allowed` (uids) are heard; `alive` is told again and
        again that the server goes on.

        Raises:
            InvalidInput: the socket cannot be made there.
        """
        self._actuator = actuator
        self._allowed = allowed
        self._alive = alive
        self._stop = threading.Event()
        self._path = path
        try:
            path.unlink(missing_ok=True)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            before = os.umask(0o117)  # the group may connect: the listener's user is in it
            try:
                self._socket.bind(str(path))
            finally:
                os.umask(before)
            self._socket.listen(8)
        except OSError as error:
            raise InvalidInput("actuator.socket", f"{path} cannot be listened on ({error.strerror})") from error

    def run(self) -> None:
        """Serve until `stop`."""
        self._socket.settimeout(_STOP_POLL_S)
        while not self._stop.is_set():
            self._alive()
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            with connection:
                try:
                    self._serve(connection)
                except OSError as error:
                    log.warning("an order was not answered: %s", error)

    def stop(self) -> None:
        """Take no more orders; `run` returns after the one in hand."""
        self._stop.set()

    def close(self) -> None:
        """Give the socket up."""
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _serve(self, connection: socket.socket) -> None:
        _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        if uid not in self._allowed:
            log.warning("user %d may not give orders here", uid)
            # What was said is taken in, or the answer would be lost with it.
            until = time.monotonic() + REFUSAL_TIMEOUT_S
            with contextlib.suppress(OSError):
                read_line(connection, lambda: until - time.monotonic())
            connection.settimeout(REFUSAL_TIMEOUT_S)
            connection.sendall(write_reply(ActuatorReply(refused=f"user {uid} may not give orders here")))
            return
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        line = read_line(connection, lambda: deadline - time.monotonic())
        answer = self._actuator.answer(line)
        if answer.refused:
            log.warning("order refused: %s", answer.refused)
        connection.settimeout(REQUEST_TIMEOUT_S)
        connection.sendall(write_reply(answer))


def read_line(connection: socket.socket, left_s: Callable[[], float]) -> bytes:
    """One line; `left_s` says how many seconds are left for it, and may shrink at any moment.

    Raises:
        OSError: it did not come in time, was cut off, or has no end.
    """
    taken = bytearray()
    while not taken.endswith(b"\n"):
        left = left_s()
        if left <= 0:
            raise TimeoutError("no whole line in time")
        connection.settimeout(min(left, _WAIT_SLICE_S))
        try:
            chunk = connection.recv(65536)
        except TimeoutError:
            continue
        if not chunk:
            raise ConnectionError("cut off in mid line")
        taken += chunk
        if len(taken) > MAX_LINE_BYTES:
            raise ConnectionError("a line without end")
    return bytes(taken)
