"""How many held tasks a site's limits allow. They count against MaxJobCount, and at that limit slurmctld refuses
every submission, main jobs included; sbatch then tries again for minutes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.domain.errors import ClusterUnavailable, MalletrainError
from malletrain.slurm.command import Commands
from malletrain.slurm.formats import scalars, text
from malletrain.slurm.site.site_facts import parameters

#: Share of MaxJobCount that one job's held tasks may be; workers submit more as they are consumed.
MAX_SHARE_PER_JOB = 0.05

#: Share of MaxJobCount from which on no more tasks are submitted.
FULL_QUEUE_SHARE = 0.9

#: A job, a task, a component of a hetjob, or the waiting rest of an array.
_ID = re.compile(r"\d+(?:[_+]\d+|_(?P<tasks>\[[\d,:%.-]+\]))?")


class TooManyHeldTasks(MalletrainError):
    """The site's limits (MaxJobCount, MaxArraySize, max_array_tasks) allow fewer held tasks."""


@dataclass(frozen=True, slots=True)
class HeldTaskLimits:
    """Most held tasks of one job at a time, `why` (which limit that is), and slurm.conf(5)'s limits."""

    most_tasks: int
    why: str
    max_job_count: int
    max_array_size: int


def read(commands: Commands) -> HeldTaskLimits:
    """Read the limits from `scontrol show config`. Raises `ClusterUnavailable`: Slurm does not answer."""
    return limits_of(text.config(commands.ask(["scontrol", "show", "config"])))


def limits_of(config: Mapping[str, str]) -> HeldTaskLimits:
    """The limits by the words of `scontrol show config`."""
    jobs = scalars.number(config.get("MaxJobCount", ""), 10_000)
    size = scalars.number(config.get("MaxArraySize", ""), 1001)
    limits = [
        (int(MAX_SHARE_PER_JOB * jobs), f"{MAX_SHARE_PER_JOB:.0%} of MaxJobCount={jobs}"),
        (size - 1, f"MaxArraySize={size}"),
    ]
    most = parameters(config.get("SchedulerParameters", "")).get("max_array_tasks", "")
    if most.isdecimal():
        limits.append((int(most), f"max_array_tasks={most}"))
    least, why = min(limits, key=lambda limit: limit[0])
    return HeldTaskLimits(max(1, least), why, jobs, size)


def affordable(limits: HeldTaskLimits, wanted: int, least: int, *, asked: bool) -> int:
    """The number of held tasks to submit for a job of at least `least` nodes. `asked`: `wanted` is from the user.
    Raises `TooManyHeldTasks`: the user asked for more than the limits allow, or `least` is more."""
    most = limits.most_tasks
    possible = f"at most {most} are possible ({limits.why})"
    if least > most:
        raise TooManyHeldTasks(f"--nodes: {least} nodes need as many held tasks, and {possible}")
    if asked and wanted > most:
        raise TooManyHeldTasks(f"--tasks={wanted}: {possible}; more follow as they are used")
    return min(wanted, most)


def known_jobs(commands: Commands) -> int:
    """How many jobs count against MaxJobCount, each task of an array as one.

    Ended ones too: slurmctld keeps them for MinJobAge (measured: 60 that had ended and 30 held in a MaxJobCount of
    100 left no room for 50 more). Raises `ClusterUnavailable`: Slurm does not answer, or the answer cannot be parsed.
    """
    return count_jobs(commands.ask(["squeue", "-a", "-h", "-t", "all", "-o", "%i"]))


def count_jobs(ids: str) -> int:
    """How many jobs these rows of `squeue -o %i` are: `7`, `7_3`, `7+1`, `7_[0-9,12%2]`. Raises `ClusterUnavailable`:
    a row has another form."""
    total = 0
    for row in ids.split():
        match = _ID.fullmatch(row)
        if match is None:
            raise ClusterUnavailable(f"squeue: {row[:40]!r} is not a job id")
        total += scalars.count_tasks(match["tasks"]) if match["tasks"] else 1
    return total


def why_full(known: int, max_job_count: int) -> str:
    """Why no held tasks may be added to so many jobs, or ''."""
    full = 0 < FULL_QUEUE_SHARE * max_job_count <= known
    return f"Slurm has {known} of at most {max_job_count} jobs (MaxJobCount)" if full else ""


def check_headroom(commands: Commands, limits: HeldTaskLimits, tasks: int) -> None:
    """Check that `tasks` more leave FULL_QUEUE_SHARE of MaxJobCount unexceeded. Raises `TooManyHeldTasks`: they would
    exceed it; `ClusterUnavailable`: Slurm does not answer."""
    known = known_jobs(commands)
    if known + tasks > FULL_QUEUE_SHARE * limits.max_job_count:
        raise TooManyHeldTasks(
            f"Slurm has {known} of at most {limits.max_job_count} jobs (MaxJobCount), and {tasks} held tasks more "
            "would crowd out the main queue: try again later, or ask for fewer with --tasks"
        )
