"""The daemon's loop over a real Slurm, without the daemon: its cluster, its rules, its decisions.

Workers are those in memory, who leave as soon as they are asked: what a test sees is what deciding and Slurm do.
"""

from __future__ import annotations

import pwd
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from malletrain import config
from malletrain.decide.rules import Rules
from malletrain.domain.decision import Decision
from malletrain.domain.errors import ClusterUnavailable
from malletrain.domain.event import Event
from malletrain.domain.job import JobView, MalleableJob, PilotPhase
from malletrain.domain.snapshot import Snapshot
from malletrain.loop.memory import MemoryJournal, MemoryWorkers
from malletrain.loop.tick import Loop
from malletrain.site_rules import rules_from
from malletrain.sizing.registry import policy
from malletrain.slurm.cluster import SlurmCluster
from malletrain.slurm.command import Commands
from malletrain.slurm.site import site_facts
from malletrain.slurm.site.site_facts import Harvest, SiteFacts
from scripts.lab import Lab
from tests.world import announced, data_of, event_of

#: What a pilot runs: ends on SIGTERM at once, as a worker's launcher does.
PAYLOAD = "exec srun --ntasks=1 sleep 600"


class Clock:
    """The machine's own."""

    def now(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        return time.monotonic()


def until_saved(lab: Lab) -> None:
    """Wait until slurmctld has on disk what it knows of jobs now: what it has not is gone when it is killed."""
    name = f"saved-{time.monotonic_ns()}"
    lab.submit("exit", "-p", "batch", "--hold", f"--job-name={name}", user="bob")

    def saved() -> bool:
        try:
            return name.encode() in (lab.path / "state" / "job_state").read_bytes()
        except FileNotFoundError:  # the new one takes its place at this moment
            return False

    lab.wait_for(saved, 60, "slurmctld's state on disk")


@dataclass
class Harvesting:
    """One harvest on one lab. `harvest` names partition, account and QOS; `overrides` are fields of Rules; `included`
    are nodes of pool.include. A command is given `patience_s` seconds."""

    lab: Lab
    harvest: Harvest = field(default_factory=lambda: Harvest("harvest"))
    environment: Mapping[str, str] | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    included: Sequence[str] = ()
    patience_s: float = 30.0

    def __post_init__(self) -> None:
        self.commands = Commands(self.environment or self.lab.env, self.patience_s)
        self.facts: SiteFacts = site_facts.read(self.commands)
        self.uid = pwd.getpwnam("alice").pw_uid
        self.clock = Clock()
        self.journal = MemoryJournal()
        self.workers = MemoryWorkers(self.clock)
        self.cluster = SlurmCluster(
            self.commands, self.harvest, lambda _: self.uid, bf_interval_s=self.facts.bf_interval_s
        )
        self.loop = Loop(self.cluster, self.workers, self.journal, self.clock, policy("exact"), self.rules())

    def rules(self) -> Rules:
        """The daemon's own for this site, with no reserve."""
        text = f'[slurm]\npartition = "{self.harvest.partition}"\n[pool]\nkeep_idle = 0\n'
        text += f"include = {list(self.included)}\n"
        rules = rules_from(config.parse(text, "test"), self.facts)
        return replace(rules, **self.overrides)  # type: ignore[arg-type]

    def submit(self, *more: str, most: int = 8, tasks: int = 10, job: int = 1, share: bool = False) -> int:
        """A malleable job of alice's with its held array; the array's number. `share`: it does not ask for the whole
        node, as it should."""
        wanted = MalleableJob(job, f"job{job}", "alice", self.uid, self.harvest.account, 1, most, time.time())
        self.loop.record([event_of(time.time(), "job_announced", job, data=announced(wanted))])
        array = self.lab.submit(
            PAYLOAD, "-p", self.harvest.partition, "--hold", f"--array=0-{tasks - 1}", "--no-requeue", "--time=1",
            "--nodes=1", "--mem=0", "--open-mode=append", "--oversubscribe" if share else "--exclusive",
            *self._identity(), *more, user="alice",
        )  # fmt: skip
        data = {"array_id": array, "tasks": tasks}
        self.loop.record([event_of(time.time(), "array_attached", job, data=data)])
        return array

    def _identity(self) -> Iterable[str]:
        return [
            *([f"--account={self.harvest.account}"] if self.harvest.account else []),
            *([f"--qos={self.harvest.qos}"] if self.harvest.qos else []),
        ]

    def tick(self) -> Decision:
        """One round, and what workers said to it."""
        decision = self.loop.tick()
        self.loop.react()
        assert decision is not None, [e.reason for e in self.events("cluster_unavailable")]
        return decision

    def fill(self, nodes: Sequence[str], deadline_s: float = 120.0) -> None:
        """Tick until pilots run on exactly these nodes."""

        def filled() -> bool:
            self.tick()
            return set(self.held()) == set(nodes)

        self.lab.wait_for(filled, deadline_s, f"pilots on {', '.join(nodes)}; {self.said()[-12:]}")

    def held(self) -> dict[str, str]:
        """Node -> pilot that Slurm runs there now; nothing where Slurm does not answer."""
        try:
            seen = self.snapshot()
        except ClusterUnavailable:
            return {}
        return {
            node: job.id
            for job in seen.jobs
            if job.partition == self.harvest.partition and job.holds_nodes
            for node in job.nodes
        }

    def left(self, nodes: Iterable[str], deadline_s: float = 60.0) -> None:
        """Wait, without another tick, until no pilot is on these nodes."""
        gone = set(nodes)
        self.lab.wait_for(lambda: not gone & set(self.held()), deadline_s, f"no pilot on {gone}; {self.said()[-12:]}")

    def snapshot(self) -> Snapshot:
        return self.cluster.snapshot()

    def view(self, job: int = 1) -> JobView:
        return self.loop.views[job]

    def running(self, job: int = 1) -> set[str]:
        """Nodes on which the loop believes pilots to run."""
        return {p.node for p in self.view(job).active if p.phase is PilotPhase.RUNNING}

    def events(self, *kinds: str) -> list[Event]:
        return [e for e in self.journal.events if not kinds or e.kind in kinds]

    def said(self) -> list[str]:
        """Every reason in the journal."""
        return [f"{e.kind} {data_of(e).get('type', '')} {e.pilot or ''} {e.reason}" for e in self.events()]

    def refusals(self, decision: Decision) -> dict[str, str]:
        return {refusal.subject: refusal.reason for refusal in decision.refusals}
