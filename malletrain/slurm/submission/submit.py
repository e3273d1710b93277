"""Submits a malleable job, or leaves nothing behind. Part of the base wheel.

    check the partition -> announce the job -> sbatch a held array -> tell the daemon

Where sbatch does not say the array's number plainly, the array is looked for in Slurm, by a mark in its comment.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from malletrain import __version__
from malletrain.domain.errors import InvalidInput, MalletrainError
from malletrain.domain.requirements import Requirements, has_features
from malletrain.slurm.command import Commands
from malletrain.slurm.formats import text
from malletrain.slurm.site import held_task_limits
from malletrain.slurm.submission.sbatch import PILOT_OPTIONS, SITE_OPTIONS, BatchRequest, Submission, default_tasks
from malletrain.wire.daemon import DaemonClient
from malletrain.wire.daemon_url import with_trust
from malletrain.wire.errors import WireError
from malletrain.wire.http import DaemonRefused, DaemonUnavailable
from malletrain.wire.sbatch_answer import job_id, jobs_marked, likely_job_id

#: Seconds for sbatch; it takes 13 to 36 ms (measured), more on a controller under load.
SBATCH_TIMEOUT_S = 60.0

_GRES = re.compile(r"(?P<name>[A-Za-z0-9_]+)(?::(?P<type>[^:(,]+))?:(?P<count>\d+[KMGT]?)\Z")

_LOOK = "a held array may be left: if `squeue -u $USER` shows one, scancel it"

#: Shares of a GRES that is asked for whole already (slurm.conf(5), GresTypes): both together are refused.
_SHARING = frozenset({"shard", "mps"})


def check_partition(commands: Commands, partition: str) -> None:
    """Check that the partition exists, is up and preemptible, for an early answer; the daemon checks the rest. Raises
    `InvalidInput`: pilots cannot run there; `ClusterUnavailable`: Slurm does not answer."""
    known = text.partitions(commands.ask(["scontrol", "-a", "-o", "show", "partition"]))
    facts = known.get(partition)
    if facts is None:
        names = ", ".join(sorted(known)) or "none"
        raise InvalidInput(f"partition {partition}", f"does not exist; there are: {names}")
    state, mode = facts.get("State", "in no known state"), facts.get("PreemptMode", "OFF")
    if state != "UP":
        raise InvalidInput(f"partition {partition}", f"is {state}: ask the site's staff")
    if mode not in ("REQUEUE", "CANCEL"):
        why = f"its jobs are not preempted (PreemptMode={mode}), so pilots would stand in the main queue's way"
        raise InvalidInput(f"partition {partition}", f"{why}: ask the site's staff for a harvest partition")


class NodeKind(NamedTuple):
    """`nodes` nodes of a partition that have the same generic resources and features, as sinfo shows them."""

    nodes: int
    gres: str
    features: tuple[str, ...]


def node_kinds(commands: Commands, partition: str) -> tuple[NodeKind, ...]:
    """The nodes of the partition in whatever state, by what they have. Raises `ClusterUnavailable`: Slurm does not
    answer."""
    counts: dict[tuple[str, str], int] = {}
    for row in commands.ask(["sinfo", "-h", "-p", partition, "-o", "%D|%f|%G"]).splitlines():
        count, features, gres = [*row.strip().split("|", 2), "", ""][:3]
        if count.isdigit():
            kind = gres.replace("(null)", ""), features.replace("(null)", "")
            counts[kind] = counts.get(kind, 0) + int(count)
    return tuple(
        NodeKind(count, gres, tuple(word for word in features.split(",") if word))
        for (gres, features), count in sorted(counts.items())
    )


def whole_gres(kinds: Sequence[NodeKind], constraint: str = "") -> str:
    """All GRES of a node that satisfies `constraint`, as sbatch's --gres takes it; empty where such nodes have none,
    or differ: an exclusive job is given the whole node, GRES included (sbatch(1), --exclusive)."""
    found = {kind.gres for kind in kinds if has_features(constraint, kind.features)}
    if len(found) != 1:
        return ""
    wanted = []
    # `gpu:a100:4(S:0-1),shard:16`: what is in brackets says where they are.
    for part in re.sub(r"\([^)]*\)", "", found.pop()).split(","):
        match = _GRES.match(part)
        if match is not None and match["name"] not in _SHARING:
            wanted.append(part)
    return ",".join(wanted)


def check_nodes(kinds: Sequence[NodeKind], request: BatchRequest) -> None:
    """Check that the partition has the nodes that the job asks for, in whatever state they are now. Slurm accepts a
    held array that no node can serve, and would never start it. Raises `InvalidInput`: it has none, or fewer."""
    needs = Requirements(request.gres, request.constraint)
    there = sum(kind.nodes for kind in kinds)
    can = sum(kind.nodes for kind in kinds if needs.satisfied_by_one_with(kind.gres, kind.features))
    if not there:  # sinfo shows none: PrivateData may hide them
        return
    where = f"partition {request.partition}"
    if not can:
        have = "; ".join(f"{kind.nodes} with {_words_of(kind)}" for kind in kinds)
        option = "--gres" if request.gres and not request.constraint else "--constraint"
        raise InvalidInput(option, f"no node of {where} has {needs}; it has {have}")
    if request.max_nodes > can:
        with_it = f" that have {needs}" if can < there else ""
        asked = f"{request.min_nodes}-{request.max_nodes}"
        if request.min_nodes > can:
            raise InvalidInput("--nodes", f"{asked} needs {request.min_nodes} nodes, and {where} has {can}{with_it}")
        most = f"--nodes={request.min_nodes}-{can}"
        raise InvalidInput("--nodes", f"{asked} is more than the {can} nodes of {where}{with_it}: give {most}")


def _words_of(kind: NodeKind) -> str:
    features = ",".join(kind.features) and f"features {','.join(kind.features)}"
    return " and ".join(filter(None, (kind.gres, features))) or "neither gres nor features"


def fit(commands: Commands, request: BatchRequest) -> BatchRequest:
    """The request with at most as many held tasks as the site's limits allow; workers submit more as they are
    consumed. Raises `TooManyHeldTasks`: more were asked for or are needed, or Slurm's queue is nearly full;
    `ClusterUnavailable`: Slurm does not answer."""
    known = held_task_limits.read(commands)
    asked = request.tasks != default_tasks(request.max_nodes)
    tasks = held_task_limits.affordable(known, request.tasks, request.min_nodes, asked=asked)
    held_task_limits.check_headroom(commands, known, tasks)
    return replace(request, tasks=tasks)


def as_the_site_submits(daemon: DaemonClient, request: BatchRequest) -> BatchRequest:
    """The request with the options that the site gives pilots (pilot.sbatch). Raises `WireError`: the daemon does not
    answer; `SubmissionRefused`: it asks for others than a site may."""
    wanted = daemon.site().get("sbatch")  # of an earlier release: none
    options = request.pilot_options if wanted is None else tuple(wanted.split())
    added = [option for option in options if option not in PILOT_OPTIONS]
    if foreign := [option for option in added if option[2:].partition("=")[0] not in SITE_OPTIONS]:
        raise SubmissionRefused(f"the daemon asks for {' '.join(foreign)} (pilot.sbatch): no site may set this")
    return replace(request, pilot_options=options)


@dataclass(frozen=True, slots=True)
class Submitter:
    """Submits malleable jobs as the user who runs it. `warn`: called with Slurm's warnings."""

    daemon: DaemonClient
    commands: Commands
    environ: Mapping[str, str]
    warn: Callable[[str], None]

    def submit(self, request: BatchRequest) -> tuple[int, int]:
        """Submit the job and return its number and its array's. Raises `SubmissionRefused`: Slurm or the daemon
        refuses. The message names whatever could not be undone; `TooManyHeldTasks`: the site's limits allow fewer
        held tasks; nothing was submitted."""
        request = fit(self.commands, request)
        try:
            job = self._announce(request)
        except DaemonRefused as refused:
            raise SubmissionRefused(f"the daemon does not take the job: {refused}") from refused
        return job, self._attached(job, request, is_new=True)

    def add_tasks(self, job: int, request: BatchRequest) -> int:
        """Submit one more held array for a job that has been announced, and return the array's number. Raises
        `SubmissionRefused`: Slurm or the daemon refuses. The message says if the array could not be cancelled;
        `TooManyHeldTasks`: the site's limits allow fewer held tasks."""
        return self._attached(job, fit(self.commands, request))

    def _announce(self, request: BatchRequest) -> int:
        """Announce the job. Where the answer is lost, repeat with the same key, which makes it one job."""
        body = {**request.announcement(), "key": secrets.token_hex(16)}
        try:
            return self.daemon.submit(body).id
        except DaemonUnavailable:
            return self.daemon.submit(body).id

    def _attached(self, job: int, request: BatchRequest, *, is_new: bool = False) -> int:
        """Submit a held array and tell the daemon of it. Where that fails, undo what was begun, and say what could
        not be undone: in what is raised in place of an error of MalleTrain's own, else as a warning."""
        array: int | None = None
        try:
            if is_new:
                set_aside(Path(request.chdir) / ".malletrain" / str(job), self.warn)
            array = self._held_array(job, request)
            self.daemon.attach(job, array, request.tasks)
        except BaseException as error:  # Ctrl-C too
            unknown = error.left if isinstance(error, SubmissionRefused) else ""
            held = "" if array is None else self._cancel(array)
            announced = self._unannounce(job) if is_new else ""
            left = "; ".join(filter(None, (unknown, held, announced))) or "nothing was left behind"
            if isinstance(error, (MalletrainError, WireError)):
                raise SubmissionRefused(f"{error}; {left}") from error
            self.warn(left)
            raise
        return array

    def _held_array(self, job: int, request: BatchRequest) -> int:
        request = as_the_site_submits(self.daemon, request)
        trusting = with_trust(self.environ, self.daemon.address.ca)
        mark = secrets.token_hex(4)
        python = request.python or sys.executable
        script = request.materialize(job, self.daemon.url, python, trusting, __version__, mark)
        try:
            printed = run_sbatch(script, request.chdir, self.warn)
        except BaseException as error:  # a wrapper fails after sbatch has not, or Ctrl-C comes too late
            refused = isinstance(error, SubmissionRefused)
            left = self._cancel_marked(mark, certain=refused and not isinstance(error, SbatchSilent))
            if isinstance(error, SubmissionRefused):
                error.left = left
            elif left:
                self.warn(left)
            raise
        number = job_id(printed)
        if number is None:
            found = self._marked(mark)
            number = found[0] if found else likely_job_id(printed)
        if number is None:
            raise SubmissionRefused(f"sbatch printed no job id but {printed[:80]!r}", _LOOK)
        if "--time=1" not in request.pilot_options:  # sbatch was not asked for the limit of a minute
            limit = ["scontrol", "update", f"JobId={number}", "TimeLimit=1"]
            if why := self._failure(limit):
                left = self._cancel(number)
                raise SubmissionRefused(f"array {number} cannot be limited to a minute: {why}", left)
        return number

    def _marked(self, mark: str) -> list[int] | None:
        """This user's jobs whose comment holds `mark`; None: Slurm does not answer."""
        try:
            printed = self.commands.ask(["squeue", "-a", "-h", "-u", str(os.getuid()), "-o", "%F %k"])
        except MalletrainError:
            return None
        return jobs_marked(printed, mark)

    def _cancel_marked(self, mark: str, *, certain: bool) -> str:
        """Cancel what a call of sbatch that failed has submitted all the same; a text that names what is left, or may
        be. `certain`: a job that Slurm does not show now does not come later."""
        found = self._marked(mark)
        if found or (found is not None and certain):
            return "; ".join(filter(None, map(self._cancel, found)))
        return _LOOK

    def _unannounce(self, job: int) -> str:
        """Cancel the announced job; empty on success, else a text that says that it is left."""
        try:
            self.daemon.ask(job, "cancel")
        except WireError as error:
            return f"job {job} is still announced ({error}): malletrain cancel {job}"
        return ""

    def _cancel(self, array: int) -> str:
        """Cancel the held array; empty on success, else a text that names what is left."""
        why = self._failure(["scancel", str(array)])
        return f"the held array {array} is still there ({why}): scancel {array}" if why else ""

    def _failure(self, command: Sequence[str]) -> str:
        try:
            return self.commands.run(command).error
        except MalletrainError as error:
            return str(error)


def set_aside(saved: Path, warn: Callable[[str], None]) -> None:
    """Rename a checkpoint directory that an earlier job of the same number left (of another daemon or a lost
    journal), so that the new job does not load it. Raises `SubmissionRefused`: the directory cannot be renamed."""
    if not saved.exists():
        return
    number = 1
    while (other := saved.with_name(f"{saved.name}.before-{number}")).exists():
        number += 1
    try:
        saved.rename(other)
    except OSError as error:
        why = f"{saved} holds another job's state and cannot be moved ({error.strerror}): move it"
        raise SubmissionRefused(why) from error
    warn(f"{saved} held the state of another job of this number: it is {other.name} now")


def run_sbatch(submission: Submission, cwd: str, warn: Callable[[str], None]) -> str:
    """Run sbatch in `cwd` and return what it printed: the array's job id, as a rule. Raises `SubmissionRefused`:
    sbatch fails (its own message is quoted), or takes longer than SBATCH_TIMEOUT_S."""
    try:
        done = subprocess.run(
            list(submission.argv),
            input=submission.script,
            capture_output=True,
            env=dict(submission.environment),
            cwd=cwd,
            timeout=SBATCH_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        what = f"the directory {cwd} does not exist" if not Path(cwd).is_dir() else "sbatch is not on PATH"
        raise SubmissionRefused(what) from error
    except OSError as error:
        raise SubmissionRefused(f"sbatch cannot be run in {cwd}: {os.strerror(error.errno or 0)}") from error
    except subprocess.TimeoutExpired as error:
        if b"unable to accept job" in (error.stderr or b""):  # it waits and tries again for minutes
            full = "Slurm takes no jobs now: its queue is full (MaxJobCount); try again later"
            raise SubmissionRefused(full) from error
        raise SbatchSilent(f"sbatch gave no answer in {SBATCH_TIMEOUT_S:.0f} s") from error
    words = "; ".join(part.strip() for part in done.stderr.decode("utf-8", "replace").splitlines() if part.strip())
    if done.returncode != 0:
        few = "; --tasks asks for fewer held tasks" if "SubmitJob" in words else ""  # MaxSubmitJobs, GrpSubmitJobs
        raise SubmissionRefused(f"sbatch refuses: {words or f'exit status {done.returncode}'}{few}")
    if words:  # a warning of Slurm's or of a submit plug-in
        warn(words)
    return done.stdout.decode("utf-8", "replace")


class SubmissionRefused(MalletrainError):
    """The job was not submitted. What could not be undone is in the message; what sbatch left, in `left`."""

    def __init__(self, message: str, left: str = "") -> None:
        super().__init__(message)
        self.left = left


class SbatchSilent(SubmissionRefused):
    """sbatch gave no answer: Slurm may take the array all the same."""
