"""The text of slurm.conf and its companions, from a frozen LabConfig, and changes to it. Pure: no file, no process.

Keys are those of slurm.conf(5), gres.conf(5) and cgroup.conf(5).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from scripts.lab.errors import UsageError
from scripts.lab.layout import Layout

Profile = Literal["fast", "site"]
PROFILES: tuple[Profile, ...] = ("fast", "site")
RELEASES = ("bookworm", "trixie", "forky")

# Never write defer_batch=0 or the like here: Slurm looks for the word "defer" and then defers every start.
SCHEDULER_PARAMETERS: dict[Profile, str] = {
    # Best case, for tests: the scheduler looks at once, backfill looks every second, at every job.
    "fast": (
        "sched_interval=2,sched_min_interval=0,batch_sched_delay=0,bf_interval=1,bf_resolution=1,bf_window=2880,"
        "bf_continue,bf_yield_interval=1000000,bf_max_job_test=1000,default_queue_depth=1000"
    ),
    # What large sites run (and Slurm's own defaults where it has one): figures to be believed come from here.
    "site": (
        "sched_interval=60,bf_interval=30,bf_resolution=60,bf_window=2880,bf_continue,"
        "bf_max_job_test=100,default_queue_depth=100"
    ),
}
KILL_WAIT_S: dict[Profile, int] = {"fast": 5, "site": 30}
PROLOG_S: dict[Profile, float] = {"fast": 0, "site": 10}
EPILOG_S: dict[Profile, float] = {"fast": 0, "site": 10}

#: What every lab has.
_ALWAYS = """
AuthType=auth/munge CredType=cred/munge SlurmctldDebug=info SlurmdDebug=info ProctrackType=proctrack/linuxproc
TaskPlugin=task/none JobAcctGatherType=jobacct_gather/none SwitchType=switch/none MpiDefault=none ReturnToService=2
SlurmdParameters=config_overrides SelectType=select/cons_tres SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill PriorityType=priority/multifactor PriorityWeightPartition=1000 CompleteWait=0
MinJobAge=300 InactiveLimit=0 SlurmctldTimeout=30 MessageTimeout=10 BatchStartTimeout=20 MaxJobCount=100000
MailProg=/bin/true JobCompType=jobcomp/filetxt GresTypes=gpu
"""

_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_GLOBAL = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=(.*)\Z")
_REPEATED = ("nodename", "partitionname", "downnodes", "nodeset", "include")


@dataclass(frozen=True)
class NodeAddresses:
    """A network in which each node has an address of its own (`scripts.lab.node_network` makes one).

    `controller` is the address at which nodes reach slurmctld; `nodes` theirs, and `namespaces` the paths of the
    network namespaces that their daemons run in, each in the order of the nodes.
    """

    controller: str
    nodes: tuple[str, ...]
    namespaces: tuple[str, ...]


@dataclass(frozen=True)
class LabConfig:
    """One lab: how many nodes, how its scheduler is set, what it has beside Slurm itself.

    `nodes` nodes of `cpus` CPUs, `memory_mb` MiB and `gpus` pretended GPUs each. With `controller_only` they are
    cloud nodes that never start, and slurmctld runs alone: jobs are placed, and stay in CONFIGURING. `grace_s`
    is the harvest partition's GraceTime and `preempt_mode` its PreemptMode. `main_tiers` makes a main partition
    for each PriorityTier, all over the same nodes and without a PreemptMode of their own: `batch`, then `batch-
    TIER`. `harvest` False is a site before MalleTrain: no harvest partition, account or QOS, and no preemption.
    `prolog_s` and `epilog_s` (seconds that each prolog and epilog really sleeps) default to the profile's.
    `release` None is the Slurm installed on this machine. `users` makes plain test users whose jobs the lab
    runs; `accounting` adds MariaDB and slurmdbd. `settings` replaces or adds slurm.conf lines by key ("KEY+"
    appends to a comma-separated value); `node_attributes` adds attributes ("Features=x Weight=9") to a node by
    index; `lines` and `files` add what has no option here: partitions, topology.conf, ... `addresses`, for root,
    gives each node's daemon a network namespace; without them all share the loopback interface. Raises UsageError
    on values that no lab can have.
    """

    nodes: int = 8
    controller_only: bool = False
    profile: Profile = "fast"
    release: str | None = None
    accounting: bool = False
    users: bool = False
    grace_s: int = 10
    preempt_mode: Literal["REQUEUE", "CANCEL"] = "REQUEUE"
    main_tiers: tuple[int, ...] = ()
    harvest: bool = True
    gpus: int = 0
    cpus: int = 16
    memory_mb: int = 64000
    prolog_s: float | None = None
    epilog_s: float | None = None
    settings: tuple[tuple[str, str], ...] = ()
    node_attributes: tuple[tuple[int, str], ...] = ()
    lines: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = field(default=())
    addresses: NodeAddresses | None = None

    def __post_init__(self) -> None:
        def need(condition: bool, message: str) -> None:
            if not condition:
                raise UsageError(message)

        most = 60000 if self.controller_only else 4000
        need(1 <= self.nodes <= most, f"nodes: {self.nodes}: must be 1 to {most}")
        for key, value in self.settings:
            need(bool(_KEY.fullmatch(key.removesuffix("+"))), f"set: {key!r}: not a slurm.conf key")
            need("\n" not in value, f"set: {key}: the value must be one line")
            need(key.lower() not in _REPEATED, f"set: {key}: may stand on several lines: use LabConfig.lines")
        for name, _ in self.files:
            need(bool(re.fullmatch(r"[a-z_]+\.conf", name)), f"files: {name!r}: must be the name of a .conf file")
        if (given := self.addresses) is not None:
            need(not self.controller_only, "addresses: nodes without daemons need none")
            sizes = {len(given.nodes), len(given.namespaces)}
            need(sizes == {self.nodes}, f"addresses: must be those of {self.nodes} nodes")

    @property
    def node_names(self) -> tuple[str, ...]:
        """n000, n001, ...: as many digits as needed, at least three."""
        width = max(3, len(str(self.nodes - 1)))
        return tuple(f"n{i:0{width}d}" for i in range(self.nodes))

    @property
    def port_count(self) -> int:
        """slurmctld, slurmdbd and one slurmd a node."""
        return 3 if self.controller_only else 2 + self.nodes

    @property
    def daemon_nodes(self) -> tuple[str, ...]:
        """The nodes that have a slurmd."""
        return () if self.controller_only else self.node_names

    @property
    def idle_state(self) -> str:
        """What `sinfo -o %T` says of every node once the lab is up; ~ is powered down."""
        return "idle~" if self.controller_only else "idle"

    @property
    def prolog_seconds(self) -> float:
        return PROLOG_S[self.profile] if self.prolog_s is None else self.prolog_s

    @property
    def epilog_seconds(self) -> float:
        return EPILOG_S[self.profile] if self.epilog_s is None else self.epilog_s


@dataclass(frozen=True)
class Host:
    """What slurm.conf must say about this machine: its short name, who runs the daemons, where the plugins are.

    `loopback`: the name means a loopback address, as Debian's installer sets it.
    """

    name: str
    user: str
    plugin_directory: Path | None = None
    loopback: bool = False


def slurm_conf(config: LabConfig, layout: Layout, ports: tuple[int, ...], host: Host) -> str:
    """slurm.conf of a lab whose daemons listen on `ports`: slurmctld, slurmdbd, then one for each node."""
    d = layout.root
    pairs: list[tuple[str, str]] = [
        ("ClusterName", cluster_name(layout)),
        ("SlurmctldHost", f"{host.name}({config.addresses.controller if config.addresses else '127.0.0.1'})"),
        ("SlurmUser", host.user),
        ("SlurmdUser", host.user),
        ("SlurmctldPort", str(ports[0])),
        ("SlurmdPort", str(ports[2])),
        ("AuthInfo", f"socket={layout.munge_socket}"),
        ("StateSaveLocation", f"{d}/state"),
        ("SlurmdSpoolDir", f"{layout.spool}/%n"),
        ("TmpFS", f"{d}/tmp/%n"),
        ("SlurmctldPidFile", f"{layout.run}/slurmctld.pid"),
        ("SlurmdPidFile", f"{layout.run}/slurmd.%n.pid"),
        ("SlurmctldLogFile", f"{layout.log}/slurmctld.log"),
        ("SlurmdLogFile", f"{layout.log}/slurmd.%n.log"),
        ("SchedulerParameters", SCHEDULER_PARAMETERS[config.profile]),
        ("KillWait", str(KILL_WAIT_S[config.profile])),
        ("SlurmdTimeout", "0" if config.controller_only else "30"),
        ("JobCompLoc", f"{layout.log}/jobcomp.txt"),
        *(word.partition("=")[::2] for word in _ALWAYS.split()),
    ]
    if config.harvest:
        pairs += [("PreemptType", "preempt/partition_prio"), ("PreemptMode", "REQUEUE")]
    if host.loopback and config.addresses is None:
        # Nothing outside can even connect. Daemons bind what the machine's name means, so elsewhere they would bind
        # an address that the others do not use; there they listen on all, and MUNGE alone keeps strangers out.
        pairs.append(("CommunicationParameters", "NoCtldInAddrAny,NoInAddrAny"))
    if host.plugin_directory is not None:
        pairs.append(("PluginDir", str(host.plugin_directory)))
    if config.controller_only:
        # Without PrivateData=cloud powered-down cloud nodes are not shown; ResumeTimeout has 16 bits.
        pairs += [("PrivateData", "cloud"), ("SuspendProgram", "/bin/true"), ("ResumeProgram", "/bin/true")]
        pairs += [("SuspendTime", "86400"), ("SuspendTimeout", "1"), ("ResumeTimeout", "60000")]
    if config.prolog_seconds:
        # Alloc: the prolog runs on every node of a job at once, before its first step, as at most sites.
        pairs += [("Prolog", f"{d}/scripts/prolog"), ("PrologFlags", "Alloc")]
    if config.epilog_seconds:
        pairs.append(("Epilog", f"{d}/scripts/epilog"))
    if config.accounting:
        pairs += [
            ("AccountingStorageType", "accounting_storage/slurmdbd"),
            ("AccountingStorageHost", "127.0.0.1"),
            ("AccountingStoragePort", str(ports[1])),
            ("AccountingStoragePass", str(layout.munge_socket)),
            ("AccountingStorageEnforce", "associations,limits,qos"),
            ("AccountingStorageTRES", "gres/gpu"),
            ("PriorityWeightFairshare", "100"),
        ]
    text = "\n".join(f"{key}={value}" for key, value in pairs)
    lines = [changed(text, Change(settings=dict(config.settings))).removesuffix("\n")]
    lines += _node_lines(config, ports[2:])
    lines += _main_partitions(config.main_tiers)
    if config.harvest:
        lines.append(
            "PartitionName=harvest Nodes=ALL MaxTime=01:00:00 State=UP "
            f"PriorityTier=1 PriorityJobFactor=1 PreemptMode={config.preempt_mode} GraceTime={config.grace_s}"
        )
    return "\n".join([*lines, *config.lines]) + "\n"


def cluster_name(layout: Layout) -> str:
    """A ClusterName from the directory's name: slurmdbd takes lower case only, Slurm at most 40 characters."""
    return "lab_" + re.sub(r"[^a-z0-9]+", "_", layout.root.name.lower()).strip("_")[:36]


def gres_conf(config: LabConfig, layout: Layout, device_nodes: bool) -> str:
    """gres.conf with `config.gpus` pretended GPUs a node.

    With `device_nodes` (root made clones of /dev/null in the lab) each GPU has its own device; else terminals stand
    for them, which every machine has. (Count= with File=/dev/null is fatal.)
    """
    last = config.gpus - 1
    if device_nodes:
        return f"AutoDetect=off\nName=gpu Flags=nvidia_gpu_env File={layout.root}/devices/gpu[0-{last}]\n"
    return f"AutoDetect=off\nName=gpu Flags=nvidia_gpu_env File=/dev/tty[0-{last}]\n"


def cgroup_conf() -> str:
    """cgroup.conf that asks nothing of the kernel: no lab plugin uses cgroups, but slurmd reads the file at start."""
    return "CgroupPlugin=cgroup/v1\n"


def sleep_script(seconds: float) -> str:
    """A prolog or epilog that takes `seconds` seconds."""
    return f"#!/bin/sh\nexec sleep {seconds:g}\n"


def _main_partitions(tiers: tuple[int, ...]) -> list[str]:
    default = "PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
    if not tiers:
        return [f"{default} PriorityTier=100 PriorityJobFactor=100 PreemptMode=OFF"]
    others = [
        f"PartitionName=batch-{tier} Nodes=ALL MaxTime=INFINITE State=UP PriorityTier={tier} PriorityJobFactor={tier}"
        for tier in tiers[1:]
    ]
    return [f"{default} PriorityTier={tiers[0]} PriorityJobFactor={tiers[0]}", *others]


def _node_lines(config: LabConfig, ports: tuple[int, ...]) -> list[str]:
    extra = dict(config.node_attributes)
    gres = f" Gres=gpu:{config.gpus}" if config.gpus else ""
    shape = (
        f"CPUs={config.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={config.cpus} ThreadsPerCore=1 "
        f"RealMemory={config.memory_mb}{gres}"
    )
    if config.controller_only and config.nodes > 1 and not extra:
        # One line, as sites write it: every command reads the whole file, and 10,000 lines cost it 1.8 s.
        first, last = config.node_names[0], config.node_names[-1]
        return [f"NodeName=n[{first[1:]}-{last[1:]}] {shape} State=CLOUD"]
    if config.controller_only:
        where = [""] * config.nodes
        state = "CLOUD"
    else:
        own = config.addresses.nodes if config.addresses else ("127.0.0.1",) * config.nodes
        where = [
            f" NodeHostname=localhost NodeAddr={address} Port={port}"
            for address, port in zip(own, ports[: config.nodes], strict=True)
        ]
        state = "UNKNOWN"
    return [
        f"NodeName={name}{where[index]} {shape} State={state}{' ' + extra[index] if index in extra else ''}"
        for index, name in enumerate(config.node_names)
    ]


# --- Changes to a slurm.conf that is in use -----------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """What another configuration has: read by `changed`.

    `settings` replaces or adds global lines by key; "KEY+" appends to a comma-separated value; None removes the key.
    `partitions` and `nodes` replace or add attributes of the lines of that name. `lines` are appended. `files` are
    companions (topology.conf, job_submit.lua, ...): name -> text.
    """

    settings: Mapping[str, str | None] = field(default_factory=dict)
    partitions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def changed(text: str, change: Change) -> str:
    """`text` of a slurm.conf with `change` made to it. UsageError where it names a partition or node that is not
    there."""
    waiting = {key.removesuffix("+").lower(): (key, value) for key, value in change.settings.items()}
    missing = {("PartitionName", name) for name in change.partitions} | {("NodeName", name) for name in change.nodes}
    lines: list[str] = []
    for line in text.removesuffix("\n").split("\n"):  # (a value may have what splitlines() splits at)
        head, name = line.partition(" ")[0].partition("=")[::2]
        if (head, name) in missing:
            wanted = change.partitions if head == "PartitionName" else change.nodes
            missing.discard((head, name))
            lines.append(_with_attributes(line, wanted[name]))
            continue
        found = _GLOBAL.match(line)
        if found is None or found[1].lower() not in waiting:
            lines.append(line)
            continue
        key, value = waiting.pop(found[1].lower())
        if value is not None:
            appended = f"{found[2]},{value}" if key.endswith("+") and found[2] else value
            lines.append(f"{found[1]}={appended}")
    if missing:
        kind, name = min(missing)
        raise UsageError(f"{kind}={name}: no such line in slurm.conf")
    lines += [f"{key.removesuffix('+')}={value}" for key, value in waiting.values() if value is not None]
    return "\n".join([*lines, *change.lines]) + "\n"


def _with_attributes(line: str, wanted: Mapping[str, str]) -> str:
    left = {key.lower(): f"{key}={value}" for key, value in wanted.items()}
    words = [left.pop(word.partition("=")[0].lower(), word) for word in line.split()]
    return " ".join([*words, *left.values()])
