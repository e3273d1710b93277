"""The actuator: the one process with Slurm's rights, serving one user on a Unix socket.

It accepts the four verbs of `protocol` and carries them out by `SlurmCluster`, which reads each task again before it
changes it and leaves alone what is not a held pilot in the harvest partition, account and QOS. It keeps no state, so
it may be killed and restarted at any moment.
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

#: Seconds in which a client must have sent its whole request.
REQUEST_TIMEOUT_S = 5.0

#: Seconds to read the request of a user who is not allowed, before the refusal is sent.
REFUSAL_TIMEOUT_S = 0.5

#: Seconds between two checks of the stop flag.
_STOP_POLL_S = 1.0

#: Seconds of one wait for input, after which the time left is computed again.
_WAIT_SLICE_S = 0.25

#: struct ucred (unix(7), SO_PEERCRED): pid, uid, gid.
_UCRED = struct.Struct("3i")


class Actuator:
    """Carries out requests. `most_s`: the longest time limit that it sets, in seconds."""

    def __init__(
        self, commands: Commands, harvest: Harvest, most_s: float, now: Callable[[], float] = time.time
    ) -> None:
        self._commands = commands
        self._harvest = harvest
        self._most_s = most_s
        self._now = now

    def answer(self, line: bytes) -> ActuatorReply:
        """Carry out the request in `line`. Any line gets a reply; none raises."""
        try:
            request = read_request(line, self._most_s)
        except InvalidInput as error:
            return ActuatorReply(refused=str(error))
        try:
            return self._carry_out(request)
        except InvalidInput as error:
            return ActuatorReply(refused=str(error))
        except ClusterUnavailable as error:
            return ActuatorReply(unavailable=str(error))

    def _carry_out(self, request: ActuatorRequest) -> ActuatorReply:
        cluster = SlurmCluster(self._commands, self._harvest, request.owners.get, self._now)
        starts = [action for action in request.actions if isinstance(action, StartPilot)]
        if starts:
            return ActuatorReply(tuple(cluster.start(starts)))
        recycled = [action for action in request.actions if isinstance(action, RecyclePilot)]
        if recycled:
            return ActuatorReply(tuple(cluster.recycle(recycled)))
        outcomes = []
        for action in request.actions:
            if isinstance(action, CutLimit):
                outcomes.append(cluster.cut(action))
            elif isinstance(action, CancelTasks):
                outcomes.append(cluster.cancel(action))
        return ActuatorReply(tuple(outcomes))


class ActuatorServer:
    """Serves the socket, one request at a time."""

    def __init__(self, path: Path, actuator: Actuator, allowed: frozenset[int], alive: Callable[[], object]) -> None:
        """Listen at `path`; a file that is there is replaced.

        Args:
            allowed: uids whose requests are carried out; all others are refused.
            alive: called about once a second while the server runs.

        Raises:
            InvalidInput: the socket cannot be created.
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
                    log.warning("a request was not answered: %s", error)

    def stop(self) -> None:
        """Accept no more requests; `run` returns after the present one. Thread-safe."""
        self._stop.set()

    def close(self) -> None:
        """Close and remove the socket."""
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _serve(self, connection: socket.socket) -> None:
        _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        if uid not in self._allowed:
            log.warning("user %d may not send requests here", uid)
            # Closing with unread input would reset the connection, and the client would miss the refusal.
            until = time.monotonic() + REFUSAL_TIMEOUT_S
            with contextlib.suppress(OSError):
                read_line(connection, lambda: until - time.monotonic())
            connection.settimeout(REFUSAL_TIMEOUT_S)
            connection.sendall(write_reply(ActuatorReply(refused=f"user {uid} may not send requests here")))
            return
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        line = read_line(connection, lambda: deadline - time.monotonic())
        answer = self._actuator.answer(line)
        if answer.refused:
            log.warning("request refused: %s", answer.refused)
        connection.settimeout(REQUEST_TIMEOUT_S)
        connection.sendall(write_reply(answer))


def read_line(connection: socket.socket, left_s: Callable[[], float]) -> bytes:
    """Read one line. `left_s` returns the seconds left, and is called again during the wait.

    Raises:
        OSError: no whole line within the time, the connection ended, or more than MAX_LINE_BYTES.
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
