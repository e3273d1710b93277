"""A worker's calls to the daemon, over one kept connection for each thread that makes them."""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from malletrain.wire import messages, munge
from malletrain.wire.daemon_url import KeptConnection, first_url
from malletrain.wire.errors import WireError

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 4 * 1024 * 1024


class DaemonUnreachable(WireError):
    """The daemon does not answer: go on with what is known, try again later."""


class TokenUnknown(WireError):
    """The daemon does not know the token (it has restarted): say hello again."""


class Rejected(WireError):
    """The daemon answered, and says no."""


@dataclass(frozen=True, slots=True)
class PilotIdentity:
    """What Slurm's environment says of the pilot that this process runs in."""

    job: int
    slurm_job_id: int
    array_id: int
    task: int
    restart: int
    node: str
    part: int = 0  #: which of the pilot's nodes this is, where it holds several

    @staticmethod
    def of(environ: Mapping[str, str]) -> PilotIdentity:
        """From the variables that Slurm and mtbatch set (sbatch(1), OUTPUT ENVIRONMENT VARIABLES).
        Raises WireError: one is missing or not a number."""

        def number(name: str, default: str | None = None) -> int:
            text = environ.get(name, default)
            if text is None or not text.isdecimal():
                raise WireError(f"{name} is {text!r}, not a number: start this through a script that mtbatch wrote")
            return int(text)

        node = environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
        return PilotIdentity(
            job=number("MALLETRAIN_JOB"),
            slurm_job_id=number("SLURM_JOB_ID"),
            array_id=number("SLURM_ARRAY_JOB_ID"),
            task=number("SLURM_ARRAY_TASK_ID"),
            restart=number("SLURM_RESTART_COUNT", "0"),
            node=node,
            part=number("MALLETRAIN_PART", "0"),
        )

    @property
    def worker(self) -> str:
        return f"{messages.pilot_name(self.array_id, self.task, self.part)}.{self.restart}"


def credential_for(url: str) -> str:
    """A fresh proof of who runs this process, for the daemon at `url` alone."""
    return munge.encode(munge.statement(messages.WORKER_PURPOSE, url))


class _OfThread(threading.local):
    """What each thread has of its own, made when it first asks."""

    def __init__(self, url: str) -> None:
        self.connection = KeptConnection(url)


class WorkerClient:
    """Calls of one worker. Safe to use from several threads: each has its own connection. `credential` makes a fresh
    MUNGE credential, by default `credential_for` the URL; `welcome`: of the process that started this one.

    Raises, each call: DaemonUnreachable, TokenUnknown, Rejected, as their names say.
    """

    def __init__(
        self,
        url: str,
        identity: PilotIdentity,
        credential: Callable[[], str] | None = None,
        welcome: messages.Welcome | None = None,
    ) -> None:
        self._url = first_url(url)
        self.identity = identity
        self._credential = credential or (lambda: credential_for(self._url))
        self.welcome = welcome
        self._renew_at = _renewal(welcome)
        self._of_thread = _OfThread(self._url)

    @property
    def worker(self) -> str:
        return self.identity.worker

    def hello(self, standing: messages.Standing | None = None) -> messages.Welcome:
        """Present a credential; the token got is used from now on.
        Raises DaemonUnreachable: no answer; Rejected: the daemon will not have this worker."""
        who = asdict(self.identity)
        said = messages.Hello(credential=self._credential(), pid=os.getpid(), standing=standing, **who)
        self.close()  # what is at the other end of a kept connection may not be the daemon any more
        try:
            answer = self._call("POST", "/v1/workers/hello", messages.to_json(said))
        except TokenUnknown as error:
            raise Rejected(str(error)) from error
        self.welcome = welcome = messages.parse(messages.Welcome, answer)
        self._renew_at = _renewal(welcome)
        return welcome

    def report(self, said: Sequence[messages.Message]) -> None:
        """Deliver messages, in order."""
        body = {"events": [messages.to_json(message) for message in said]}
        self._call("POST", f"/v1/workers/{quote(self.worker)}/report", body)

    def poll(self, after: int, wait_s: float) -> messages.Directive | None:
        """What is wanted, as soon as its number is above `after`; None when the daemon hung up without an answer.

        Gets a new token first, once half of the present one's life is over."""
        if time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + 60.0
            with suppress(WireError):  # munged or the daemon is away: the present token is good for a while
                self.hello()
        path = f"/v1/workers/{quote(self.worker)}/plan?after={after}&wait={wait_s:g}"
        answer = self._call("GET", path, None, wait_s)
        return messages.parse(messages.Directive, answer) if answer is not None else None

    def is_to_check(self, digest: str) -> bool:
        """Ask whether the script with this digest is to be checked here; an earlier daemon rejects the question."""
        answer = self._call("POST", f"/v1/workers/{quote(self.worker)}/check", {"digest": digest})
        return isinstance(answer, dict) and answer.get("check") is True

    def close(self) -> None:
        """Close this thread's connection."""
        self._of_thread.connection.close()

    def _call(self, method: str, path: str, body: Any, wait_s: float = 0.0) -> Any:
        token, connection = "" if self.welcome is None else self.welcome.token, self._of_thread.connection
        try:
            status, text = connection.ask(method, path, body, token, TIMEOUT_S, wait_s, MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise DaemonUnreachable(f"no answer from {self._url}: {error}") from error
        try:
            answer = json.loads(text) if text else None
        except ValueError as error:
            raise DaemonUnreachable(f"{self._url} answered {status} with no JSON") from error
        if status < 300:
            return answer
        what = answer.get("error", text[:200]) if isinstance(answer, dict) else str(text[:200])
        if status == 401:
            raise TokenUnknown(what)
        if status >= 500 or status == 429:
            raise DaemonUnreachable(f"{self._url} answered {status}: {what}")
        raise Rejected(what)


def _renewal(welcome: messages.Welcome | None) -> float:
    """When to ask for a new token (`time.monotonic`)."""
    if welcome is None or not welcome.token_s:
        return math.inf
    return time.monotonic() + welcome.token_s / 2
