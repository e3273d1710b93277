"""Trainings as malleable jobs: submitted as mtbatch does, followed by the daemon's list of jobs and its events."""

from __future__ import annotations

import math
import os
import queue
import shlex
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from malletrain.domain.errors import ClusterUnavailable, InvalidInput, MalletrainError
from malletrain.slurm.command import Commands
from malletrain.slurm.site.held_task_limits import TooManyHeldTasks
from malletrain.slurm.submission.sbatch import BatchRequest, default_tasks
from malletrain.slurm.submission.submit import (
    SubmissionRefused,
    Submitter,
    check_partition,
    node_kinds,
    whole_gres,
)
from malletrain.study.ports import FACTS, Ending, Figure, TrainingEnded, TrialEnd, read_fault, tail_of
from malletrain.study.trial_spec import TrialSpec, node_range
from malletrain.wire.daemon import DaemonClient
from malletrain.wire.errors import WireError
from malletrain.wire.http import DaemonRefused, DaemonUnavailable
from malletrain.wire.munge import MungeError
from malletrain.wire.rows import EventRow, JobRow

#: With `--concurrent auto`: trials that may wait for nodes at a time. Fewer waiting means that one more trial would
#: get nodes; the waiting ones fill the next hole at once.
MAX_WAITING_TRIALS = 2

#: Trials at a time: the API allows a user 500 open jobs, and each has held tasks in Slurm's queue.
MAX_CONCURRENT_TRIALS = 200

#: A job without a world and with at most MIN_HELD_TASKS gets more tasks, at most once in RESUBMIT_INTERVAL_S and
#: MAX_RESUBMITS times in all: a trial that never trains must not fill Slurm's queue.
MIN_HELD_TASKS, RESUBMIT_INTERVAL_S, MAX_RESUBMITS = 2, 20.0, 50

#: Seconds between two requests for the list of jobs and their events.
JOBS_REFRESH_S = 1.0

#: Kinds of events that a study reads (`malletrain.domain.event.FACTS`).
EVENT_KINDS = ("metric", "job_completed", "job_failed", "job_cancelled", "pilot_ended", "array_refused")

#: Attempts to submit, and seconds between them, when Slurm or the daemon is too busy or away.
MAX_SUBMIT_ATTEMPTS, SUBMIT_RETRY_S = 5, 3.0

#: Seconds to wait for the daemon's first answer when a study begins.
FIRST_ANSWER_TIMEOUT_S = 120.0

#: HTTP statuses after which the same request may succeed: rate limit, a service that the daemon needs is down.
_TRANSIENT_STATUSES = frozenset({429, 500, 503})

#: Seconds to wait for the file of a script's error: a shared file system shows it late on another machine.
FAULT_FILE_TIMEOUT_S = 3.0

_NODE = frozenset({"node_fail", "boot_fail"})

T = TypeVar("T")


class JobOutcome:
    """Folds the events of the job numbered `run`."""

    def __init__(self, spec: TrialSpec, run: str) -> None:
        self._spec, self._run = spec, run
        self._ends: Counter[str] = Counter()

    def take(self, row: EventRow) -> Figure | TrialEnd | None:
        """The figure or the end that `row` carries, or None."""
        match row.kind:
            case "metric":
                name, value, samples = (row.data.get(key) for key in ("name", "value", "samples"))
                if isinstance(samples, (int, float)) and isinstance(value, (int, float, type(None))):
                    return Figure(str(name), math.nan if value is None else float(value), int(samples))
                return None
            case "pilot_ended":
                self._ends["preempted" if row.data.get("preempted") else str(row.data.get("state", ""))] += 1
                return None
            case "array_refused":
                return TrialEnd(Ending.REFUSED, row.reason)
        result = row.data.get("result")
        return self.ended_as(row.kind.removeprefix("job_"), row.reason, result if isinstance(result, dict) else {})

    def ended_as(self, phase: str, reason: str, result: Mapping[str, Any]) -> TrialEnd | None:
        """The end that the job's phase says, if it does."""
        match phase:
            case "completed":
                return TrialEnd(Ending.COMPLETED, reason, result)
            case "failed":
                return self.failed(reason)
            case "cancelled":
                return TrialEnd(Ending.CANCELLED, reason)
        return None

    def failed(self, reason: str) -> TrialEnd:
        """Why a job failed: the script's own error first, then the states of its pilots in Slurm."""
        consumed = "no held task is left" in reason
        left = read_fault(self._spec, self._run, 0.0 if consumed else FAULT_FILE_TIMEOUT_S)
        if left is not None and not consumed:
            return left
        if self._ends["out_of_memory"]:
            return TrialEnd(Ending.OUT_OF_MEMORY, reason)
        nodes = sum(self._ends[state] for state in _NODE)
        if consumed:
            ending = Ending.NODE_FAILED if nodes and not self._ends["preempted"] else Ending.PREEMPTED
            return TrialEnd(ending, reason)
        if nodes and nodes == sum(self._ends.values()):
            return TrialEnd(Ending.NODE_FAILED, reason)
        outputs = sorted(Path(self._spec.folder).glob("*.out"), key=lambda path: path.stat().st_mtime)
        return TrialEnd(Ending.USER_ERROR, reason, traceback=tail_of(outputs[-1]) if outputs else "")


class JobRun:
    """The port `Run` over one malleable job."""

    def __init__(self, runs: JobRuns, spec: TrialSpec, job: int) -> None:
        self._runs, self._spec, self.job = runs, spec, job
        self._events = runs.events_of(job)
        self._outcome = JobOutcome(spec, str(job))
        self._over: TrialEnd | None = None
        self._trained_s, self._looked, self._listed = 0.0, time.monotonic(), time.monotonic()
        self._row: JobRow | None = None
        self._topped_up, self._top_ups = -RESUBMIT_INTERVAL_S, 0
        self._open_stays_s = 0.0

    @property
    def key(self) -> str:
        return str(self.job)

    def next(self, wait_s: float) -> Figure | TrialEnd | None:
        if self._over is not None:
            return self._over
        self._look()
        try:
            said = self._outcome.take(self._events.get(timeout=wait_s))
        except queue.Empty:
            if time.monotonic() - self._listed > 10.0:  # neither event nor list entry so long
                self._look_closely()
            return self._over
        if isinstance(said, TrialEnd):
            self._end(said)
        return said

    def stop(self) -> None:
        if self._over is None:
            self._runs.cancel(self.job)
            self._end(TrialEnd(Ending.CANCELLED, "cancelled by the study"))

    def trained_s(self) -> float:
        return self._trained_s

    def facts(self) -> Mapping[str, float]:
        if self._row is None:
            return {}
        found = {name: float(getattr(self._row, name)) for name in FACTS}
        return found | {"node_seconds": found["node_seconds"] + self._open_stays_s}

    def _look(self) -> None:
        """Add to the training time while the daemon lists the job with members."""
        now = time.monotonic()
        row = self._runs.listed(self.job)
        if row is not None:
            self._row, self._listed = row, now
            if row.members:
                self._trained_s += now - self._looked
            self._top_up(row, now)
        self._looked = now

    def _top_up(self, row: JobRow, now: float) -> None:
        """Submit more tasks before preemption consumes the last held one. Jobs with members do this themselves."""
        runs_out = row.preemptions > 0 and row.held_tasks <= MIN_HELD_TASKS and not row.members
        if runs_out and self._top_ups < MAX_RESUBMITS and now - self._topped_up > RESUBMIT_INTERVAL_S:
            self._topped_up, self._top_ups = now, self._top_ups + 1
            self._runs.top_up(self._spec, self.job)

    def _look_closely(self) -> None:
        """Request the job by its number: it is not listed, and no event came."""
        self._listed = time.monotonic()
        try:
            row = self._runs.ask(lambda daemon: daemon.job(self.job))
        except DaemonRefused as refused:
            if refused.status != 404:
                raise
            self._end(TrialEnd(Ending.LOST, f"the daemon does not know job {self.job} any more"))
            return
        if row.ended_at is not None:
            said = self._outcome.ended_as(row.phase, row.reason, row.result)
            if said is not None:
                self._end(said)

    def _end(self, over: TrialEnd) -> None:
        self._over = over
        self._runs.done(self.job)
        if over.ending in (Ending.REFUSED, Ending.LOST):
            self._runs.cancel(self.job)
        try:
            self._row = self._runs.once(lambda daemon: daemon.job(self.job))
            # The daemon counts a pilot's node time when it ends; pilots still open end about now.
            now = time.time()
            self._open_stays_s = sum(max(0.0, now - p.started_at) for p in self._row.pilots if p.started_at)
        except WireError:
            pass  # keep the usage as last listed; it is only reported


class JobRuns:
    """Submits jobs, and follows them over one connection; the threads of trials take turns. `stopping` ends waits."""

    def __init__(
        self,
        connect: Callable[[], DaemonClient],
        environ: Mapping[str, str],
        say: Callable[[str], None],
        stopping: threading.Event,
    ) -> None:
        self._daemon = connect()
        self._lock = threading.Lock()
        self._say, self._stopping = say, stopping
        self._commands = Commands(environ)
        self._submitter = Submitter(self._daemon, self._commands, environ, say)
        self._listed: dict[int, JobRow] = {}
        self._queues: dict[int, queue.SimpleQueue[EventRow]] = {}  #: of jobs that are not over, with their new events
        self._listed_at = -JOBS_REFRESH_S
        self._answered = True
        address, (site, self._nodes) = self._daemon.address, self._first_answer()
        self._partition = address.partition or site.get("partition", "")
        self._account = address.account or site.get("account", "")
        self._qos = address.qos or site.get("qos", "")
        if not self._partition:
            raise InvalidInput("partition", "the daemon names no harvest partition: name it in client.toml")
        check_partition(self._commands, self._partition)
        self._gres = whole_gres(node_kinds(self._commands, self._partition))
        _, self._after = self._daemon.latest_events(1)

    def _first_answer(self) -> tuple[Mapping[str, str], int]:
        """The site's partition, account and QOS, and its node count. Waits for a daemon that is restarting."""
        end, said = time.monotonic() + FIRST_ANSWER_TIMEOUT_S, False
        while True:
            try:
                return self._daemon.site(), len(self._daemon.status().nodes)
            except (DaemonUnavailable, MungeError) as error:
                if time.monotonic() > end or self._stopping.wait(1.0):
                    raise
                if not said:
                    self._say(f"{error}; waiting up to {FIRST_ANSWER_TIMEOUT_S:.0f} s for it")
                said = True

    # -- Runs --------------------------------------------------------------------------------------------------

    def check(self, nodes: str) -> None:
        least, _ = node_range(nodes)
        if self._nodes and least > self._nodes:
            raise InvalidInput("nodes", f"{nodes} asks for at least {least} nodes, and the cluster has {self._nodes}")

    def start(self, spec: TrialSpec) -> JobRun:
        self.check(spec.nodes)
        spec.write()
        request = self._request(spec)
        for attempt in range(1, MAX_SUBMIT_ATTEMPTS + 1):
            try:
                with self._lock:
                    job, _ = self._submitter.submit(request)
                    self._listed_at = -JOBS_REFRESH_S
                    self._queues[job] = queue.SimpleQueue()
                return JobRun(self, spec, job)
            except (SubmissionRefused, TooManyHeldTasks, DaemonUnavailable, ClusterUnavailable) as error:
                cause = error.__cause__
                # 409: the owner has too many open jobs.
                lasting = isinstance(cause, DaemonRefused) and cause.status not in {*_TRANSIENT_STATUSES, 409}
                if lasting or attempt == MAX_SUBMIT_ATTEMPTS:
                    raise TrainingEnded(TrialEnd(Ending.REFUSED, str(error))) from error
                if attempt == 1:
                    self._say(f"{spec.name}: {error}; trying again")
            if self._stopping.wait(SUBMIT_RETRY_S * attempt):
                raise TrainingEnded(TrialEnd(Ending.INTERRUPTED, "the study was stopped"))
            # No answer is no refusal: what may have been taken all the same is ended first.
            self.forget(spec.name, ())
        raise TrainingEnded(TrialEnd(Ending.REFUSED, "it could not be submitted"))

    def _request(self, spec: TrialSpec) -> BatchRequest:
        least, most = node_range(spec.nodes)
        return BatchRequest(
            name=spec.name,
            min_nodes=least,
            max_nodes=most,
            partition=self._partition,
            chdir=str(Path(spec.file).parent),
            user_body=_body(spec),
            account=self._account,
            qos=self._qos,
            gres=self._gres,
            passed=(("output", f"{spec.folder.replace('%', '%%')}/%A_%a.out"),),
            tasks=default_tasks(most),
            trusted=True,  # a check of each of hundreds of trials would cost more than it tells
        )

    def top_up(self, spec: TrialSpec, job: int) -> None:
        """Submit more held tasks for a job: where its pilots are preempted before they train, no worker does."""
        try:
            with self._lock:
                self._submitter.add_tasks(job, self._request(spec))
        except (SubmissionRefused, TooManyHeldTasks, ClusterUnavailable) as error:
            self._say(f"{spec.name}: no more tasks for job {job}: {error}")

    def find(self, spec: TrialSpec, key: str) -> JobRun | None:
        try:
            row = self.ask(lambda daemon: daemon.job(int(key)))
        except DaemonRefused as refused:
            if refused.status == 404:
                return None
            raise
        if row.name != spec.name:
            return None  # a daemon that began anew has given the number to another job
        with self._lock:
            # What is older than the next look at all jobs' events.
            events = self._queues[row.id] = queue.SimpleQueue()
            for event in _events(self._daemon, 0, row.id)[0]:
                if event.seq <= self._after:
                    events.put(event)
        return JobRun(self, spec, row.id)

    def has_capacity(self, active: int) -> bool:
        self._refresh()
        with self._lock:
            mine = [self._listed[job] for job in self._queues.keys() & self._listed.keys()]
        waiting = sum(1 for row in mine if not row.members)
        # Trials that have begun, but are not announced yet, wait too.
        return (
            active < MAX_CONCURRENT_TRIALS
            and self._answered
            and waiting + max(0, active - len(mine)) < MAX_WAITING_TRIALS
        )

    def forget(self, prefix: str, known: Collection[str]) -> None:
        open_jobs = self.ask(lambda daemon: daemon.jobs(over=False, mine=True))
        for row in open_jobs:
            if row.name.startswith(prefix) and str(row.id) not in known:
                self.cancel(row.id)
        # Held arrays without a job in the daemon: the study was killed between sbatch and the announcement.
        named = {row.name for row in open_jobs if row.name.startswith(prefix) and str(row.id) in known}
        try:
            queue = self._commands.ask(["squeue", "--me", "-h", "-o", "%A|%F|%j"])
        except ClusterUnavailable as error:
            self._say(f"{error}; look for held arrays named {prefix}* yourself")
            return
        arrays = {line.split("|", 2)[1]: line.split("|", 2)[2] for line in queue.splitlines() if line.count("|") > 1}
        left = [array for array, name in arrays.items() if name.startswith(prefix) and name not in named]
        if left:
            self._commands.run(["scancel", *left])

    # -- questions ---------------------------------------------------------------------------------------------

    def once(self, question: Callable[[DaemonClient], T]) -> T:
        """Ask the daemon, one thread after the other."""
        with self._lock:
            return question(self._daemon)

    def ask(self, question: Callable[[DaemonClient], T]) -> T:
        """As `once`, and again while the daemon or munged is away.
        Raises TrainingEnded: the study is being stopped meanwhile; DaemonRefused: it said no."""
        while True:
            try:
                return self.once(question)
            except (DaemonUnavailable, DaemonRefused, MungeError) as error:
                if isinstance(error, DaemonRefused) and error.status not in _TRANSIENT_STATUSES:
                    raise
                if self._stopping.wait(SUBMIT_RETRY_S):
                    raise TrainingEnded(TrialEnd(Ending.INTERRUPTED, "the study was stopped")) from error

    def done(self, job: int) -> None:
        """The job is over: nothing more is expected of it."""
        with self._lock:
            self._queues.pop(job, None)

    def events_of(self, job: int) -> queue.SimpleQueue[EventRow]:
        """The events of a job that was started or found, as they are read."""
        return self._queues[job]

    def listed(self, job: int) -> JobRow | None:
        """The job among those that are not over, as of the last `JOBS_REFRESH_S` seconds."""
        self._refresh()
        return self._listed.get(job)

    def cancel(self, job: int) -> None:
        """Cancel a job. After a few attempts without an answer the user gets the job number instead."""
        problem: Exception | None = None
        for _ in range(MAX_SUBMIT_ATTEMPTS):
            try:
                self.once(lambda daemon: daemon.ask(job, "cancel"))
                return
            except DaemonRefused as refused:
                if refused.status == 404:
                    return
                problem = refused
            except (WireError, MalletrainError) as error:
                problem = error
            time.sleep(SUBMIT_RETRY_S / MAX_SUBMIT_ATTEMPTS)
        self._say(f"job {job} could not be cancelled ({problem}): malletrain cancel {job}")

    def _refresh(self) -> None:
        with self._lock:
            if time.monotonic() - self._listed_at < JOBS_REFRESH_S:
                return
            try:
                rows = self._daemon.jobs(over=False, mine=True)
                events, self._after = _events(self._daemon, self._after)
            except WireError as error:
                if self._answered:
                    self._say(f"{error}; trainings go on, and the study waits")
                self._answered = False
            else:
                if not self._answered:
                    self._say("the daemon answers again")
                self._listed, self._answered = {row.id: row for row in rows}, True
                for event in events:
                    if event.job in self._queues:
                        self._queues[event.job].put(event)
            self._listed_at = time.monotonic()


def _events(daemon: DaemonClient, after: int, job: int | None = None) -> tuple[list[EventRow], int]:
    """Events of `EVENT_KINDS` after number `after`, of all jobs or of one; and the number to go on from."""
    found: list[EventRow] = []
    while True:
        rows, last = daemon.events(after=after, job=job, kinds=EVENT_KINDS)
        found += rows
        if not rows or last <= after:
            return found, max(after, last)
        after = last


def _body(spec: TrialSpec) -> bytes:
    command = f"exec {shlex.quote(sys.executable)} -P -m malletrain.study.trial_main {shlex.quote(spec.folder)}\n"
    return os.fsencode(f"#!/bin/bash\n{command}")
