"""What a site's Slurm is configured to do, as far as pilots must know. Read once, and at each reload."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.slurm.command import Commands
from malletrain.slurm.formats import hostlist, scalars, text

_ASKED = re.compile(r"Configuration data as of (\S+)")
_SOCKET = re.compile(r"socket=([^,\s]+)")


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
    is_default: bool = False
    exclusive: bool = False
    over_time_limit_s: float | None = None
    allow_accounts: str = "ALL"
    allow_qos: str = "ALL"


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """Slurm's configuration (slurm.conf(5)), durations in seconds."""

    version: str
    cluster: str
    kill_wait_s: float
    over_time_limit_s: float
    bf_interval_s: float
    bf_resolution_s: float
    bf_max_job_test: int
    max_job_count: int
    max_array_size: int
    min_job_age_s: float
    message_timeout_s: float
    preempt_type: str
    preempt_mode: str
    select_type: str
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

    @property
    def release(self) -> tuple[int, int]:
        """(22, 5) for 22.05.8; (0, 0) when the version is not readable."""
        major, _, rest = self.version.partition(".")
        minor = rest.partition(".")[0]
        return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)

    def main_partitions(self, harvest: str) -> tuple[PartitionFacts, ...]:
        """Every partition but the harvest one, by name."""
        return tuple(self.partitions[name] for name in sorted(self.partitions) if name != harvest)


def read(commands: Commands) -> SiteFacts:
    """Ask for the configuration and the partitions.

    Raises:
        ClusterUnavailable: no answer, or one that cannot be read.
    """
    config = commands.ask(["scontrol", "show", "config"])
    partitions = commands.ask(["scontrol", "-a", "-o", "show", "partition"])
    try:
        facts = parse(config, partitions)
        if facts.accounting:  # federations live in slurmdbd
            facts = replace(facts, federation=_federation(commands.ask(["scontrol", "show", "federation"])))
        return facts
    except InvalidInput as error:
        raise ClusterUnavailable(f"scontrol: {error}") from error


def parse(config_text: str, partitions_text: str) -> SiteFacts:
    """The facts in `scontrol show config` and `scontrol -o show partition`.

    Raises:
        InvalidInput: the answer names no version or cluster.
    """
    config = text.config(config_text)
    if not config.get("SLURM_VERSION") or not config.get("ClusterName"):
        raise InvalidInput("scontrol show config", "no SLURM_VERSION or ClusterName in the answer")
    parameters = dict(part.partition("=")[::2] for part in config.get("SchedulerParameters", "").split(",") if part)
    asked = _ASKED.match(config_text)
    socket = _SOCKET.search(config.get("AuthInfo", ""))
    over_time = _minutes(config.get("OverTimeLimit", ""))
    return SiteFacts(
        version=config["SLURM_VERSION"],
        cluster=config["ClusterName"],
        kill_wait_s=scalars.number(config.get("KillWait", ""), 30),
        over_time_limit_s=over_time,
        # Defaults as in slurm.conf(5), SchedulerParameters.
        bf_interval_s=scalars.number(parameters.get("bf_interval", ""), 30),
        bf_resolution_s=scalars.number(parameters.get("bf_resolution", ""), 60),
        bf_max_job_test=scalars.number(parameters.get("bf_max_job_test", ""), 500),
        max_job_count=scalars.number(config.get("MaxJobCount", ""), 10000),
        max_array_size=scalars.number(config.get("MaxArraySize", ""), 1001),
        min_job_age_s=scalars.number(config.get("MinJobAge", ""), 300),
        message_timeout_s=scalars.number(config.get("MessageTimeout", ""), 10),
        preempt_type=config.get("PreemptType", ""),
        preempt_mode=config.get("PreemptMode", ""),
        select_type=config.get("SelectType", ""),
        accounting=config.get("AccountingStorageType", "").endswith("slurmdbd"),
        has_prolog=_is_set(config, "Prolog", "PrologSlurmctld"),
        has_epilog=_is_set(config, "Epilog", "EpilogSlurmctld"),
        private_data=frozenset(config.get("PrivateData", "").replace(" ", "").split(",")) - {"", "none"},
        asked_at=scalars.moment(asked[1]) if asked else None,
        slurm_user=config.get("SlurmUser", "slurm").partition("(")[0],
        munge_socket=socket[1] if socket else "",
        topology=config.get("TopologyPlugin", ""),
        process_tracking=config.get("ProctrackType", ""),
        burst_buffer=config.get("BurstBufferType", ""),
        licenses=config.get("Licenses", ""),
        job_submit=config.get("JobSubmitPlugins", ""),
        controller=dict(
            part.partition("=")[::2] for part in config.get("SlurmctldParameters", "").split(",") if part
        ),
        parameters=parameters,
        partitions={name: _partition(name, words) for name, words in text.partitions(partitions_text).items()},
    )


def _partition(name: str, words: Mapping[str, str]) -> PartitionFacts:
    over = words.get("OverTimeLimit", "NONE")
    return PartitionFacts(
        name=name,
        tier=scalars.number(words.get("PriorityTier", ""), 1),
        preempt_mode=words.get("PreemptMode", ""),
        grace_s=scalars.number(words.get("GraceTime", ""))
        if ":" not in words.get("GraceTime", "")
        else (scalars.duration(words["GraceTime"]) or 0.0),
        max_time_s=scalars.duration(words.get("MaxTime", "UNLIMITED")),
        nodes=frozenset(hostlist.expand(words.get("Nodes", ""), f"partition {name}")),
        state=words.get("State", ""),
        is_default=words.get("Default") == "YES",
        exclusive=words.get("OverSubscribe") == "EXCLUSIVE",
        over_time_limit_s=None if over == "NONE" else _minutes(over),
        allow_accounts=words.get("AllowAccounts", "ALL"),
        allow_qos=words.get("AllowQos", words.get("AllowQOS", "ALL")),
    )


def check_harvest_partition(facts: SiteFacts, harvest: Harvest) -> tuple[Finding, ...]:
    """Whether pilots in this partition give way to every other job: it exists, is up, and every partition that
    shares its nodes preempts it. Findings of level `error` mean: start nothing."""
    mine = facts.partitions.get(harvest.partition)
    if mine is None:
        known = ", ".join(sorted(facts.partitions)) or "none"
        return (
            Finding(
                Level.ERROR,
                f"partition {harvest.partition} does not exist (there are: {known})",
                "add it to slurm.conf with a PriorityTier below all others, or name another in the configuration",
            ),
        )
    found: list[Finding] = []
    if facts.federation:
        found.append(
            Finding(
                Level.ERROR,
                f"the cluster is in federation {facts.federation}: its jobs may go to other clusters",
                "federations are not supported; take the cluster out of it (sacctmgr modify federation)",
            )
        )
    if not mine.nodes:
        found.append(Finding(Level.ERROR, f"partition {mine.name} has no nodes", "give it Nodes= in slurm.conf"))
    if mine.state != "UP":
        found.append(
            Finding(
                Level.ERROR,
                f"partition {mine.name} is {mine.state or 'in no known state'}",
                f"scontrol update PartitionName={mine.name} State=UP",
            )
        )
    if facts.preempt_type.endswith("/qos"):
        found.append(
            Finding(
                Level.WARNING,
                "preemption is by QOS",
                f"check that the QOS {harvest.qos or 'of the pilots'} is in Preempt= of every other QOS (sacctmgr)",
            )
        )
    elif not facts.preempt_type.endswith("/partition_prio") or facts.preempt_mode == "OFF":
        found.append(
            Finding(
                Level.ERROR,
                f"Slurm preempts nothing (PreemptType {facts.preempt_type or 'not set'}, PreemptMode "
                f"{facts.preempt_mode or 'not set'})",
                _how_to_preempt(facts, harvest.partition),
            )
        )
    else:
        if mine.preempt_mode not in ("REQUEUE", "CANCEL"):
            found.append(
                Finding(
                    Level.ERROR,
                    f"jobs of partition {mine.name} are not preempted (PreemptMode={mine.preempt_mode or 'OFF'})",
                    f"set PreemptMode=REQUEUE (or CANCEL) on partition {mine.name} in slurm.conf, "
                    "and leave the global PreemptMode as it is",
                )
            )
        sharing = [p for p in facts.partitions.values() if p.name != mine.name and p.nodes & mine.nodes]
        equal = sorted(p.name for p in sharing if p.tier <= mine.tier and p.preempt_mode not in ("REQUEUE", "CANCEL"))
        if equal:
            found.append(
                Finding(
                    Level.ERROR,
                    f"partition {', '.join(equal)} shares nodes with {mine.name} and does not go before it "
                    f"(PriorityTier not above {mine.tier})",
                    f"give {mine.name} a lower PriorityTier than every partition on its nodes (0: below the default)",
                )
            )
        if not sharing:
            found.append(
                Finding(
                    Level.WARNING,
                    f"no other partition has nodes of {mine.name}: there is nothing to harvest from",
                    "list the main partition's nodes in it",
                )
            )
    if mine.max_time_s is not None and mine.max_time_s < 120:
        found.append(
            Finding(
                Level.ERROR,
                f"MaxTime of {mine.name} is {mine.max_time_s:g} s: no pilot can train in that",
                "set MaxTime of at least 30 minutes",
            )
        )
    if mine.grace_s > 60:
        found.append(
            Finding(
                Level.WARNING,
                f"GraceTime of {mine.name} is {mine.grace_s:g} s",
                "pilots leave within seconds; 10 to 30 s suffice, and bound what a stuck one costs",
            )
        )
    return tuple(found)


def _how_to_preempt(facts: SiteFacts, harvest: str) -> str:
    """What turns preemption on for the harvest partition alone: the global PreemptMode counts for every partition
    that has none of its own (slurm.conf(5))."""
    by_mode: dict[str, list[str]] = {}
    for partition in facts.main_partitions(harvest):
        mode = "GANG" if "GANG" in partition.preempt_mode.split(",") else "OFF"
        by_mode.setdefault(mode, []).append(partition.name)
    own = "".join(f", PreemptMode={mode} on {' and '.join(names)}" for mode, names in sorted(by_mode.items()))
    gang = ",GANG" if "GANG" in facts.preempt_mode.split(",") else ""
    return (
        f"in one edit of slurm.conf set PreemptType=preempt/partition_prio, PreemptMode=REQUEUE{gang}{own} (without "
        "that main jobs of a higher PriorityTier preempt others), and only then run `scontrol reconfigure`"
    )


def _federation(answer: str) -> str:
    """The name in `scontrol show federation`; empty where the cluster is in none."""
    for line in answer.splitlines():
        key, colon, name = line.partition(":")
        if colon and key.strip() == "Federation":
            return name.strip()
    return ""


def _is_set(config: Mapping[str, str], *names: str) -> bool:
    # 23.11 and later number them: Prolog[0].
    return any(config.get(name) or config.get(f"{name}[0]") for name in names)


def _minutes(value: str) -> float:
    return 365 * 86400.0 if value.upper() in ("UNLIMITED", "INFINITE") else scalars.number(value) * 60.0
