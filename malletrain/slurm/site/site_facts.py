"""What a site's Slurm is configured to do, as far as pilots must know, as plain values; and reading it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.slurm.command import Commands
from malletrain.slurm.formats import hostlist, scalars, text
from malletrain.wire.munge import user_name

#: Limits of a QOS that are read: how many jobs may run, or be there, at a time,
COUNTS = ("GrpJobs", "GrpSubmit", "MaxJobsPU", "MaxSubmitJobsPU", "MaxJobsPA", "MaxSubmitJobsPA")
#: how much jobs may have at most: of all, a job's, a user's, an account's, on one node,
MOST = ("GrpTRES", "MaxTRES", "MaxTRESPU", "MaxTRESPA", "MaxTRESPerNode")
#: and how much of it times a job's limit in minutes: a job's, and of all that run.
MINUTES = ("MaxTRESMins", "GrpTRESRunMins")
LIMITS = (*COUNTS, "MaxWall", *MOST, "MinTRES", *MINUTES)

#: What is asked of `sacctmgr -n -P show qos`.
_QOS_FORMAT = "format=name,preempt,preemptmode,preemptexempttime,flags," + ",".join(LIMITS)
#: slurmdbd may be away, and slurmctld goes on without it (seconds).
_PATIENCE_S = 3.0

_ASKED = re.compile(r"Configuration data as of (\S+)")
_SOCKET = re.compile(r"socket=([^,\s]+)")

#: What PrivateData hides from all but root, SlurmUser and Slurm's operators, and what comes of that.
_HARM = {
    "jobs": ("the main queue", "pilots cannot leave before Slurm preempts them"),
    "nodes": ("the nodes", "nothing can be harvested"),
    "partitions": ("the partitions", "nothing can be harvested"),
    "reservations": ("reservations", "pilots are started into them, and stay in their way"),
}


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


OK, WARNING, ERROR = Level.OK, Level.WARNING, Level.ERROR


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check of the site found, and the remedy (empty when there is nothing to do)."""

    level: Level
    what: str
    remedy: str = ""

    @staticmethod
    def ok(what: str) -> Finding:
        return Finding(OK, what)

    @staticmethod
    def warning(what: str, remedy: str) -> Finding:
        return Finding(WARNING, what, remedy)

    @staticmethod
    def error(what: str, remedy: str) -> Finding:
        return Finding(ERROR, what, remedy)


def findings(table: Iterable[tuple[object, Level, str, str]]) -> Iterator[Finding]:
    """The findings of those rows that hold: (whether it holds, how bad it is, what is found, what to do)."""
    return (Finding(level, what, remedy) for holds, level, what, remedy in table if holds)


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
    words: Mapping[str, str] = field(default_factory=dict)  #: all of them, as `scontrol show partition` prints them

    def allowed(self, what: str) -> str:
        """The list of `Accounts` or `Qos` that may run here; "" for all."""
        listed = self.words.get(f"Allow{what}", self.words.get(f"Allow{what.upper()}", "ALL"))
        return "" if listed == "ALL" else listed

    def admits(self, what: str, name: str) -> bool:
        """Whether jobs of this account or QOS may run here: beside a list of those that may, others do not count."""
        allowed, denied = self.allowed(what), self.words.get(f"Deny{what}", "")
        return (name.lower() in (allowed or denied).lower().split(",")) == bool(allowed)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node: what of it jobs may have, whether it is one of a cloud, and its Weight."""

    name: str
    cpus: int
    sockets: int
    memory_mib: int
    cloud: bool = False
    weight: int = 1


@dataclass(frozen=True, slots=True)
class QosFacts:
    """One QOS (sacctmgr(1)). "" and None stand for the cluster's own value; `limits` are by key and TRES: `MaxWall`,
    `MaxTRES=node`."""

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
    federation: str = ""  #: the name of the one that the cluster is in
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

    @property
    def hidden(self) -> list[str]:
        """Which of the records that the daemon needs PrivateData hides from ordinary users."""
        return [word for word in _HARM if self.private_data & {word, "all"}]

    def main_partitions(self, harvest: str) -> tuple[PartitionFacts, ...]:
        """Every partition but the harvest one, by name."""
        return tuple(self.partitions[name] for name in sorted(self.partitions) if name != harvest)

    def knowing(self, before: SiteFacts) -> SiteFacts:
        """These facts, with those of `before` that slurmdbd did not tell this time."""
        qos = before.qos if self.qos is None else self.qos
        return replace(self, qos=qos, sees_all=before.sees_all if self.sees_all is None else self.sees_all)

    def qos_of_pilots(self, partition: str, name: str) -> tuple[QosFacts, ...]:
        """The QOS that count for jobs of QOS `name` in the partition, the first that sets a limit for it: the
        partition's own, unless the job's has OverPartQOS (sacctmgr(1))."""
        known = {qos.name.lower(): qos for qos in (self.qos or {}).values()}
        own = known.get(name.lower())
        there = self.partitions.get(partition)
        of_partition = None if there is None else known.get(there.words.get("QoS", "").lower())
        order = (own, of_partition) if own is not None and "OverPartQOS" in own.flags else (of_partition, own)
        return tuple(qos for qos in order if qos is not None)

    def of_partition(self, name: str) -> tuple[NodeFacts, ...]:
        """The partition's nodes, as far as their sizes are known."""
        there = self.partitions.get(name)
        return tuple(node for node in self.nodes if there is not None and node.name in there.nodes)

    def enforces(self, what: str) -> bool:
        """Whether Slurm keeps to `associations`, `limits`, ... of accounting (slurm.conf(5))."""
        return what in self.words.get("AccountingStorageEnforce", "").split(",")


class RecordsHidden(ClusterUnavailable):
    """Slurm shows this user no nodes or partitions: `findings` say which, each with its remedy."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("; ".join(f"{finding.what}; {finding.remedy}" for finding in findings))
        self.findings = findings


def read(commands: Commands) -> SiteFacts:
    """Ask for the configuration, the partitions, the nodes and, with accounting, the QOS. Raises `RecordsHidden`:
    PrivateData hides partitions or nodes from this user; `ClusterUnavailable`: no answer, or one that cannot be read.
    """
    config = commands.ask(["scontrol", "show", "config"])
    try:
        facts = parse(config, "")
        if facts.hidden:
            me = user_name(os.getuid())
            facts = replace(facts, sees_all=sees_all(commands, facts, me))
            if facts.sees_all is False and {"nodes", "partitions"} & set(facts.hidden):
                raise RecordsHidden(tuple(check_sight(facts, me)))
        partitions = _partitions(commands.ask(["scontrol", "-a", "-o", "show", "partition"]))
        nodes = parse_nodes(commands.ask(["scontrol", "-a", "-o", "show", "node"]))
        facts = replace(facts, partitions=partitions, nodes=nodes)
        if facts.accounting:  # federations live in slurmdbd
            facts = replace(facts, federation=_federation(commands.ask(["scontrol", "show", "federation"])))
            with suppress(ClusterUnavailable):
                every = commands.ask(["sacctmgr", "-n", "-P", "show", "qos", _QOS_FORMAT], _PATIENCE_S)
                facts = replace(facts, qos=parse_qos(every))
        return facts
    except InvalidInput as error:
        raise ClusterUnavailable(f"scontrol: {error}") from error


def sees_all(commands: Commands, facts: SiteFacts, user: str) -> bool | None:
    """Whether nothing is hidden from `user`; None where slurmdbd does not say."""
    if user in (facts.slurm_user, "root"):
        return True
    if not facts.accounting:
        return False
    try:
        return standing(commands, user, _PATIENCE_S)[0] in ("Administrator", "Operator")
    except ClusterUnavailable:
        return None


def standing(commands: Commands, user: str, timeout_s: float | None = None) -> tuple[str, list[str]]:
    """The user's AdminLevel, and the accounts that it coordinates. Raises `ClusterUnavailable`: sacctmgr does not
    answer."""
    of = ["user", user, "withcoord", "format=user,adminlevel,coordinators"]
    answer = commands.ask(["sacctmgr", "-n", "-P", "show", *of], timeout_s)
    fields = answer.strip().split("|")
    return (fields[1].strip(), fields[2].split(",")) if len(fields) > 2 else ("", [])


def check_sight(facts: SiteFacts, user: str = "") -> Iterator[Finding]:
    """What PrivateData hides from the daemon's user, whose name is `user` where it is known."""
    if facts.sees_all:
        return
    who = (user or "the daemon's user") + ("" if facts.sees_all is False else ", unless that is an operator")
    for word in facts.hidden:
        what, harm = _HARM[word]
        yield Finding(
            WARNING if facts.sees_all is None else ERROR,
            f"PrivateData={word} hides {what} from {who}: {harm}",
            f"take {word} out of PrivateData, or `sacctmgr modify user {user or 'NAME'} set AdminLevel=Operator`",
        )


def parse_qos(answer: str) -> Mapping[str, QosFacts]:
    """The rows of `sacctmgr -n -P show qos format=name,preempt,preemptmode,preemptexempttime,flags,` and LIMITS."""
    found = {}
    for line in answer.splitlines():
        name, preempts, mode, exempt, flags, *limits = [*line.strip().split("|"), "", "", "", ""]
        own = "" if mode.lower() in ("cluster", "off") else mode
        exempt_s = seconds(exempt) if exempt else None
        found[name] = QosFacts(name, _listed(preempts), own, exempt_s, _listed(flags), parse_limits(limits))
    return found


def parse_limits(fields: Sequence[str], keys: Sequence[str] = LIMITS) -> Mapping[str, str]:
    """The limits that are set, of the fields of these keys that sacctmgr printed: `MaxWall`, and `MaxTRES=node` for
    what is printed as `node=4,cpu=64`."""
    found = {}
    for key, printed in zip(keys, fields, strict=False):
        for part in filter(None, printed.split(",")):
            tres, equals, value = part.rpartition("=")
            found[f"{key}={tres}" if equals else key] = value
    return found


def parse_nodes(answer: str) -> tuple[NodeFacts, ...]:
    """The nodes in `scontrol show node -o`. Raises `InvalidInput`: text that is no node."""
    return tuple(
        NodeFacts(
            text.word(record, "NodeName"),
            scalars.number(text.word(record, "CPUEfctv") or text.word(record, "CPUTot")),
            scalars.number(text.word(record, "Sockets"), 1),
            scalars.number(text.word(record, "RealMemory")) - scalars.number(text.word(record, "MemSpecLimit")),
            "CLOUD" in text.word(record, "State").split("+"),
            scalars.number(text.word(record, "Weight"), 1),
        )
        for record in text.records(answer, "NodeName")
    )


def parse(config_text: str, partitions_text: str) -> SiteFacts:
    """The facts in `scontrol show config` and `scontrol -o show partition`. Raises `InvalidInput`: the answer names
    no version or cluster."""
    config = text.config(config_text)
    if not config.get("SLURM_VERSION") or not config.get("ClusterName"):
        raise InvalidInput("scontrol show config", "no SLURM_VERSION or ClusterName in the answer")
    scheduler = parameters(config.get("SchedulerParameters", ""))
    asked = _ASKED.match(config_text)
    socket = _SOCKET.search(config.get("AuthInfo", ""))
    return SiteFacts(
        version=config["SLURM_VERSION"],
        cluster=config["ClusterName"],
        kill_wait_s=scalars.number(config.get("KillWait", ""), 30),
        over_time_limit_s=_minutes(config.get("OverTimeLimit", "")),
        # Defaults as in slurm.conf(5), SchedulerParameters.
        bf_interval_s=scalars.number(scheduler.get("bf_interval", ""), 30),
        bf_max_job_test=scalars.number(scheduler.get("bf_max_job_test", ""), 500),
        min_job_age_s=scalars.number(config.get("MinJobAge", ""), 300),
        preempt_type=config.get("PreemptType", ""),
        preempt_mode=config.get("PreemptMode", ""),
        accounting=config.get("AccountingStorageType", "").endswith("slurmdbd"),
        has_prolog=_is_set(config, "Prolog", "PrologSlurmctld"),
        has_epilog=_is_set(config, "Epilog", "EpilogSlurmctld"),
        private_data=_listed(config.get("PrivateData", "")) - {"none"},
        asked_at=scalars.moment(asked[1]) if asked else None,
        slurm_user=config.get("SlurmUser", "slurm").partition("(")[0],
        munge_socket=socket[1] if socket else "",
        partitions=_partitions(partitions_text),
        words=config,
    )


def _partitions(answer: str) -> Mapping[str, PartitionFacts]:
    return {name: _partition(name, words) for name, words in text.partitions(answer).items()}


def _partition(name: str, words: Mapping[str, str]) -> PartitionFacts:
    grace = words.get("GraceTime", "")
    return PartitionFacts(
        name=name,
        tier=scalars.number(words.get("PriorityTier", ""), 1),
        preempt_mode=words.get("PreemptMode", ""),
        grace_s=(scalars.duration(grace) or 0.0) if ":" in grace else scalars.number(grace),
        max_time_s=scalars.duration(words.get("MaxTime", "UNLIMITED")),
        nodes=frozenset(hostlist.expand(words.get("Nodes", ""), f"partition {name}")),
        state=words.get("State", ""),
        words=words,
    )


def _federation(answer: str) -> str:
    """The name in `scontrol show federation`; empty where the cluster is in none."""
    found = re.search(r"^\s*Federation\s*:(.*)$", answer, re.MULTILINE)
    return found[1].strip() if found else ""


def parameters(value: str) -> dict[str, str]:
    """A value of slurm.conf(5) that is a list itself, such as SchedulerParameters: `bf_continue,bf_interval=30`. The
    keys are in lower case: Slurm takes either."""
    pairs = (part.strip().partition("=") for part in value.split(",") if part.strip())
    return {key.lower(): value for key, _, value in pairs}


def seconds(value: str) -> float:
    """A duration that Slurm prints, such as 00:10:00; 0 where it prints none or what is no duration."""
    try:
        return scalars.duration(value) or 0.0
    except InvalidInput:
        return 0.0


def _listed(names: str) -> frozenset[str]:
    return frozenset(names.replace(" ", "").split(",")) - {""}


def _is_set(config: Mapping[str, str], *names: str) -> bool:
    # 23.11 and later number them: Prolog[0].
    return any(config.get(name) or config.get(f"{name}[0]") for name in names)


def _minutes(value: str) -> float:
    return 365 * 86400.0 if value.upper() in ("UNLIMITED", "INFINITE") else scalars.number(value) * 60.0
