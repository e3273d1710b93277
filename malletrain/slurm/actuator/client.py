"""The port `Cluster` of a daemon without rights: reads Slurm itself, and sends every action to the actuator."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from malletrain.domain.decision import CancelTasks, CutLimit, Outcome, RecyclePilot, StartPilot, Stray
from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.slurm.actuator.protocol import ActuatorReply, ActuatorRequest, read_answer, write_request
from malletrain.slurm.actuator.server import read_line
from malletrain.slurm.cluster import SlurmCluster

#: Seconds to wait for a connection. The actuator serves one request at a time, so a busy one does not accept.
_CONNECT_S = 5.0


class ActuatorClient:
    """The port `Cluster`, which `looks` without rights. `patience_s`: for one reply, the actuator's Slurm commands
    included."""

    def __init__(
        self, looks: SlurmCluster, actuator: Path, owner_of: Callable[[int], int | None], patience_s: float
    ) -> None:
        self.snapshot, self.look, self.inspect = looks.snapshot, looks.look, looks.inspect
        self.end_of, self.ended_main_jobs = looks.end_of, looks.ended_main_jobs
        self._actuator, self._owner_of, self._patience_s = actuator, owner_of, patience_s
        self._end_at = float("inf")

    def end_within(self, seconds: float) -> None:
        """Limit all waits for the actuator to `seconds` from now on. Thread-safe."""
        self._end_at = time.monotonic() + seconds

    def start(self, actions: Sequence[StartPilot]) -> Sequence[Outcome]:
        """As `SlurmCluster.start`. An action whose job has no recorded owner fails without a request."""
        found = ((action.job_id, self._owner_of(action.job_id)) for action in actions)
        owners = {job: uid for job, uid in found if uid is not None}
        known = tuple(action for action in actions if action.job_id in owners)
        done = iter(self._send(ActuatorRequest(known, owners)) if known else ())
        unknown = Outcome(False, "not started: its job's owner is not known")
        return [next(done) if action in known else unknown for action in actions]

    def cut(self, action: CutLimit) -> Outcome:
        return self._send(ActuatorRequest((action,), {}))[0]

    def recycle(self, actions: Sequence[RecyclePilot]) -> Sequence[Outcome]:
        return self._send(ActuatorRequest(tuple(actions), {})) if actions else ()

    def cancel(self, action: CancelTasks) -> Outcome:
        return self._send(ActuatorRequest((action,), {}))[0] if action.pilots else Outcome(True, "nothing to cancel")

    def take_back(self, strays: Sequence[Stray]) -> Sequence[Outcome]:
        return self._send(ActuatorRequest(tuple(strays), {})) if strays else ()

    def _send(self, request: ActuatorRequest) -> Sequence[Outcome]:
        """Raises `ClusterUnavailable`: the actuator does not answer, or Slurm does not answer it."""
        answer = self._ask(write_request(request))
        if answer.unavailable:
            raise ClusterUnavailable(f"actuator: {answer.unavailable}")
        if answer.refused:
            return [Outcome(False, f"the actuator refuses: {answer.refused}")] * len(request.actions)
        if len(answer.outcomes) != len(request.actions):
            raise ClusterUnavailable("actuator: its reply does not match the request")
        return answer.outcomes

    def _ask(self, line: bytes) -> ActuatorReply:
        deadline = time.monotonic() + self._patience_s
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_CONNECT_S)
                connection.connect(str(self._actuator))
                connection.sendall(line)
                return read_answer(read_line(connection, lambda: min(deadline, self._end_at) - time.monotonic()))
        except (OSError, InvalidInput) as error:
            why = f"the actuator at {self._actuator} does not answer ({error}): is malletrain-actuator running?"
            raise ClusterUnavailable(why) from error
