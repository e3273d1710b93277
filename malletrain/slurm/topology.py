"""Leaf switches: which node hangs on which, and how many a waiting job asks for (sbatch --switches). squeue's short
columns do not have the latter, so each waiting job of several nodes is asked for once, where Slurm has switches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.domain.snapshot import SlurmJob, SlurmState, Snapshot
from malletrain.slurm.command import Commands
from malletrain.slurm.formats import hostlist, text


class Topology:
    """Slurm's switches, asked for seldom and remembered. Tasks of the harvest partition ask for none."""

    def __init__(self, commands: Commands, now: Callable[[], float], harvest_partition: str) -> None:
        self._commands, self._now, self._harvest = commands, now, harvest_partition
        self._leaves: Mapping[str, str] = {}
        self._asked_at = float("-inf")
        self._switches: dict[int, int | None] = {}

    def over(self, seen: Snapshot) -> Snapshot:
        """The snapshot with leaves, and with the switches that waiting jobs ask for."""
        leaves = self.leaves()
        return replace(seen, jobs=self.with_switches(seen.jobs), leaves=leaves) if leaves else seen

    def leaves(self) -> Mapping[str, str]:
        """The leaf of each node; empty where Slurm has no topology, or does not tell: nothing rests on it but how
        well a job is placed."""
        if self._now() - self._asked_at >= 900.0:  # it changes only with the configuration
            self._asked_at = self._now()
            try:
                self._leaves = leaf_of_each(self._commands.ask(["scontrol", "show", "topology"]))
            except (ClusterUnavailable, InvalidInput):
                self._leaves = {}
        return self._leaves

    def with_switches(self, jobs: Sequence[SlurmJob]) -> tuple[SlurmJob, ...]:
        """The jobs, those that wait for several nodes with the number of leaf switches that they ask for."""
        if not self.leaves():
            return tuple(jobs)
        waiting = (job for job in jobs if job.state is SlurmState.PENDING and job.partition != self._harvest)
        wide = {job.raw_id for job in waiting if job.node_count > 1}
        self._switches = {number: asked for number, asked in self._switches.items() if number in wide}
        new = sorted(wide - self._switches.keys())[:200]  # in one command; the others at the next look
        if new:
            self._switches |= self._ask(new)
        asked = ((job, self._switches.get(job.raw_id)) for job in jobs)
        return tuple(replace(job, switches=most) if most else job for job, most in asked)

    def _ask(self, numbers: Sequence[int]) -> dict[int, int | None]:
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


def leaf_of_each(printed: str) -> dict[str, str]:
    """`scontrol show topology`: the leaf of each node. A leaf is a switch of level 0, or a block; a node of several
    leaves is in the first. Empty where Slurm has no topology ("No topology information available"). Raises
    `InvalidInput`: a leaf whose nodes cannot be read."""
    found: dict[str, str] = {}
    for line in printed.splitlines():
        record = f" {line.strip()}"
        if name := text.word(record, "SwitchName" if text.word(record, "Level") == "0" else "BlockName"):
            for node in hostlist.expand(text.word(record, "Nodes"), f"scontrol show topology ({name})"):
                found.setdefault(node, name)
    return found
