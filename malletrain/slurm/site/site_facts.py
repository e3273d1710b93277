"""What a site's Slurm is configured to do, as far as pilots must know. Read once, and at each reload."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.slurm.command import Commands
from malletrain.slurm.formats import hostlist, scalars, text
from malletrain.slurm.site import hidden_records, qos_limits
from malletrain.slurm.site.hidden_records import RecordsHidden, check_sight
from malletrain.slurm.site.pilot_gates import check_gates
from malletrain.slurm.site.pilots_preempted import check_preemption, seconds, sharing
from malletrain.slurm.site.qos_limits import LIMITS
from malletrain.slurm.site.site_config import (
    Finding,
    Harvest,
    Level,
    NodeFacts,
    PartitionFacts,
    QosFacts,
    SiteFacts,
    parameters,
)

__all__ = [
    "Finding", "Harvest", "Level", "PartitionFacts", "SiteFacts", "check_harvest_partition", "parse", "parse_nodes",
    "parse_qos", "read",
]  # fmt: skip

#: What is asked of `sacctmgr -n -P show qos`.
_QOS_FORMAT = "format=name,preempt,preemptmode,preemptexempttime,flags," + ",".join(LIMITS)
#: slurmdbd may be away, and slurmctld goes on without it (seconds).
_QOS_PATIENCE_S = 3.0

_ASKED = re.compile(r"Configuration data as of (\S+)")
_SOCKET = re.compile(r"socket=([^,\s]+)")


def read(commands: Commands) -> SiteFacts:
    """Ask for the configuration, the partitions, the nodes and, with accounting, the QOS.

    Raises:
        RecordsHidden: PrivateData hides partitions or nodes from this user.
        ClusterUnavailable: no answer, or one that cannot be read.
    """
    config = commands.ask(["scontrol", "show", "config"])
    try:
        facts = parse(config, "")
        if hidden := hidden_records.hidden(facts):
            me = hidden_records.user_name()
            facts = replace(facts, sees_all=hidden_records.sees_all(commands, facts, me))
            if facts.sees_all is False and {"nodes", "partitions"} & set(hidden):
                raise RecordsHidden(tuple(check_sight(facts, me)))
        partitions = _partitions(commands.ask(["scontrol", "-a", "-o", "show", "partition"]))
        nodes = parse_nodes(commands.ask(["scontrol", "-a", "-o", "show", "node"]))
        facts = replace(facts, partitions=partitions, nodes=nodes)
        if facts.accounting:  # federations live in slurmdbd
            federation = _federation(commands.ask(["scontrol", "show", "federation"]))
            facts = replace(facts, federation=federation, qos=_qos(commands))
        return facts
    except InvalidInput as error:
        raise ClusterUnavailable(f"scontrol: {error}") from error


def _qos(commands: Commands) -> Mapping[str, QosFacts] | None:
    try:
        return parse_qos(commands.ask(["sacctmgr", "-n", "-P", "show", "qos", _QOS_FORMAT], _QOS_PATIENCE_S))
    except ClusterUnavailable:
        return None


def parse_qos(answer: str) -> Mapping[str, QosFacts]:
    """The rows of `sacctmgr -n -P show qos format=name,preempt,preemptmode,preemptexempttime,flags,` and LIMITS."""
    found = {}
    for line in answer.splitlines():
        name, preempts, mode, exempt, flags, *limits = [*line.strip().split("|"), "", "", "", ""]
        own = "" if mode.lower() in ("cluster", "off") else mode
        exempt_s = seconds(exempt) if exempt else None
        found[name] = QosFacts(name, _listed(preempts), own, exempt_s, _listed(flags), qos_limits.parse(limits))
    return found


def _listed(names: str) -> frozenset[str]:
    return frozenset(names.replace(" ", "").split(",")) - {""}


def parse_nodes(answer: str) -> tuple[NodeFacts, ...]:
    """The nodes in `scontrol show node -o`.

    Raises:
        InvalidInput: text that is no node.
    """
    return tuple(
        NodeFacts(
            text.word(record, "NodeName"),
            scalars.number(text.word(record, "CPUEfctv") or text.word(record, "CPUTot")),
            scalars.number(text.word(record, "Sockets"), 1),
            scalars.number(text.word(record, "RealMemory")) - scalars.number(text.word(record, "MemSpecLimit")),
            "CLOUD" in text.word(record, "State").split("+"),
        )
        for record in text.records(answer, "NodeName")
    )


def parse(config_text: str, partitions_text: str) -> SiteFacts:
    """The facts in `scontrol show config` and `scontrol -o show partition`.

    Raises:
        InvalidInput: the answer names no version or cluster.
    """
    config = text.config(config_text)
    if not config.get("SLURM_VERSION") or not config.get("ClusterName"):
        raise InvalidInput("scontrol show config", "no SLURM_VERSION or ClusterName in the answer")
    scheduler = parameters(config.get("SchedulerParameters", ""))
    asked = _ASKED.match(config_text)
    socket = _SOCKET.search(config.get("AuthInfo", ""))
    over_time = _minutes(config.get("OverTimeLimit", ""))
    return SiteFacts(
        version=config["SLURM_VERSION"],
        cluster=config["ClusterName"],
        kill_wait_s=scalars.number(config.get("KillWait", ""), 30),
        over_time_limit_s=over_time,
        # Defaults as in slurm.conf(5), SchedulerParameters.
        bf_interval_s=scalars.number(scheduler.get("bf_interval", ""), 30),
        bf_max_job_test=scalars.number(scheduler.get("bf_max_job_test", ""), 500),
        max_job_count=scalars.number(config.get("MaxJobCount", ""), 10000),
        max_array_size=scalars.number(config.get("MaxArraySize", ""), 1001),
        min_job_age_s=scalars.number(config.get("MinJobAge", ""), 300),
        preempt_type=config.get("PreemptType", ""),
        preempt_mode=config.get("PreemptMode", ""),
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
        controller=parameters(config.get("SlurmctldParameters", "")),
        parameters=scheduler,
        partitions=_partitions(partitions_text),
        words=config,
    )


def _partitions(answer: str) -> Mapping[str, PartitionFacts]:
    return {name: _partition(name, words) for name, words in text.partitions(answer).items()}


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
        exclusive=words.get("OverSubscribe") == "EXCLUSIVE",
        over_time_limit_s=None if over == "NONE" else _minutes(over),
        allow_accounts=words.get("AllowAccounts", "ALL"),
        allow_qos=words.get("AllowQos", words.get("AllowQOS", "ALL")),
        words=words,
    )


def check_harvest_partition(facts: SiteFacts, harvest: Harvest) -> tuple[Finding, ...]:
    """Whether pilots can start in this partition, and give way to every other job: it exists, is up and open, Slurm
    preempts them for every partition that shares its nodes, and this user sees the queue. Findings of level `error`
    mean: start nothing."""
    return (*check_sight(facts), *_check_partition(facts, harvest))


def _check_partition(facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    mine = facts.partitions.get(harvest.partition)
    if mine is None:
        known = ", ".join(sorted(facts.partitions)) or "none"
        yield Finding(
            Level.ERROR,
            f"partition {harvest.partition} does not exist (there are: {known})",
            "add it to slurm.conf with a PriorityTier below all others, or name another in the configuration",
        )
        return
    if facts.federation:
        yield Finding(
            Level.ERROR,
            f"the cluster is in federation {facts.federation}: its jobs may go to other clusters",
            "federations are not supported; take the cluster out of it (sacctmgr modify federation)",
        )
    if not mine.nodes:
        yield Finding(Level.ERROR, f"partition {mine.name} has no nodes", "give it Nodes= in slurm.conf")
    if mine.state != "UP":
        yield Finding(
            Level.ERROR,
            f"partition {mine.name} is {mine.state or 'in no known state'}",
            f"scontrol update PartitionName={mine.name} State=UP",
        )
    yield from check_preemption(facts, harvest)
    yield from check_gates(facts, harvest)
    yield from qos_limits.check_qos_limits(facts, harvest)
    yield from _check_surroundings(facts, mine)


def _check_surroundings(facts: SiteFacts, mine: PartitionFacts) -> Iterator[Finding]:
    if not sharing(facts, mine):
        yield Finding(
            Level.WARNING,
            f"no other partition has nodes of {mine.name}: there is nothing to harvest from",
            "list the main partition's nodes in it",
        )
    if mine.max_time_s is not None and mine.max_time_s < 120:
        yield Finding(
            Level.ERROR,
            f"MaxTime of {mine.name} is {mine.max_time_s:g} s: no pilot can train in that",
            "set MaxTime of at least 30 minutes",
        )
    if mine.grace_s > 60:
        yield Finding(
            Level.WARNING,
            f"GraceTime of {mine.name} is {mine.grace_s:g} s",
            "pilots leave within seconds; 10 to 30 s suffice, and bound what a stuck one costs",
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
