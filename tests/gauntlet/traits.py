"""Traits of Slurm sites, each a change to a sound lab: what `malletrain doctor` says there, and what becomes of a
pilot. docs/reference/sites.md is made from this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from malletrain.slurm.site.site_facts import ERROR, OK, WARNING, Level
from scripts.lab import Change, LabConfig

#: A pilot begins, a main job takes its node from it without the daemon and with it.
HARVESTED = "began, was preempted, gave way"

# What `doctor --try` says where a pilot does not live so.
SUBMISSION_REFUSED = "sbatch refuses a pilot"
NOT_STARTED = "a pilot cannot be started"
NOT_BEGUN = "has not begun"
NOT_PREEMPTED = "a main job that wants the pilot's node has not begun"
SUSPENDED = "the pilot is suspended"
NOT_TRIED = "not tried"
NOT_PLAYED = ""  #: a pilot would leave the lab without nodes
MAIN_REFUSED = "sbatch refuses a main job"


@dataclass(frozen=True)
class NamedNodes(LabConfig):
    """A lab whose nodes have these names."""

    names: tuple[str, ...] = ()

    @property
    def node_names(self) -> tuple[str, ...]:
        return self.names


ACCOUNTED = LabConfig(nodes=4, users=True, accounting=True)
PLAIN = LabConfig(nodes=4, users=True)
_NAMES = ("frodo", "n9", "n10", "r1c2", "r1c10", "gpu-a100-01-ib", "c1.example.org", "x01", "x100")
NAMED = NamedNodes(nodes=len(_NAMES), users=True, names=_NAMES)


@dataclass(frozen=True)
class Trait:
    """What a site has, and what is expected there.

    `says` are words of the finding of `doctor` that a sound site does not have ("" for none), with its level and a
    part of its remedy; `tried`, of the last one of `doctor --try`, which `names` a setting that explains it.
    `refused`: the daemon does not start. `setup` are commands before the change, `then` after it, `undo` at the end
    (reservations and states of nodes need none); `{cluster}` is the cluster's name. `programs` come first in PATH,
    `{real}` is the program that each stands before. `pilot`: what the site's malletrain.toml adds to pilot.sbatch;
    `main`: options of `doctor --main`. `since`: the first of Slurm's releases that knows it; `lab`: on which it is
    played; `key`: slurm.key is needed (auth/slurm).
    """

    site: str
    change: Change = field(default_factory=Change)
    says: str = ""
    level: Level = OK
    remedy: str = ""
    tried: str = HARVESTED
    names: str = ""
    refused: bool = False
    restart: bool = False
    setup: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()
    programs: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    pilot: tuple[str, ...] = ()
    main: tuple[str, ...] = ()
    since: tuple[int, int] = (22, 5)
    lab: LabConfig = ACCOUNTED
    key: bool = False


def settings(**words: str) -> Change:
    """slurm.conf with these words; a name that ends in `_` is added to what stands there."""
    return Change(settings={f"{key[:-1]}+" if key.endswith("_") else key: value for key, value in words.items()})


def harvest(**words: str) -> Change:
    return Change(partitions={"harvest": words})


def main(**words: str) -> Change:
    return Change(partitions={"batch": words})


def both(*changes: Change) -> Change:
    """All of these at once."""
    return Change(
        settings={key: value for each in changes for key, value in each.settings.items()},
        partitions={key: value for each in changes for key, value in each.partitions.items()},
        nodes={key: value for each in changes for key, value in each.nodes.items()},
        lines=tuple(line for each in changes for line in each.lines),
        files={key: value for each in changes for key, value in each.files.items()},
    )


def job_submit(submit: str = "", modify: str = "") -> Change:
    """job_submit.lua with these bodies."""
    bodies = {"submit(job, partitions, uid)": submit, "modify(job, former, partitions, uid)": modify}
    text = "\n".join(f"function slurm_job_{head}\n{body}\nreturn slurm.SUCCESS\nend" for head, body in bodies.items())
    return Change(settings={"JobSubmitPlugins": "lua"}, files={"job_submit.lua": text + "\n"})


def cli_filter(body: str) -> Change:
    """cli_filter.lua with this body of what is done before a submission."""
    heads = {"setup_defaults(o, early)": "", "pre_submit(o, offset)": body, "post_submit(offset, job, step)": ""}
    text = "\n".join(f"function slurm_cli_{head}\n{body}\nreturn slurm.SUCCESS\nend" for head, body in heads.items())
    return Change(settings={"CliFilterPlugins": "lua"}, files={"cli_filter.lua": text + "\n"})


def sacctmgr(words: str) -> str:
    return f"sacctmgr -i {words}"


def wrapper(before: str = "", after: str = "", options: str = "") -> str:
    """A program that prints, and then is the one that it stands before."""
    return f'#!/bin/sh\n{before}\n{{real}} {options} "$@"\nstatus=$?\n{after}\nexit $status\n'


_QOS = "preempt/qos"
_BY_QOS = settings(PreemptType=_QOS, PreemptMode="REQUEUE")
_LISTED = sacctmgr("modify qos normal set preempt=harvest")
_NOT_LISTED = sacctmgr("modify qos normal set preempt=")
_SAVING = settings(SuspendProgram="/bin/true", ResumeProgram="/bin/true", SuspendTime="7200")
_OF_HARVEST = 'if job.partition == "harvest" then\n{}\nend'
_TREE = {"topology.conf": "SwitchName=leaf0 Nodes=n[000-001]\nSwitchName=leaf1 Nodes=n[002-003]\n"
         "SwitchName=top Switches=leaf[0-1]\n"}  # fmt: skip
_BLOCK = {"topology.conf": "BlockName=b0 Nodes=n[000-001]\nBlockName=b1 Nodes=n[002-003]\nBlockSizes=2\n"}

#: slurmctld of 24.11 and later does not start with a script that lacks one of these (burst_buffer.conf(5)).
_BURST_BUFFER = "\n".join(
    f"function slurm_bb_{name}() return slurm.SUCCESS, '' end"
    for name in (
        "job_process", "pools", "job_teardown", "setup", "data_in", "test_data_in", "real_size", "paths", "pre_run",
        "post_run", "data_out", "test_data_out", "get_status",
    )
)  # fmt: skip

#: Who is preempted, how and when.
PREEMPTION = {
    "partition_prio": Trait("PreemptType=preempt/partition_prio, PreemptMode=REQUEUE"),
    "cancel": Trait("PreemptMode=CANCEL on the harvest partition", harvest(PreemptMode="CANCEL")),
    "cancel_everywhere": Trait("PreemptMode=CANCEL, globally", settings(PreemptMode="CANCEL"), restart=True),
    "gang": Trait(
        "PreemptMode=REQUEUE,GANG with CR_Core",
        settings(PreemptMode="REQUEUE,GANG", SelectTypeParameters="CR_Core"),
        restart=True,
    ),
    "suspended": Trait(
        "PreemptMode=SUSPEND,GANG, also on the harvest partition",
        both(
            settings(PreemptMode="SUSPEND,GANG", SelectTypeParameters="CR_Core"),
            Change(
                partitions={
                    "harvest": {"PreemptMode": "SUSPEND", "OverSubscribe": "FORCE:1"},
                    "batch": {"OverSubscribe": "FORCE:1"},
                }
            ),
        ),
        "jobs of partition harvest are not preempted",
        ERROR,
        "PreemptMode=REQUEUE",
        SUSPENDED,
        "harvest: PreemptMode=SUSPEND",
        refused=True,
        restart=True,
    ),
    "mode_off": Trait(
        "PreemptMode=OFF on the harvest partition",
        harvest(PreemptMode="OFF"),
        "jobs of partition harvest are not preempted",
        ERROR,
        "PreemptMode=REQUEUE",
        NOT_PREEMPTED,
        "harvest: PreemptMode=OFF",
        refused=True,
    ),
    "no_preemption": Trait(
        "PreemptType=preempt/none",
        both(
            settings(PreemptType="preempt/none", PreemptMode="OFF"),
            harvest(PreemptMode="OFF", GraceTime="0"),
        ),
        "Slurm preempts nothing",
        ERROR,
        "PreemptType=preempt/partition_prio",
        NOT_PREEMPTED,
        "none, PreemptMode=OFF",
        refused=True,
        restart=True,
    ),
    "equal_tiers": Trait(
        "the same PriorityTier for main and harvest partitions",
        harvest(PriorityTier="100"),
        "does not go before it",
        ERROR,
        "lower PriorityTier",
        NOT_PREEMPTED,
        refused=True,
    ),
    "by_qos": Trait(
        "PreemptType=preempt/qos, every QOS preempts the harvest QOS",
        _BY_QOS,
        "every other QOS preempts harvest",
        restart=True,
        setup=(_LISTED,),
        undo=(_NOT_LISTED,),
    ),
    "by_qos_unlisted": Trait(
        "PreemptType=preempt/qos, the harvest QOS in no Preempt list",
        _BY_QOS,
        "normal does not preempt harvest",
        ERROR,
        "sacctmgr modify qos normal set preempt+=harvest",
        NOT_PREEMPTED,
        refused=True,
        restart=True,
    ),
    "by_qos_suspended": Trait(
        "PreemptType=preempt/qos with SUSPEND,GANG",
        settings(PreemptType=_QOS, PreemptMode="SUSPEND,GANG", SelectTypeParameters="CR_Core"),
        "preemption is by QOS, and frees no node of a pilot",
        ERROR,
        "sacctmgr modify qos harvest set PreemptMode=requeue",
        SUSPENDED,
        refused=True,
        restart=True,
        setup=(_LISTED,),
        undo=(_NOT_LISTED,),
    ),
    "by_qos_requeued": Trait(
        "preempt/qos with SUSPEND,GANG, PreemptMode=requeue on the harvest QOS",
        settings(PreemptType=_QOS, PreemptMode="SUSPEND,GANG", SelectTypeParameters="CR_Core"),
        "jobs share nodes in turns",
        WARNING,
        "GANG",
        restart=True,
        setup=(_LISTED, sacctmgr("modify qos harvest set PreemptMode=requeue")),
        undo=(_NOT_LISTED, sacctmgr("modify qos harvest set PreemptMode=cluster")),
    ),
    "exempt_time": Trait(
        "PreemptExemptTime=10 min in slurm.conf",
        settings(PreemptExemptTime="00:10:00"),
        "preempts no pilot in its first 600 s",
        ERROR,
        "PreemptExemptTime=0",
        NOT_PREEMPTED,
        "PreemptExemptTime=00:10:00",
        refused=True,
    ),
    "exempt_time_of_qos": Trait(
        "PreemptExemptTime=10 min of the harvest QOS",
        says="PreemptExemptTime of QOS harvest",
        level=ERROR,
        remedy="sacctmgr modify qos harvest set PreemptExemptTime=0",
        tried=NOT_PREEMPTED,
        refused=True,
        setup=(sacctmgr("modify qos harvest set PreemptExemptTime=00:10:00"),),
        undo=(sacctmgr("modify qos harvest set PreemptExemptTime=0"),),
    ),
    "min_exempt_priority": Trait(
        "PreemptParameters=min_exempt_priority=1",
        settings(PreemptParameters="min_exempt_priority=1"),
        "min_exempt_priority=1",
        ERROR,
        "take min_exempt_priority out",
        NOT_PREEMPTED,
        refused=True,
        since=(23, 11),
    ),
    "youngest_first": Trait(
        "preempt_youngest_first, preempt_strict_order and preempt_reorder_count in SchedulerParameters",
        settings(SchedulerParameters_="preempt_youngest_first,preempt_strict_order,preempt_reorder_count=5"),
    ),
    "no_grace": Trait("GraceTime=0", harvest(GraceTime="0")),
    "long_grace": Trait(
        "GraceTime=5 min",
        harvest(GraceTime="300"),
        "GraceTime of harvest is 300 s",
        WARNING,
        "10 to 30 s suffice",
    ),
    "long_kill_wait": Trait("KillWait=90", settings(KillWait="90"), "KillWait is 90 s", WARNING, "30 s"),
    "no_requeue": Trait("JobRequeue=0", settings(JobRequeue="0")),
    "other_main_preempted": Trait(
        "main partitions that preempt each other",
        Change(
            lines=(
                "PartitionName=debug Nodes=n[000-003] PriorityTier=200 DenyAccounts=harvest",
                "PartitionName=low Nodes=n[000-003] PriorityTier=50 DenyAccounts=harvest",
            )
        ),
        "main jobs preempt each other: jobs of low",
        ERROR,
        "PreemptMode=OFF",
    ),
}

#: What a job may have of a node, and who shares it.
SIZES = {
    "memory_by_core": Trait(
        "MaxMemPerCPU below a node's memory",
        settings(MaxMemPerCPU="2000"),
        "slurm.conf has MaxMemPerCPU=2000",
        ERROR,
        "MaxMemPerNode=64000",
        NOT_BEGUN,
        refused=True,
    ),
    "memory_of_partition": Trait(
        "MaxMemPerNode of the harvest partition below a node's memory",
        harvest(MaxMemPerNode="32000"),
        "partition harvest has MaxMemPerNode=32000",
        ERROR,
        "MaxMemPerNode=64000",
        NOT_STARTED,
        refused=True,
    ),
    "memory_overridden": Trait(
        "MaxMemPerCPU below a node's memory, MaxMemPerNode of the harvest partition above",
        both(settings(MaxMemPerCPU="2000"), harvest(MaxMemPerNode="64000")),
        main=("--mem=1000",),
    ),
    "default_memory": Trait("DefMemPerCPU=2000", settings(DefMemPerCPU="2000")),
    "memory_not_counted": Trait(
        "SelectTypeParameters=CR_Core", settings(SelectTypeParameters="CR_Core"), restart=True
    ),
    "cpus_counted": Trait(
        "SelectTypeParameters=CR_CPU_Memory", settings(SelectTypeParameters="CR_CPU_Memory"), restart=True
    ),
    "linear": Trait(
        "SelectType=select/linear",
        settings(SelectType="select/linear", SelectTypeParameters="CR_Memory"),
        restart=True,
    ),
    "memory_reserved": Trait(
        "MemSpecLimit and CoreSpecCount on nodes",
        Change(nodes={node: {"MemSpecLimit": "4000", "CoreSpecCount": "2"} for node in ("n000", "n001")}),
        restart=True,
    ),
    "cpus_of_node": Trait(
        "MaxCPUsPerNode of the harvest partition below a node's",
        harvest(MaxCPUsPerNode="8"),
        "partition harvest has MaxCPUsPerNode=8",
        ERROR,
        "MaxCPUsPerNode=UNLIMITED",
        NOT_BEGUN,
        refused=True,
    ),
    "oversubscribed": Trait("OverSubscribe=FORCE:4 on main partitions", main(OverSubscribe="FORCE:4")),
    "exclusive_user": Trait("ExclusiveUser=YES on main partitions", main(ExclusiveUser="YES")),
    "exclusive": Trait(
        "OverSubscribe=EXCLUSIVE on all partitions",
        both(Change(partitions={"batch": {"OverSubscribe": "EXCLUSIVE"}, "harvest": {"OverSubscribe": "EXCLUSIVE"}})),
    ),
    "shared_nodes": Trait(
        "a main job on a part of each node but one",
        setup=tuple(f"sbatch -p batch -w n00{node} -n 1 --mem=100 --time=9 --wrap=sleep\\ 600" for node in range(3)),
    ),
    "least_loaded": Trait("LLN=YES on main partitions", main(LLN="YES")),
    "weights": Trait(
        "nodes of several Weights",
        Change(nodes={"n000": {"Weight": "50"}}),
        "Weight 1 to 50",
        WARNING,
        "pool.keep_idle",
    ),
    "tree": Trait(
        "TopologyPlugin=topology/tree",
        Change(settings={"TopologyPlugin": "topology/tree"}, files=_TREE),
        "topology/tree",
        WARNING,
        "--switches=1",
        restart=True,
    ),
    "block": Trait(
        "TopologyPlugin=topology/block",
        Change(settings={"TopologyPlugin": "topology/block"}, files=_BLOCK),
        "topology/block",
        WARNING,
        "--switches=1",
        restart=True,
        since=(23, 11),
    ),
    "power_saving": Trait(
        "nodes powered down when idle",
        _SAVING,
        "4 nodes of harvest are of a cloud or powered down when idle",
        ERROR,
        "pool.include",
    ),
    "always_on": Trait("power saving that leaves nodes out", both(_SAVING, settings(SuspendExcNodes="n[000-003]"))),
    "power_down_on_idle": Trait(
        "PowerDownOnIdle=YES on the harvest partition",
        both(_SAVING, settings(SuspendExcNodes="n[000-003]"), harvest(PowerDownOnIdle="YES")),
        "partition harvest has PowerDownOnIdle=YES",
        ERROR,
        "PowerDownOnIdle=NO",
        NOT_PLAYED,
        since=(23, 2),
    ),
}

#: Who may submit where.
GATES = {
    "partition_down": Trait(
        "State=DOWN of the harvest partition",
        harvest(State="DOWN"),
        "partition harvest is DOWN",
        ERROR,
        "State=UP",
        NOT_BEGUN,
        refused=True,
    ),
    "partition_drained": Trait(
        "State=DRAIN of the harvest partition",
        harvest(State="DRAIN"),
        "partition harvest is DRAIN",
        ERROR,
        "State=UP",
        SUBMISSION_REFUSED,
        refused=True,
    ),
    "reservation_required": Trait(
        "ReqResv=YES", harvest(ReqResv="YES"), "ReqResv=YES", ERROR, "ReqResv=NO", SUBMISSION_REFUSED, refused=True
    ),
    "root_only": Trait(
        "RootOnly=YES",
        harvest(RootOnly="YES"),
        "RootOnly=YES",
        ERROR,
        "RootOnly=NO",
        SUBMISSION_REFUSED,
        refused=True,
    ),
    "least_nodes": Trait(
        "MinNodes=2", harvest(MinNodes="2"), "MinNodes=2", ERROR, "MinNodes=0", NOT_BEGUN, refused=True
    ),
    "short": Trait(
        "MaxTime=1 min", harvest(MaxTime="1"), "MaxTime of harvest is", ERROR, "30 min", NOT_BEGUN, refused=True
    ),
    "half_an_hour": Trait(
        "MaxTime=30 min",
        harvest(MaxTime="30"),
        "MaxTime of harvest is 30 min",
        WARNING,
        "pilot.max_minutes = 30",
    ),
    "accounts": Trait(
        "AllowAccounts without the pilots' account",
        harvest(AllowAccounts="main"),
        "account harvest is not in AllowAccounts",
        ERROR,
        "name one of main",
        NOT_BEGUN,
        refused=True,
    ),
    "denied_qos": Trait(
        "DenyQos=harvest on the harvest partition",
        harvest(DenyQos="harvest"),
        "QOS harvest is in DenyQos",
        ERROR,
        "take it out",
        NOT_BEGUN,
        refused=True,
    ),
    "groups": Trait(
        "AllowGroups of a group that nobody is in, EnforcePartLimits=ALL",
        both(settings(EnforcePartLimits="ALL"), harvest(AllowGroups="tape")),
        "only members of group tape",
        ERROR,
        "AllowGroups=ALL",
        SUBMISSION_REFUSED,
        refused=True,
    ),
    "limits_enforced": Trait("EnforcePartLimits=ALL", settings(EnforcePartLimits="ALL")),
    "root_disabled": Trait("DisableRootJobs=YES", settings(DisableRootJobs="YES"), tried=MAIN_REFUSED),
    "qos_limit": Trait(
        "a QOS of the harvest partition with MaxTRES=cpu=4",
        harvest(QoS="narrow"),
        "QOS narrow has MaxTRES=cpu=4",
        ERROR,
        "sacctmgr modify qos narrow set MaxTRES=cpu=-1",
        NOT_BEGUN,
        refused=True,
        restart=True,
        setup=(sacctmgr("add qos narrow MaxTRES=cpu=4"),),
        undo=(sacctmgr("delete qos narrow"),),
    ),
    "qos_reservation": Trait(
        "a harvest QOS that requires a reservation",
        says="QOS harvest requires a reservation",
        level=ERROR,
        remedy="flags-=RequiresReservation",
        tried=SUBMISSION_REFUSED,
        refused=True,
        setup=(sacctmgr("modify qos harvest set flags+=RequiresReservation"),),
        undo=(sacctmgr("modify qos harvest set flags-=RequiresReservation"),),
    ),
    "fair_share": Trait(
        "a harvest QOS whose use is charged",
        says="fair share is charged",
        level=WARNING,
        remedy="UsageFactor=0",
        setup=(sacctmgr("modify qos harvest set UsageFactor=1"),),
        undo=(sacctmgr("modify qos harvest set UsageFactor=0"),),
    ),
    "account_limit": Trait(
        "MaxJobs=0 of the pilots' account",
        says="account harvest has MaxJobs=0",
        level=ERROR,
        remedy="set MaxJobs=-1",
        tried=NOT_BEGUN,
        setup=(sacctmgr("modify account harvest set MaxJobs=0"),),
        undo=(sacctmgr("modify account harvest set MaxJobs=-1"),),
    ),
    "nothing_enforced": Trait(
        "AccountingStorageEnforce not set", Change(settings={"AccountingStorageEnforce": None}), restart=True
    ),
    "associations_enforced": Trait(
        "AccountingStorageEnforce=associations", settings(AccountingStorageEnforce="associations"), restart=True
    ),
    "all_enforced": Trait(
        "AccountingStorageEnforce=associations,limits,qos,safe",
        settings(AccountingStorageEnforce="associations,limits,qos,safe"),
        restart=True,
    ),
    "wckeys": Trait(
        "AccountingStorageEnforce=wckeys",
        settings(AccountingStorageEnforce="associations,limits,qos,wckeys", TrackWCKey="yes"),
        restart=True,
    ),
    "private_jobs": Trait(
        "PrivateData=jobs, the daemon's user is no operator",
        settings(PrivateData="jobs"),
        "PrivateData=jobs hides",
        ERROR,
        "AdminLevel=Operator",
    ),
    "private_usage": Trait("PrivateData=accounts,usage,users", settings(PrivateData="accounts,usage,users")),
}

#: What stands between a user and slurmctld.
FILTERS = {
    "job_submit": Trait(
        "a job_submit plug-in that lets all pass", job_submit(), "job_submit plug-ins (lua)", restart=True
    ),
    "job_submit_refuses": Trait(
        "job_submit.lua refuses jobs without --mail-user",
        job_submit(
            _OF_HARVEST.format(
                'if job.mail_user == nil then slurm.log_user("say who you are: --mail-user") return slurm.ERROR end'
            )
        ),
        "job_submit plug-ins (lua)",
        tried=SUBMISSION_REFUSED,
        restart=True,
    ),
    "job_submit_satisfied": Trait(
        'the same, and pilot.sbatch = ["--mail-user=staff"]',
        job_submit(_OF_HARVEST.format("if job.mail_user == nil then return slurm.ERROR end")),
        "job_submit plug-ins (lua)",
        restart=True,
        pilot=("--mail-user=staff",),
    ),
    "job_submit_moves": Trait(
        "job_submit.lua moves pilots to another partition",
        job_submit(_OF_HARVEST.format('job.partition = "batch"')),
        "job_submit plug-ins (lua)",
        tried=NOT_STARTED,
        restart=True,
    ),
    "job_submit_shortens": Trait(
        "job_submit.lua sets a time limit",
        job_submit(_OF_HARVEST.format("job.time_limit = 5")),
        "job_submit plug-ins (lua)",
        restart=True,
    ),
    "job_modify_refused": Trait(
        "job_submit.lua refuses every update",
        job_submit(modify='slurm.log_user("no updates") do return slurm.ERROR end'),
        "job_submit plug-ins (lua)",
        tried=NOT_STARTED,
        restart=True,
    ),
    "cli_filter_refuses": Trait(
        "cli_filter.lua refuses jobs without --mail-user",
        cli_filter('if o["partition"] == "harvest" and o["mail-user"] == nil then return slurm.ERROR end'),
        tried=SUBMISSION_REFUSED,
    ),
    "cli_filter_rewrites": Trait("cli_filter.lua adds a comment", cli_filter('o["comment"] = "added"')),
    "sbatch_prints": Trait(
        "sbatch prints a banner and a note about the budget",
        programs={"sbatch": wrapper('echo "Welcome to the cluster"', 'echo "NOTE: 17 % of your budget is left"')},
    ),
    "sbatch_of_cluster": Trait(
        "sbatch -M names the cluster behind the id",
        programs={"sbatch": wrapper(options="-M {cluster}")},
    ),
    "formats_set": Trait(
        "SQUEUE_FORMAT, SINFO_FORMAT, SLURM_TIME_FORMAT and SACCT_FORMAT in the environment",
        environment={
            "SQUEUE_FORMAT": "%i",
            "SINFO_FORMAT": "%n",
            "SLURM_TIME_FORMAT": "relative",
            "SACCT_FORMAT": "jobid",
        },
    ),
    "sbatch_defaults": Trait(
        "SBATCH_PARTITION, SBATCH_TIMELIMIT and SBATCH_EXCLUSIVE in the environment",
        environment={"SBATCH_PARTITION": "batch", "SBATCH_TIMELIMIT": "1", "SBATCH_EXCLUSIVE": "1"},
    ),
    "rate_limited": Trait(
        "rl_enable",
        settings(SlurmctldParameters="rl_enable"),
        "rl_enable",
        WARNING,
        "rl_refill_rate",
        since=(23, 2),
    ),
    "second_slurmctld": Trait(
        "a second slurmctld, which is away", Change(lines=("SlurmctldHost=second(127.0.0.2)",)), restart=True
    ),
}

#: The rest of slurm.conf.
OTHERS = {
    "builtin": Trait("SchedulerType=sched/builtin", settings(SchedulerType="sched/builtin"), restart=True),
    "basic_priority": Trait("PriorityType=priority/basic", settings(PriorityType="priority/basic"), restart=True),
    "deferred": Trait("SchedulerParameters=defer", settings(SchedulerParameters_="defer,batch_sched_delay=3")),
    "prolog": Trait(
        "a prolog and an epilog",
        settings(Prolog="/bin/true", PrologFlags="Alloc", Epilog="/bin/true"),
        "prolog or epilog are set",
    ),
    "no_arrays": Trait(
        "MaxArraySize=1",
        settings(MaxArraySize="1"),
        "job arrays are off",
        ERROR,
        "raise it",
        tried=SUBMISSION_REFUSED,
        restart=True,
    ),
    "short_arrays": Trait(
        "max_array_tasks=10",
        settings(SchedulerParameters_="max_array_tasks=10"),
        "at most 10 held tasks (max_array",
        WARNING,
        "raise it",
    ),
    "forgetful": Trait("MinJobAge=10", settings(MinJobAge="10"), "MinJobAge is 10 s", WARNING, "MinJobAge=300"),
    "over_time": Trait("OverTimeLimit=10", settings(OverTimeLimit="10"), "OverTimeLimit is 10 min", WARNING, "=0"),
    "licences": Trait("Licenses=fluent:4", settings(Licenses="fluent:4"), "licences (fluent:4)"),
    "burst_buffers": Trait(
        "BurstBufferType=burst_buffer/lua",
        Change(
            settings={"BurstBufferType": "burst_buffer/lua"},
            files={"burst_buffer.conf": "", "burst_buffer.lua": _BURST_BUFFER},
        ),
        "burst buffers (burst_buffer/lua) are not supported",
        WARNING,
        "refused by name",
        restart=True,
    ),
    "features": Trait(
        "nodes of several Features", Change(nodes={"n000": {"Features": "a100,ib"}, "n001": {"Features": "ib"}})
    ),
    "mcs": Trait("MCSPlugin=mcs/user", settings(MCSPlugin="mcs/user"), restart=True),
    "drained": Trait(
        "a drained node, one that is down, a reserved one",
        then=(
            "scontrol update NodeName=n000 State=DRAIN Reason=x",
            "scontrol update NodeName=n001 State=DOWN Reason=x",
            "scontrol create reservation ReservationName=gauntlet Nodes=n002 Users=root StartTime=now Duration=60",
        ),
    ),
    "maintenance": Trait(
        "all nodes in maintenance",
        then=(
            "scontrol create reservation ReservationName=gauntlet Nodes=ALL Users=root StartTime=now Duration=60 "
            "Flags=MAINT,IGNORE_JOBS",
        ),
        tried=NOT_TRIED,
    ),
    "flexible_reservation": Trait(
        "reservations with FLEX, MAGNETIC, PURGE_COMP and REPLACE_DOWN",
        then=(
            "scontrol create reservation ReservationName=gauntlet Nodes=n000 Users=bob StartTime=now Duration=60 "
            "Flags=FLEX,MAGNETIC",
            "scontrol create reservation ReservationName=second NodeCnt=1 PartitionName=batch Users=bob "
            "StartTime=now Duration=60 Flags=REPLACE_DOWN,PURGE_COMP",
        ),
    ),
    "daily_reservation": Trait(
        "reservations with DAILY, OVERLAP and ANY_NODES",
        settings(Licenses="fluent:4"),
        "licences (fluent:4)",
        then=(
            "scontrol create reservation ReservationName=gauntlet Nodes=n000 Users=bob StartTime=now+3hours "
            "Duration=60 Flags=DAILY,OVERLAP",
            "scontrol create reservation ReservationName=second Licenses=fluent:1 Users=bob "
            "StartTime=now+3hours Duration=60 Flags=ANY_NODES",
        ),
    ),
    "federation": Trait(
        "a federation",
        says="the cluster is in federation union",
        level=ERROR,
        remedy="not supported",
        refused=True,
        setup=(sacctmgr("add federation union clusters={cluster}"),),
        undo=(sacctmgr("delete federation union"),),
    ),
}

#: What nodes are called.
NAMES = {
    "name_without_number": Trait("a node without a number", harvest(Nodes="frodo"), lab=NAMED),
    "names_unpadded": Trait("n9, n10", harvest(Nodes="n[9-10]"), lab=NAMED),
    "names_outgrown": Trait("x01, x100: padding outgrown", harvest(Nodes="x01,x100"), lab=NAMED),
    "names_of_racks": Trait("r1c2, r1c10: two numbers", harvest(Nodes="r1c2,r1c10"), lab=NAMED),
    "name_with_suffix": Trait("gpu-a100-01-ib: hyphens, a suffix", harvest(Nodes="gpu-a100-01-ib"), lab=NAMED),
    "name_with_domain": Trait("c1.example.org: a domain", harvest(Nodes="c1.example.org"), lab=NAMED),
}

#: Other clusters.
CLUSTERS = {
    "no_slurmdbd": Trait(
        "no slurmdbd", says="without accounting (slurmdbd)", level=WARNING, remedy="malletraind --user", lab=PLAIN
    ),
    "cloud": Trait(
        "cloud nodes that are off",
        says="4 nodes of harvest are of a cloud or powered down when idle",
        level=ERROR,
        remedy="pool.include",
        tried=NOT_TRIED,
        lab=LabConfig(nodes=4, users=True, controller_only=True),
    ),
    "second_cluster": Trait(
        "a slurmdbd that serves another cluster, with accounts and QOS of the same names",
        setup=(
            sacctmgr("add cluster other"),
            sacctmgr("add account harvest cluster=other"),
            sacctmgr("add user alice account=harvest cluster=other"),
            sacctmgr("modify account where name=harvest cluster=other set MaxJobs=0"),
        ),
        undo=(sacctmgr("delete cluster other"),),
    ),
    "auth_slurm": Trait(
        "AuthType=auth/slurm, no munged",
        Change(settings={"AuthType": "auth/slurm", "CredType": "auth/slurm", "AuthInfo": None}),
        "munge does not work here",
        ERROR,
        "MalleTrain's own",
        restart=True,
        key=True,
        since=(23, 11),
        lab=PLAIN,
    ),
    "gpus": Trait("GPUs (GresTypes=gpu)", lab=LabConfig(nodes=4, users=True, gpus=2)),
}

TRAITS: Mapping[str, Trait] = {**NAMES, **CLUSTERS, **PREEMPTION, **SIZES, **GATES, **FILTERS, **OTHERS}
