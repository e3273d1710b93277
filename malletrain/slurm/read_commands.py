"""One round of queries, as cheap as Slurm allows, made into a snapshot.

Cost at 10,000 nodes (22.05): `scontrol show node -o` 60 ms, `squeue -o` 10 ms; the JSON of the same takes over 1 s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from malletrain.domain.errors import ClusterUnavailable
from malletrain.domain.snapshot import BackfillPlan, MainQueue, Snapshot
from malletrain.slurm import read_pyslurm
from malletrain.slurm.command import Commands, readable
from malletrain.slurm.formats import normalise, sdiag, squeue, text
from malletrain.slurm.formats.records import JobRecord, NodeRecord


class CommandReader:
    """Reads the live cluster through Slurm's text commands, or through pyslurm by the command of
    `read_pyslurm.choose`. Methods raise `ClusterUnavailable` where there is no answer in time, an error, or an answer
    that cannot be right. `bf_interval_s`: bf_interval of SchedulerParameters, for how long a backfill plan is fresh.
    """

    def __init__(
        self,
        commands: Commands,
        now: Callable[[], float],
        harvest_partition: str,
        bf_interval_s: float = 30.0,
        pyslurm: Sequence[str] = (),
    ) -> None:
        self._commands, self._now, self._harvest = commands, now, harvest_partition
        self._bf_interval_s, self._pyslurm = bf_interval_s, pyslurm
        self._diagnosis: sdiag.SchedulerStatistics | None = None
        self._diagnosed_at = float("-inf")
        self._known_nodes: dict[str, NodeRecord] = {}

    def snapshot(self) -> Snapshot:
        """Nodes, then the queue, then reservations. In that order: a job that starts meanwhile is then seen on a node
        that still looks idle, and the node is not free; the other way round it would look free."""
        taken_at = self._now()
        with readable():
            nodes, jobs = read_pyslurm.ask(self._commands, self._pyslurm) if self._pyslurm else self._by_commands()
            reservations = text.reservations(self._commands.ask(["scontrol", "-o", "show", "reservation"]))
            plan = self.diagnosis().plan
            return normalise.snapshot(taken_at, nodes, jobs, reservations, plan, task_by_task=self._harvest)

    def _by_commands(self) -> tuple[list[NodeRecord], list[JobRecord]]:
        nodes = self._commands.ask(["scontrol", "-a", "-o", "show", "node"])
        mark = self._commands.mark()
        columns = squeue.queue_format(mark)
        # squeue folds an array's waiting tasks into one row, with the reason of one of them: a task released a moment
        # ago would look held. So pilots are asked for one by one (-r); the main queue is not: arrays of 10,000.
        pilots = self._commands.ask(["squeue", "-a", "-h", "-r", "-p", self._harvest, "-o", columns])
        jobs = self._commands.ask(["squeue", "-a", "-h", "-o", columns])
        if not nodes.endswith("\n"):
            raise ClusterUnavailable("scontrol show node: an answer cut off in mid line")
        main = [row for row in squeue.parse_queue(jobs, mark) if row.partition != self._harvest]
        return text.nodes(nodes, self._known_nodes), main + squeue.parse_queue(pilots, mark)

    def main_queue(self, known: frozenset[str]) -> MainQueue:
        """The jobs of all partitions but the harvest one: one light query, made between ticks. slurmctld sends them
        all whatever squeue is to print; rows of jobs that are `known` and run are read by their ids alone."""
        mark = self._commands.mark()
        answer = self._commands.ask(["squeue", "-a", "-h", "-o", squeue.queue_format(mark)])
        with readable():
            warnings = normalise.Warnings()
            rows, running = squeue.parse_changed(answer, mark, known)
            main = (normalise.job(row, warnings) for row in rows if row.partition != self._harvest)
            return MainQueue.of(main, known - running)

    def diagnosis(self) -> sdiag.SchedulerStatistics:
        """How fresh the backfill plan is; asked at most once a backfill interval.

        Not knowing is no reason to stop the tick: sdiag may be closed to all but operators (rl_enable, PrivateData).
        """
        now = self._now()
        if self._diagnosis is None or now - self._diagnosed_at >= min(10.0, self._bf_interval_s):
            try:
                self._diagnosis = sdiag.parse(self._commands.ask(["sdiag"]), self._bf_interval_s)
            except ClusterUnavailable:
                self._diagnosis = sdiag.SchedulerStatistics(BackfillPlan(interval_s=self._bf_interval_s))
            self._diagnosed_at = now
        return self._diagnosis
