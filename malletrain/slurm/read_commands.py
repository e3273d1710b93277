"""One round of queries, as cheap as Slurm allows, made into a snapshot.

Cost at 10,000 nodes (22.05): `scontrol show node -o` 60 ms, `squeue -o` 10 ms; the JSON of the same takes over 1 s.
squeue's short columns do not say how many leaf switches a job asks for (sbatch --switches): each waiting job of
several nodes is asked for once, where Slurm has switches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.domain.snapshot import BackfillPlan, MainQueue, SlurmJob, SlurmState, Snapshot
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
        self._leaves: Mapping[str, str] = {}
        self._leaves_asked_at = float("-inf")
        self._switches: dict[int, int | None] = {}

    def snapshot(self) -> Snapshot:
        """Nodes, then the queue, then reservations. In that order: a job that starts meanwhile is then seen on a node
        that still looks idle, and the node is not free; the other way round it would look free."""
        taken_at = self._now()
        with readable():
            nodes, jobs = read_pyslurm.ask(self._commands, self._pyslurm) if self._pyslurm else self._by_commands()
            reservations = text.reservations(self._commands.ask(["scontrol", "-o", "show", "reservation"]))
            plan = self.diagnosis().plan
            seen = normalise.snapshot(taken_at, nodes, jobs, reservations, plan, task_by_task=self._harvest)
        return replace(seen, jobs=self._with_switches(seen.jobs), leaves=self._leaves)

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
            queue = MainQueue.of(main, known - running)
        return replace(queue, waiting=self._with_switches(queue.waiting))

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

    def _with_switches(self, jobs: Sequence[SlurmJob]) -> tuple[SlurmJob, ...]:
        """The jobs, those that wait for several nodes with the number of leaf switches that they ask for. Tasks of
        the harvest partition ask for none; nothing rests on leaves but how well a job is placed."""
        if self._now() - self._leaves_asked_at >= 900.0:  # they change only with the configuration
            self._leaves_asked_at = self._now()
            try:
                self._leaves = text.leaf_of_each(self._commands.ask(["scontrol", "show", "topology"]))
            except (ClusterUnavailable, InvalidInput):
                self._leaves = {}
        if not self._leaves:
            return tuple(jobs)
        waiting = (job for job in jobs if job.state is SlurmState.PENDING and job.partition != self._harvest)
        wide = {job.raw_id for job in waiting if job.node_count > 1}
        self._switches = {number: asked for number, asked in self._switches.items() if number in wide}
        new = sorted(wide - self._switches.keys())[:200]  # in one command; the others at the next look
        if new:
            self._switches |= self._ask_switches(new)
        asked = ((job, self._switches.get(job.raw_id)) for job in jobs)
        return tuple(replace(job, switches=most) if most else job for job, most in asked)

    def _ask_switches(self, numbers: Sequence[int]) -> dict[int, int | None]:
        mark = self._commands.mark()
        which = ",".join(map(str, numbers))
        columns = f"jobid:0{mark},reqswitch:0{mark}"
        answer = self._commands.run(["squeue", "-a", "-h", "-j", which, "-O", columns])
        if not answer.ok:
            return {}  # asked for again at the next look
        cells = answer.output.split(mark)
        pairs = zip(cells[::2], cells[1::2], strict=False)
        found = {int(number): int(asked) for number, asked in pairs if number.strip().isdigit() and asked.isdigit()}
        return {number: found.get(number) or None for number in numbers}
