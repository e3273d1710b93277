"""The actuator: the one process with Slurm's rights, serving one user on a Unix socket.

It carries out the five verbs of `protocol` by `SlurmCluster`, within its own `bounds`, and records each act
(`AuditLog`). It keeps no state but its rates, so it may be killed and restarted at any moment.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from malletrain.domain.decision import CancelTasks, CutLimit, Outcome, RecyclePilot, StartPilot, Stray
from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.domain.job import task_of
from malletrain.slurm.actuator import bounds as limits
from malletrain.slurm.actuator import protocol
from malletrain.slurm.actuator.bounds import ActuatorBounds, RateBudget
from malletrain.slurm.actuator.protocol import ActuatorReply, ActuatorRequest
from malletrain.slurm.cluster import SlurmCluster
from malletrain.slurm.command import Commands
from malletrain.slurm.queries import Queries
from malletrain.slurm.site.site_facts import Harvest
from malletrain.slurm.submission.sbatch import comment_of

log = logging.getLogger("malletrain.actuator")

#: How an outcome begins that the actuator's own bounds forbid.
REFUSED = "the actuator refuses"

#: Invalid lines that are recorded in a minute, at most.
MAX_REFUSALS_RECORDED_PER_MINUTE = 60

#: Seconds in which a client must have sent its whole request.
REQUEST_TIMEOUT_S = 5.0

#: Seconds to read the request of a user who is not allowed, before the refusal is sent.
REFUSAL_TIMEOUT_S = 0.5

#: struct ucred (unix(7), SO_PEERCRED): pid, uid, gid.
_UCRED = struct.Struct("3i")


class AuditLog:
    """The actuator's own record of every act: JSON lines, one before and one after it, only ever appended to `path`,
    which is opened for each order: logrotate may move it away at any moment. `now`: Unix seconds."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        """Open the file once, so that a place that cannot be written to is found at the start. Raises `InvalidInput`:
        it cannot be written there."""
        self._path = path
        self._now = now
        try:
            self.write(({"event": "began", "pid": os.getpid()},))
        except OSError as error:
            why = f"{path} cannot be written ({error.strerror}): make its folder (LogsDirectory= of the unit)"
            raise InvalidInput("LOGS_DIRECTORY", why) from error

    def write(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Append one line for each row, all in one write. Raises `OSError`: it could not be written; nothing of these
        rows counts as recorded."""
        at = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds")
        text = "".join(json.dumps({"at": at, **row}) + "\n" for row in rows).encode()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._path, flags, 0o600)  # its owner alone reads and writes it
        try:
            if os.write(file, text) < len(text):
                raise OSError(0, "written in part: is the disk full?")
        finally:
            os.close(file)


class Actuator:
    """Carries out requests within `bounds`, and records each act in `audit`."""

    def __init__(
        self,
        commands: Commands,
        harvest: Harvest,
        bounds: ActuatorBounds,
        audit: AuditLog,
        now: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._commands, self._harvest, self._bounds, self._audit = commands, harvest, bounds, audit
        self._now, self._elapsed = now, elapsed
        self._queries = Queries(commands, harvest.partition)
        self._starts = RateBudget(bounds.starts_per_minute, limits.MINUTE_S)
        self._cancels = RateBudget(bounds.cancels_per_hour, limits.HOUR_S)
        self._refusals = RateBudget(MAX_REFUSALS_RECORDED_PER_MINUTE, limits.MINUTE_S)

    def answer(self, line: bytes) -> ActuatorReply:
        """Carry out the request in `line`. Any line gets a reply; none raises."""
        try:
            request = protocol.read_request(line, self._bounds.max_limit_s)
        except InvalidInput as error:
            return self._refuse(line, str(error))
        if why := self._record(request, "ordered"):
            if not isinstance(request.actions[0], RecyclePilot | CutLimit):
                return ActuatorReply(refused=why)
            log.error("%s; giving nodes back goes on without a record", why)
        try:
            reply = self._carry_out(request)
        except InvalidInput as error:
            reply = ActuatorReply(refused=str(error))
        except ClusterUnavailable as error:
            reply = ActuatorReply(unavailable=str(error))
        if why := self._record(request, "done", reply):
            log.error("%s", why)
        return reply

    def _carry_out(self, request: ActuatorRequest) -> ActuatorReply:
        cluster = SlurmCluster(self._commands, self._harvest, request.owners.get, self._now)
        deeds: Mapping[str, Callable[[Any], Sequence[Outcome]]] = {
            "start": partial(self._start, cluster),
            "recycle": lambda actions: cluster.recycle(self._with_kills(actions)),
            "cut": lambda actions: [cluster.cut(action) for action in actions],
            "cancel": lambda actions: [self._cancel(cluster, action) for action in actions],
            "take_back": partial(self._take_back, cluster),
        }
        return ActuatorReply(tuple(deeds[protocol.verb_of(request)](request.actions)))

    def _start(self, cluster: SlurmCluster, starts: Sequence[StartPilot]) -> list[Outcome]:
        tasks = list(dict.fromkeys(task_of(start.pilot) for start in starts))
        room, now = self._starts.room(self._elapsed()), self._elapsed()
        shown, comments = self._queries.harvest(), self._queries.comments(tasks)
        refused = limits.start_refusals(starts, self._bounds, shown, comments, room)
        allowed = [start for start in starts if task_of(start.pilot) not in refused]
        self._starts.take(len(tasks) - len(refused), now)
        done = iter(cluster.start(allowed) if allowed else ())
        return [
            Outcome(False, f"{REFUSED}: {refused[task]}") if (task := task_of(start.pilot)) in refused else next(done)
            for start in starts
        ]

    def _with_kills(self, recycled: Sequence[RecyclePilot]) -> list[RecyclePilot]:
        """The same, without kills beyond the rate of cancels: Slurm's KillWait ends those."""
        now, found = self._elapsed(), []
        for each in recycled:
            kill = each.kill and self._cancels.room(now) > 0
            self._cancels.take(int(kill), now)
            found.append(replace(each, kill=kill))
        return found

    def _cancel(self, cluster: SlurmCluster, cancel: CancelTasks) -> Outcome:
        now = self._elapsed()
        tasks = list(dict.fromkeys(task_of(pilot) for pilot in cancel.pilots))
        shown = self._queries.comments(tasks)
        own, why = limits.cancellable([task for task in tasks if task in shown], cancel.job_id, shown)
        if not shown:
            return Outcome(True, "gone already")
        room = self._cancels.room(now)
        if len(own) > room:
            most = self._bounds.cancels_per_hour
            own, why = own[:room], f"more than {most} tasks cancelled in an hour"
        self._cancels.take(len(own), now)
        outcome = cluster.cancel(replace(cancel, pilots=own)) if own else Outcome(False)
        if not why:
            return outcome
        return Outcome(False, f"{REFUSED}, {len(shown) - len(own)} of {len(shown)}: {why}")

    def _take_back(self, cluster: SlurmCluster, strays: Sequence[Stray]) -> list[Outcome]:
        """End jobs that are no pilots. One with `mtbatch`'s comment may be one: it counts as a cancel."""
        now = self._elapsed()
        comments = self._queries.comments([stray.job for stray in strays])
        room = self._cancels.room(now)
        counted = [stray.job for stray in strays if comments.get(stray.job, "").startswith(comment_of(""))]
        self._cancels.take(min(len(counted), room), now)
        beyond = set(counted[room:])
        done = iter(cluster.take_back([stray for stray in strays if stray.job not in beyond]))
        refused = Outcome(False, f"{REFUSED}: more than {self._bounds.cancels_per_hour} tasks cancelled in an hour")
        return [refused if stray.job in beyond else next(done) for stray in strays]

    def _refuse(self, line: bytes, why: str) -> ActuatorReply:
        """Refuse an invalid line. A caller that sends nothing else does not fill the disk."""
        now = self._elapsed()
        if self._refusals.room(now) > 0:
            self._refusals.take(1, now)
            said = line[:200].decode("utf-8", "replace")
            with contextlib.suppress(OSError):
                self._audit.write(({"event": "refused", "detail": why, "line": said},))
        return ActuatorReply(refused=why)

    def _record(self, request: ActuatorRequest, event: str, reply: ActuatorReply | None = None) -> str:
        """Append a request to the audit log; why that failed, or ''."""
        try:
            self._audit.write(_audit_rows(request, event, reply))
        except OSError as error:
            return f"the actuator's log cannot be written ({error.strerror})"
        return ""


def _audit_rows(request: ActuatorRequest, event: str, reply: ActuatorReply | None) -> list[dict[str, object]]:
    """A row for each action: as it was asked for, and what became of it where there is a `reply`."""
    rows: list[dict[str, object]] = [
        {"event": event, "verb": protocol.verb_of(request)} | row for row in protocol.rows_of(request)
    ]
    if reply is not None:
        refusal = Outcome(False, reply.refused or reply.unavailable)
        for row, outcome in zip(rows, reply.outcomes or [refusal] * len(rows), strict=False):
            row |= {"done": outcome.done, "detail": outcome.detail}
    return rows


class ActuatorServer:
    """Serves the socket, one request at a time."""

    def __init__(self, path: Path, actuator: Actuator, allowed: frozenset[int], alive: Callable[[], object]) -> None:
        """Listen at `path`; a file that is there is replaced. `allowed`: uids whose requests are carried out.
        `alive`: called about once a second while the server runs. Raises `InvalidInput`: the socket cannot be
        created."""
        self._path, self._actuator, self._allowed, self._alive = path, actuator, allowed, alive
        self._stop = threading.Event()
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
        self._socket.settimeout(1.0)  # to see the stop flag soon
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
            connection.sendall(protocol.write_reply(ActuatorReply(refused=f"user {uid} may not send requests here")))
            return
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        line = read_line(connection, lambda: deadline - time.monotonic())
        answer = self._actuator.answer(line)
        if answer.refused:
            log.warning("request refused: %s", answer.refused)
        connection.settimeout(REQUEST_TIMEOUT_S)
        connection.sendall(protocol.write_reply(answer))


def read_line(connection: socket.socket, left_s: Callable[[], float]) -> bytes:
    """Read one line. `left_s` returns the seconds left, and is called again during the wait. Raises `OSError`: no
    whole line within the time, the connection ended, or more than MAX_LINE_BYTES."""
    taken = bytearray()
    while not taken.endswith(b"\n"):
        left = left_s()
        if left <= 0:
            raise TimeoutError("no whole line in time")
        connection.settimeout(min(left, 0.25))  # `left` may shrink meanwhile
        try:
            chunk = connection.recv(65536)
        except TimeoutError:
            continue
        if not chunk:
            raise ConnectionError("cut off in mid line")
        taken += chunk
        if len(taken) > protocol.MAX_LINE_BYTES:
            raise ConnectionError("a line without end")
    return bytes(taken)
