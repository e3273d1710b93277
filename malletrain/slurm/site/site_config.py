"""What is known of a site's Slurm, as plain values: its configuration, its partitions, and what a check found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal


@dataclass(frozen=True, slots=True)
class Harvest:
    """Where pilots live. Empty account or QOS: not checked (a site without accounting). `max_time_s`: the
    partition's MaxTime; an operator's update would override it silently. `max_nodes`: most nodes of one task."""

    partition: str
    account: str = ""
    qos: str = ""
    max_time_s: float | None = None
    max_nodes: int = 1


class Level(StrEnum):
    """How bad a finding is: `error` means that pilots may not be started, or that main jobs are harmed."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check of the site found, and the remedy (empty when there is nothing to do)."""

    level: Level
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition (slurm.conf(5)). Durations in seconds; None: unlimited."""

    name: str
    tier: int
    preempt_mode: str
    grace_s: float
    max_time_s: float | None
    nodes: frozenset[str]
    state: str
    exclusive: bool = False
    over_time_limit_s: float | None = None
    allow_accounts: str = "ALL"
    allow_qos: str = "ALL"
    words: Mapping[str, str] = field(default_factory=dict)  #: all of them, as `scontrol show partition` prints them

    def admits(self, what: Literal["Accounts", "Qos"], name: str) -> bool:
        """Whether jobs of this account or QOS may run here: a list of those that may makes one of those that may not
        count no more."""
        allowed = self.allow_accounts if what == "Accounts" else self.allow_qos
        if allowed not in ("ALL", ""):
            return _in(name, allowed)
        return not _in(name, self.words.get(f"Deny{what}", ""))


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node: what of it jobs may have, and whether it is one of a cloud."""

    name: str
    cpus: int
    sockets: int
    memory_mib: int
    cloud: bool = False


@dataclass(frozen=True, slots=True)
class QosFacts:
    """One QOS: the QOS that it preempts, its own PreemptMode ("" for the cluster's), PreemptExemptTime in seconds
    (None for the global one), and limits of jobs by key and TRES: `MaxWall`, `MaxTRES=node` (sacctmgr(1))."""

    name: str
    preempts: frozenset[str] = frozenset()
    preempt_mode: str = ""
    exempt_s: float | None = None
    flags: frozenset[str] = frozenset()
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """Slurm's configuration (slurm.conf(5)), durations in seconds."""

    version: str
    cluster: str
    kill_wait_s: float
    over_time_limit_s: float
    bf_interval_s: float
    bf_max_job_test: int
    max_job_count: int
    max_array_size: int
    min_job_age_s: float
    preempt_type: str
    preempt_mode: str
    accounting: bool
    has_prolog: bool
    has_epilog: bool
    private_data: frozenset[str]
    asked_at: float | None = None  #: slurmctld's clock when it answered
    slurm_user: str = "slurm"
    munge_socket: str = ""  #: empty: munged's default
    topology: str = ""
    process_tracking: str = ""  #: ProctrackType
    burst_buffer: str = ""  #: BurstBufferType
    licenses: str = ""
    job_submit: str = ""  #: JobSubmitPlugins
    controller: Mapping[str, str] = field(default_factory=dict)  #: SlurmctldParameters
    federation: str = ""  #: the name of the one that the cluster is in
    parameters: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, PartitionFacts] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)  #: all of them, as `scontrol show config` prints them
    nodes: tuple[NodeFacts, ...] = ()  #: empty: not asked for
    qos: Mapping[str, QosFacts] | None = None  #: None: there are none, or sacctmgr did not answer
    sees_all: bool | None = None  #: whether who asked sees what PrivateData hides; None: nobody asked

    @property
    def release(self) -> tuple[int, int]:
        """(22, 5) for 22.05.8; (0, 0) when the version is not readable."""
        major, _, rest = self.version.partition(".")
        minor = rest.partition(".")[0]
        return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)

    def main_partitions(self, harvest: str) -> tuple[PartitionFacts, ...]:
        """Every partition but the harvest one, by name."""
        return tuple(self.partitions[name] for name in sorted(self.partitions) if name != harvest)

    def knowing(self, before: SiteFacts) -> SiteFacts:
        """These facts, with those of `before` that slurmdbd did not tell this time."""
        qos = before.qos if self.qos is None else self.qos
        return replace(self, qos=qos, sees_all=before.sees_all if self.sees_all is None else self.sees_all)

    def qos_of_pilots(self, partition: str, name: str) -> tuple[QosFacts, ...]:
        """The QOS that count for jobs of QOS `name` in the partition. Of each limit the first that sets it counts:
        the partition's own QOS, unless the job's has OverPartQOS (sacctmgr(1))."""
        known = {qos.name.lower(): qos for qos in (self.qos or {}).values()}
        own = known.get(name.lower())
        there = self.partitions.get(partition)
        of_partition = None if there is None else known.get(there.words.get("QoS", "").lower())
        order = (own, of_partition) if own is not None and "OverPartQOS" in own.flags else (of_partition, own)
        return tuple(qos for qos in order if qos is not None)

    def of_partition(self, name: str) -> tuple[NodeFacts, ...]:
        """The partition's nodes, as far as their sizes are known."""
        mine = self.partitions[name].nodes
        return tuple(node for node in self.nodes if node.name in mine)


def _in(name: str, names: str) -> bool:
    return name.lower() in names.lower().split(",")


def parameters(text: str) -> dict[str, str]:
    """A value of slurm.conf(5) that is a list itself, such as SchedulerParameters: `bf_continue,bf_interval=30`. The
    keys are in lower case: Slurm takes either."""
    pairs = (part.strip().partition("=") for part in text.split(",") if part.strip())
    return {key.lower(): value for key, _, value in pairs}
