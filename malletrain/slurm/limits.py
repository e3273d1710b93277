"""How many held tasks a site can bear: they count against MaxJobCount, and a full controller refuses everybody.

sbatch does not say so at once: it waits and tries again for minutes ("Slurm temporarily unable to accept job").
"""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.domain.errors import ClusterUnavailable, InvalidInput, MalletrainError
from malletrain.slurm.command import Commands
from malletrain.slurm.formats import queue, text, values

#: One job's held tasks are at most this share of MaxJobCount; workers submit more as they are consumed.
SHARE_OF_A_JOB = 0.05

#: No more is submitted when Slurm knows so large a share of MaxJobCount already.
FULL = 0.9


class TooMany(MalletrainError):
    """The site cannot bear so many held tasks."""


@dataclass(frozen=True, slots=True)
class Limits:
    """slurm.conf(5): most jobs that Slurm knows at a time, and one more than the highest index of an array."""

    max_job_count: int = 10_000
    max_array_size: int = 1001

    @property
    def most_tasks(self) -> int:
        """Most held tasks of one job at a time."""
        return max(1, min(int(SHARE_OF_A_JOB * self.max_job_count), self.max_array_size - 1))

    @property
    def why(self) -> str:
        """Which limit makes `most_tasks` what it is."""
        if self.max_array_size - 1 < int(SHARE_OF_A_JOB * self.max_job_count):
            return f"MaxArraySize={self.max_array_size}"
        return f"{SHARE_OF_A_JOB:.0%} of MaxJobCount={self.max_job_count}"


def read(commands: Commands) -> Limits:
    """Ask slurmctld.

    Raises:
        ClusterUnavailable: no answer.
    """
    config = text.config(commands.ask(["scontrol", "show", "config"]))
    return Limits(
        values.number(config.get("MaxJobCount", ""), 10_000), values.number(config.get("MaxArraySize", ""), 1001)
    )


def affordable(limits: Limits, wanted: int, least: int, *, asked: bool) -> int:
    """How many held tasks a job of at least `least` nodes is submitted with. `asked`: its owner named the number.

    Raises:
        TooMany: more were asked for, or needed, than the site can bear.
    """
    most = limits.most_tasks
    if least > most:
        raise TooMany(
            f"--nodes: {least} nodes need as many held tasks, and at most {most} are possible ({limits.why})"
        )
    if asked and wanted > most:
        raise TooMany(f"--tasks={wanted}: at most {most} are possible ({limits.why}); more follow as they are used")
    return min(wanted, most)


def known_jobs(commands: Commands) -> int:
    """How many jobs Slurm shows, each waiting task of an array as one.

    Raises:
        ClusterUnavailable: no answer, or one that cannot be read.
    """
    mark = commands.mark()
    answer = commands.ask(["squeue", "-a", "-h", "-o", queue.queue_format(mark)])
    try:
        rows = queue.parse_queue(answer, mark)
    except InvalidInput as error:
        raise ClusterUnavailable(f"squeue: {error}") from error
    return sum(values.count_tasks(row.tasks) if row.tasks else 1 for row in rows)


def check_headroom(commands: Commands, limits: Limits, tasks: int) -> None:
    """Make sure that `tasks` more leave room for the main queue.

    Raises:
        TooMany: they do not.
        ClusterUnavailable: no answer.
    """
    known = known_jobs(commands)
    if known + tasks > FULL * limits.max_job_count:
        raise TooMany(
            f"Slurm has {known} of at most {limits.max_job_count} jobs (MaxJobCount), and {tasks} held tasks more "
            "would crowd out the main queue: try again later, or ask for fewer with --tasks"
        )
