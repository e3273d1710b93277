"""What of a site's configuration keeps Slurm from preempting pilots, or pilots from starting: each in recorded
configurations with a line changed, with its remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from malletrain.config.sections import Config
from malletrain.site_rules import rules_from
from malletrain.slurm.command import CommandResult, Commands
from malletrain.slurm.site import doctor, held_task_limits, partition_checks, site_facts
from malletrain.slurm.site.account_checks import (
    ASSOCIATION_LIMITS,
    associations,
    check_association_limits,
    check_main_doors,
)
from malletrain.slurm.site.power_saving import check_power, costly_nodes
from malletrain.slurm.site.site_facts import LIMITS, Finding, Harvest, Level, NodeFacts, SiteFacts
from tests.messages import says

FIXTURES = Path(__file__).parent / "fixtures"
HARVEST = Harvest("harvest", "harvest", "harvest")
ERROR, WARNING = Level.ERROR, Level.WARNING


def site(config: str = "", harvest: str = "", batch: str = "", release: str = "24.11.5") -> SiteFacts:
    """The recorded site with `Key=value` words of its configuration, and of its two partitions, replaced or added."""
    lines = (FIXTURES / release / "config.txt").read_text()
    for word in config.split():
        key, _, value = word.partition("=")
        lines = re.sub(rf"(?mi)^{key}\s*=.*\n", "", lines) + f"{key} = {value}\n"
    partitions = (FIXTURES / release / "partitions.txt").read_text().splitlines()
    told = "\n".join(
        _with(line, harvest if line.startswith("PartitionName=harvest") else batch) for line in partitions
    )
    return site_facts.parse(lines, told)


def _with(line: str, words: str) -> str:
    keys = {word.partition("=")[0] for word in words.split()}
    return " ".join([part for part in line.split() if part.partition("=")[0] not in keys] + words.split())


def sized(facts: SiteFacts, *nodes: NodeFacts) -> SiteFacts:
    return replace(facts, nodes=nodes or tuple(NodeFacts(f"n00{i}", 16, 2, 64000) for i in range(8)))


def faults(facts: SiteFacts, harvest: Harvest = HARVEST) -> list[Finding]:
    return [f for f in partition_checks.check_harvest_partition(facts, harvest) if f.level is not Level.OK]


def only(facts: SiteFacts, harvest: Harvest = HARVEST) -> Finding:
    (finding,) = faults(facts, harvest)
    assert finding.remedy
    assert "\n" not in finding.remedy
    return finding


# -- preemption that is switched off -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "level"),
    [
        ("PreemptExemptTime=00:10:00", ERROR),
        ("PreemptExemptTime=1-00:00:00", ERROR),
        ("PreemptExemptTime=00:00:10", WARNING),
        ("PreemptParameters=min_exempt_priority=1", ERROR),
        ("PreemptParameters=youngest_first,min_exempt_priority=4000000", ERROR),
        ("PreemptParameters=MIN_EXEMPT_PRIORITY=1", ERROR),  # Slurm looks for it in either case
        ("PriorityType=priority/basic PreemptParameters=min_exempt_priority=4000000", ERROR),
    ],
)
def test_pilots_that_slurm_does_not_preempt(config: str, level: Level) -> None:
    assert only(site("PriorityWeightAge=5000000 " + config)).level is level


@pytest.mark.parametrize(
    "config",
    [
        "PreemptExemptTime=NONE",
        "PreemptExemptTime=00:00:00",
        "PreemptParameters=youngest_first",
        "PriorityType=priority/multifactor PriorityWeightFairShare=100 PriorityWeightTRES=cpu=1000,mem=500 "
        "PreemptParameters=min_exempt_priority=4000",  # 1000 of the partition in the recorded site
    ],
)
def test_pilots_that_slurm_preempts(config: str) -> None:
    assert faults(site(config)) == []


@pytest.mark.parametrize(("harvest", "batch"), [(100, 100), (5, 1), (1, 1)])
def test_a_partition_whose_jobs_are_preempted_themselves_goes_before_pilots_too(harvest: int, batch: int) -> None:
    """A partition that names no PreemptMode has the global one: at one tier its jobs wait for pilots, at a lower one
    pilots preempt them."""
    facts = site(harvest=f"PriorityTier={harvest}", batch=f"PriorityTier={batch} PreemptMode=REQUEUE")
    assert (only(facts).level, says(only(facts).what, "batch", "harvest")) == (ERROR, True)


def test_a_partitions_exempt_time() -> None:
    assert says(only(site(harvest="PreemptExemptTime=00:30:00")).what, "PreemptExemptTime", "partition harvest")


@pytest.mark.parametrize(
    ("of_qos", "globally", "said"),
    [
        ("harvest|||00:10:00|", "00:00:00", ("QOS harvest:", "600 s")),
        ("harvest||cluster||", "00:05:00", ("slurm.conf:", "300 s")),
        ("harvest||cluster|00:00:00|", "00:05:00", ()),
    ],
)
def test_a_qos_own_exempt_time_goes_before_the_global_one(of_qos: str, globally: str, said: tuple[str, ...]) -> None:
    facts = replace(site(f"PreemptExemptTime={globally}"), qos=site_facts.parse_qos(of_qos))
    assert [says(f.what, "PreemptExemptTime", *said) for f in faults(facts)] == [True] * bool(said)


def with_qos(*rows: str, harvest: str = "QoS=pq") -> SiteFacts:
    facts = sized(site("AccountingStorageEnforce=associations,limits,qos", harvest=harvest))
    return replace(facts, qos=site_facts.parse_qos("\n".join(rows)))


@pytest.mark.parametrize(
    ("own", "of_partition", "said"),
    [
        ("00:00:00|", "00:05:00|", ("QOS pq:", "300 s")),
        ("00:05:00|", "00:00:00|", ()),
        ("00:00:00|OverPartQOS", "00:05:00|", ()),
        ("|OverPartQOS", "00:05:00|", ("QOS pq:", "300 s")),
        ("00:10:00|", "|", ("QOS harvest:", "600 s")),
    ],
)
def test_the_partitions_qos_goes_before_the_pilots_own(own: str, of_partition: str, said: tuple[str, ...]) -> None:
    """Measured on 22.05."""
    facts = with_qos(f"harvest|||{own}", f"pq|||{of_partition}")
    assert [says(f.what, "PreemptExemptTime", *said) for f in faults(facts)] == [True] * bool(said)


def limited(name: str, **limits: str) -> str:
    return "|".join([name, "", "", "", "", *(limits.get(key, "") for key in LIMITS)])


@pytest.mark.parametrize(
    "limits",
    [
        {"GrpJobs": "0"}, {"GrpSubmit": "0"}, {"MaxJobsPU": "0"}, {"MaxSubmitJobsPU": "0"}, {"MaxWall": "00:01:00"},
        {"GrpTRES": "cpu=4"}, {"MaxTRES": "cpu=64,node=0"}, {"MaxTRESPU": "mem=100M"}, {"MaxTRESPerNode": "cpu=4"},
        {"MaxTRES": "mem=60G"}, {"MinTRES": "node=2"}, {"MinTRES": "cpu=17"}, {"MaxTRESMins": "cpu=20"},
        {"GrpTRESRunMins": "cpu=31"}, {"GrpTRES": "billing=0"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("whose", ["pq", "harvest"])
def test_limits_of_a_qos_under_which_no_pilot_starts(whose: str, limits: dict[str, str]) -> None:
    facts = with_qos(*(limited(name, **(limits if name == whose else {})) for name in ("pq", "harvest")))
    finding = only(facts)
    assert (finding.level, f"QOS {whose} has " in finding.what) == (ERROR, True)
    assert f"sacctmgr modify qos {whose} set {next(iter(limits))}" in finding.remedy
    assert faults(replace(facts, qos=None)) == []


def test_limits_of_a_qos_under_which_pilots_start() -> None:
    roomy = {
        "GrpJobs": "8", "MaxWall": "02:00:00", "MaxTRES": "cpu=16,mem=64000M,node=1", "MinTRES": "node=1,cpu=16",
        "MaxTRESPU": "gres/gpu=8", "MaxTRESMins": "cpu=32", "GrpTRESRunMins": "cpu=9600,gres/gpu=600",
    }  # fmt: skip
    assert faults(with_qos(limited("pq", **roomy))) == []
    no_gpus = only(with_qos(limited("pq", MaxTRES="gres/gpu=0")))
    assert (no_gpus.level, says(no_gpus.what, "pq", "gres/gpu")) == (WARNING, True)
    both = limited("harvest", MaxTRES="cpu=1"), limited("pq", MaxTRES="cpu=16")
    assert faults(with_qos(*both)) == [], "the partition's QOS goes first"


@pytest.mark.parametrize("enforced", ["none", "associations,qos"])
def test_limits_that_slurm_does_not_enforce(enforced: str) -> None:
    facts = replace(with_qos(limited("pq", MaxJobsPU="0", MaxWall="1")), words={"AccountingStorageEnforce": enforced})
    assert faults(facts) == []


@dataclass
class Associations:
    """Rows of sacctmgr: root, its account `all`, in that `harvest`, in that ann and bob."""

    root: dict[str, str] = field(default_factory=dict)
    all: dict[str, str] = field(default_factory=dict)
    harvest: dict[str, str] = field(default_factory=dict)
    ann: dict[str, str] = field(default_factory=dict)

    def found(self, *of_qos: str, partition: str = "", max_pilot_s: float = 3600.0) -> list[Finding]:
        inherited = {key: value for key, value in self.harvest.items() if key.startswith("Max")}
        rows = [
            ("root", "", "", "", self.root), ("all", "", "", "root", self.all),
            ("physics", "", "", "all", {"GrpJobs": "0"}), ("harvest", "", "", "all", self.harvest),
            ("harvest", "ann", partition, "", {**inherited, **self.ann}), ("harvest", "bob", "", "", inherited),
        ]  # fmt: skip
        told = "\n".join(
            "|".join(
                [account, user, "harvest", partition, parent, *(limits.get(key, "") for key in ASSOCIATION_LIMITS)]
            )
            for account, user, partition, parent, limits in rows
        )
        return list(check_association_limits(with_qos(*of_qos), HARVEST, associations(told), max_pilot_s))


@pytest.mark.parametrize(
    ("known", "account", "limit"),
    [
        (Associations(harvest={"MaxJobs": "0"}), "harvest", "MaxJobs=0"),
        (Associations(harvest={"GrpJobs": "0"}), "harvest", "GrpJobs=0"),
        (Associations(harvest={"MaxSubmit": "0"}), "harvest", "MaxSubmit=0"),
        (Associations(harvest={"GrpTRES": "cpu=8"}), "harvest", "GrpTRES=cpu=8"),
        (Associations(harvest={"MaxTRES": "node=1,mem=1000M"}), "harvest", "MaxTRES=mem=1000M"),
        (Associations(harvest={"MaxTRESMins": "cpu=30"}), "harvest", "MaxTRESMins=cpu=30"),
        (Associations(harvest={"MaxWall": "00:01:00"}), "harvest", "MaxWall=00:01:00"),
        (Associations(all={"GrpSubmit": "0"}), "all", "GrpSubmit=0"),
        (Associations(root={"GrpTRES": "cpu=15"}), "root", "GrpTRES=cpu=15"),
    ],
)
def test_limits_of_an_account_under_which_no_pilot_starts(known: Associations, account: str, limit: str) -> None:
    (finding,) = known.found()
    key = limit.rpartition("=")[0]
    assert (finding.level, says(finding.what, f"account {account}", limit)) == (ERROR, True)
    assert finding.remedy == f"sacctmgr modify account {account} set {key}=-1"


def test_limits_of_one_user() -> None:
    (finding,) = Associations(ann={"MaxJobs": "0"}).found()
    assert (finding.level, says(finding.what, "user ann", "account harvest", "MaxJobs=0")) == (WARNING, True)
    assert finding.remedy == "sacctmgr modify user ann where account=harvest set MaxJobs=-1"
    assert Associations(ann={"MaxJobs": "0"}).found(partition="batch") == [], "it counts in another partition"


def test_limits_of_accounts_under_which_pilots_start() -> None:
    roomy = {"MaxJobs": "8", "GrpTRES": "node=4,cpu=64", "MaxTRES": "cpu=16", "MaxWall": "01:00:00"}
    assert Associations(all={"GrpJobs": "500"}, harvest=roomy).found() == []
    assert Associations(all={"MaxJobs": "0"}, harvest={"MaxJobs": "4"}).found() == [], "it is the account's own"
    assert Associations(harvest={"MaxJobs": "0"}).found(limited("harvest", MaxJobsPU="4")) == [], (
        "the QOS' goes first"
    )


def test_pilots_that_an_accounts_max_wall_keeps_short() -> None:
    (finding,) = Associations(harvest={"MaxWall": "00:20:00"}).found()
    assert (finding.level, "pilot.max_minutes = 20" in finding.remedy) == (WARNING, True)
    assert Associations(harvest={"MaxWall": "00:20:00"}).found(max_pilot_s=1200.0) == []


def test_pilots_ask_for_no_more_than_a_qos_max_wall() -> None:
    assert rules_from(Config(), sized(site())).max_pilot_s == 3600.0
    given = {"slurm": {"account": "harvest", "qos": "harvest"}}
    facts = with_qos(limited("harvest", MaxWall="00:20:00"))
    assert rules_from(Config.model_validate(given), facts).max_pilot_s == 1200.0
    (finding,) = [f for f in doctor._partition(facts, HARVEST, 3600.0) if f.level is WARNING]
    assert (finding.what.startswith("the QOS's MaxWall"), "pilot.max_minutes = 20" in finding.remedy) == (True, True)


BOTH = "normal|harvest|cluster||\nhigh|normal,harvest|cluster||\n"


@pytest.mark.parametrize(
    ("mode", "qos", "said"),
    [
        ("REQUEUE", BOTH + "harvest||cluster||", []),
        ("GANG,SUSPEND", BOTH + "harvest||requeue||", ["turns"]),
        ("GANG,SUSPEND", BOTH + "harvest||cluster||", ["PreemptMode=GANG,SUSPEND"]),
        ("REQUEUE", BOTH + "harvest||suspend||", ["PreemptMode=suspend"]),
        ("REQUEUE", BOTH + "harvest||gang||", ["PreemptMode=gang"]),
        ("CANCEL", BOTH + "harvest||OFF||", []),  # sacctmgr(1): OFF is the cluster's mode
        ("REQUEUE", BOTH + "long||cluster||\nharvest||cluster||", ["long"]),
        ("GANG,REQUEUE", BOTH + "harvest||cluster||", ["jobs share"]),
        ("SUSPEND", "", ["PreemptMode=SUSPEND", "by QOS"]),
    ],
)
def test_preemption_by_qos(mode: str, qos: str, said: list[str]) -> None:
    facts = site(f"PreemptType=preempt/qos PreemptMode={mode}")
    found = faults(replace(facts, qos=site_facts.parse_qos(qos) if qos else None))
    assert len(found) == len(said), found
    for finding, words in zip(found, said, strict=True):
        assert says(finding.what, words)
        assert finding.remedy
        assert (finding.level is WARNING) == (words in ("turns", "jobs share", "by QOS"))


# -- partitions in which no pilot starts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ("ReqResv=YES", ERROR),
        ("RootOnly=YES", ERROR),
        ("MinNodes=2", ERROR),
        ("MaxNodes=0", ERROR),
        ("MaxCPUsPerNode=8", ERROR),
        ("MaxCPUsPerSocket=4", WARNING),
        ("DenyAccounts=physics,harvest", ERROR),
        ("DenyQos=harvest", ERROR),
        ("AllowAccounts=physics", ERROR),
        ("AllowQos=normal", ERROR),
        ("AllowGroups=no-such-group", ERROR),
        ("AllowGroups=root", WARNING),
        ("AllocNodes=login1", WARNING),
        ("AllocNodes=", ERROR),
        ("State=INACTIVE", ERROR),
        ("MaxMemPerNode=32000", ERROR),
        ("MaxMemPerCPU=2000", ERROR),
    ],
)
def test_partitions_in_which_no_pilot_starts(words: str, level: Level) -> None:
    finding = only(sized(site(harvest=words)))
    assert finding.level is level
    assert "harvest" in finding.what


@pytest.mark.parametrize(
    "words",
    [
        "MinNodes=1", "MaxNodes=4", "MaxCPUsPerNode=16", "MaxCPUsPerSocket=8", "MaxMemPerNode=64000", "Hidden=YES",
        "MaxMemPerCPU=4000", "AllowAccounts=harvest DenyAccounts=harvest", "AllowQos=HARVEST",
        "AllocNodes=login1,n[000-007]",
    ],
)  # fmt: skip
def test_partitions_in_which_pilots_start(words: str) -> None:
    assert faults(sized(site(harvest=words))) == []


@pytest.mark.parametrize("config", ["MaxMemPerCPU=2000", "MaxMemPerNode=32000"])
def test_global_limits_below_a_nodes_memory(config: str) -> None:
    finding = only(sized(site(config)))
    assert (finding.level, "slurm.conf has " + config in finding.what) == (ERROR, True)
    assert says(finding.remedy, "MaxMemPerNode=64000", "partition harvest")
    assert only(site(config)).level is WARNING, "the nodes are not known"
    assert faults(sized(site(config, harvest="MaxMemPerNode=64000"))) == []


def test_a_partition_that_admits_no_wide_pilot() -> None:
    finding = only(site(harvest="MaxNodes=4"), replace(HARVEST, max_nodes=8))
    assert (finding.level, "pilot.max_nodes = 4" in finding.remedy) == (WARNING, True)


def test_a_limit_that_some_nodes_exceed() -> None:
    nodes = (NodeFacts("n000", 16, 2, 64000), NodeFacts("n001", 64, 2, 512000), NodeFacts("elsewhere", 8, 1, 8000))
    finding = only(sized(site(harvest="MaxMemPerNode=64000"), *nodes))
    assert (finding.level, says(finding.what, "n001,")) == (WARNING, True)
    assert "pool.exclude" in finding.remedy


def test_what_jobs_may_have_of_a_node() -> None:
    (node,) = site_facts.parse_nodes(
        "NodeName=n1 CPUAlloc=0 CPUEfctv=14 CPUTot=16 RealMemory=64000 Sockets=2 MemSpecLimit=4000 State=IDLE+CLOUD "
    )
    assert node == NodeFacts("n1", 14, 2, 60000, cloud=True)


# -- arrays --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "most", "why"),
    [
        ("SchedulerParameters=max_array_tasks=10,bf_interval=30", 10, "max_array_tasks=10"),
        ("SchedulerParameters=bf_interval=30,max_array_tasks=5000 MaxArraySize=101", 100, "MaxArraySize=101"),
        ("MaxJobCount=200 MaxArraySize=101", 10, "5% of MaxJobCount=200"),
    ],
)
def test_held_tasks_within_what_an_array_may_have(config: str, most: int, why: str) -> None:
    facts = site(config)
    limits = held_task_limits.limits_of(facts.words)
    assert (limits.most_tasks, limits.why) == (most, why)
    assert rules_from(Config(), facts).max_top_up == min(50, most)
    said = " ".join(f.what for f in doctor._arrays(facts))
    assert (f"at most {most} held tasks ({why})" in said) == (most < doctor.FEW_TASKS)


def test_a_site_without_arrays() -> None:
    (finding,) = doctor._arrays(site("MaxArraySize=0"))
    assert (finding.level, "MaxArraySize=0" in finding.what) == (ERROR, True)


# -- what is hidden ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["jobs", "nodes", "partitions", "reservations"])
def test_what_private_data_hides(word: str) -> None:
    facts = site(f"PrivateData={word},users")
    assert only(facts).level is WARNING, "who asks is not known"
    hidden = only(replace(facts, sees_all=False))
    assert (hidden.level, f"PrivateData={word} hides" in hidden.what) == (ERROR, True)
    assert "AdminLevel=Operator" in hidden.remedy
    assert faults(replace(facts, sees_all=True)) == []


ACCOUNTED = "AccountingStorageType=accounting_storage/slurmdbd"


class Told(Commands):
    """Slurm of the recorded site, of which `sacctmgr` says the same of everything."""

    def __init__(self, sacctmgr: CommandResult) -> None:
        super().__init__()
        self._sacctmgr = sacctmgr

    def run(self, argv: Sequence[str], timeout_s: float | None = None) -> CommandResult:
        self.last = argv
        if argv[0] == "sacctmgr":
            return self._sacctmgr
        named = {"config": "config.txt", "partition": "partitions.txt", "node": "scontrol-show-node.txt"}
        recorded = FIXTURES / "24.11.5" / named.get(argv[-1], f"{argv[0]}.txt")
        more = f"{ACCOUNTED.replace('=', ' = ')}\n" if argv[-1] == "config" else ""
        return CommandResult(more + recorded.read_text() if recorded.exists() else "")


@pytest.mark.parametrize(
    ("private", "level", "ok", "words"),
    [
        ("none", "Operator", False, "coordinator"),
        ("jobs", "Operator", True, "PrivateData=jobs"),
        ("jobs", "Administrator", False, "operator"),
    ],
)
def test_who_must_be_operator_to_see_is_not_told_to_be_less(
    monkeypatch: pytest.MonkeyPatch, private: str, level: str, ok: bool, words: str
) -> None:
    monkeypatch.setattr(doctor, "user_name", lambda _uid: "bob")
    facts = replace(site(f"PrivateData={private} {ACCOUNTED}"), sees_all=True)
    commands = Told(CommandResult(f"bob|{level}|\n"))
    assert [f.level for f in doctor._privacy(commands, facts, HARVEST)] == ([Level.OK] if facts.hidden else [])
    (rights,) = doctor._rights(commands, facts, HARVEST)
    assert (rights.level, words in rights.what + rights.remedy) == (Level.OK if ok else WARNING, True), rights
    *_, listener = doctor._apart(commands, facts, HARVEST, str(FIXTURES))
    assert listener.level is rights.level, "also beside an actuator"


def test_without_slurmdbd_each_check_names_the_command_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "user_name", lambda _uid: "bob")
    commands = Told(CommandResult("", "error: Sending PersistInit msg: Connection refused"))
    found = [f for f in doctor.examine(commands, HARVEST, lambda: 0.0) if "checked: sacctmgr" in f.what]
    asked = ["user bob", "assoc", "qos harvest"]
    assert [says(f.remedy, "slurmdbd", words) for f, words in zip(found, asked, strict=True)] == [True] * 3, found


def test_what_slurmdbd_does_not_tell_is_as_it_was() -> None:
    before = replace(site(), qos=site_facts.parse_qos("harvest||requeue||"), sees_all=True)
    assert site().knowing(before) == before
    after = replace(site(), qos={}, sees_all=False)
    assert after.knowing(before) == after


def test_private_data_that_hides_nothing_of_use() -> None:
    assert faults(site("PrivateData=accounts,cloud,events,usage,users")) == []


# -- nodes that are not there for nothing --------------------------------------------------------------------------

SAVING = "SuspendProgram=/usr/bin/off ResumeProgram=/usr/bin/on"


def costly(config: str, harvest: str = "", batch: str = "") -> set[str]:
    return {name.removeprefix("n00") for name in costly_nodes(site(config, harvest, batch), "harvest")}


@pytest.mark.parametrize(
    ("config", "harvest", "batch", "expected"),
    [
        (f"{SAVING} SuspendTime=600", "", "", "01234567"),
        (f"{SAVING} SuspendTime=INFINITE", "", "", ""),
        (f"{SAVING} SuspendTime=NONE", "", "", ""),
        (f"{SAVING} SuspendTime=-1", "", "", ""),
        ("SuspendTime=600", "", "", ""),  # without programs power saving is off
        (f"{SAVING} SuspendTime=600 SuspendExcNodes=n[000-004],n006", "", "", "57"),
        (f"{SAVING} SuspendTime=600 SuspendExcNodes=n[000-004]:2,n[006-007]", "", "", "012345"),
        (f"{SAVING} SuspendTime=600 SuspendExcNodes=n000,n[001-004]:2", "", "", "01234567"),
        (f"{SAVING} SuspendTime=600 SuspendExcParts=debug,harvest", "", "", ""),
        (f"{SAVING} SuspendTime=600 SuspendExcParts=debug", "", "", "01234567"),
        (f"{SAVING} SuspendTime=INFINITE", "", "SuspendTime=300 Nodes=n[002-003]", "23"),
        (f"{SAVING} SuspendTime=600", "SuspendTime=INFINITE", "SuspendTime=300", ""),  # the longest counts
        (
            f"{SAVING} SuspendTime=600",
            "SuspendTime=GLOBAL Nodes=n[000-003]",
            "SuspendTime=INFINITE Nodes=n003",
            "012",
        ),
    ],
)
def test_nodes_that_are_powered_down_when_idle(config: str, harvest: str, batch: str, expected: str) -> None:
    assert costly(config, harvest, batch) == set(expected)


def test_cloud_nodes_and_what_the_site_says_of_them() -> None:
    facts = sized(site(), NodeFacts("n001", 16, 2, 64000, cloud=True), NodeFacts("n002", 16, 2, 64000))
    given = {"pool": {"exclude": ["n005"]}}
    assert rules_from(Config.model_validate(given), facts).exclude_nodes == {"n001", "n005"}
    (finding,) = check_power(facts, "harvest", [])
    assert (finding.level, says(finding.what, "1 nodes")) == (WARNING, True)
    assert "pool.include" in finding.remedy
    given = {"pool": {"include": ["n[001-002]"]}}
    assert rules_from(Config.model_validate(given), facts).exclude_nodes == set()
    (finding,) = check_power(facts, "harvest", ["n[001-002]"])
    assert finding.level is Level.OK
    assert list(check_power(site(), "harvest", [])) == []


def test_a_partition_whose_nodes_are_powered_down_when_a_pilot_leaves() -> None:
    (finding,) = check_power(site(SAVING, "PowerDownOnIdle=YES"), "harvest", [])
    assert (finding.level, says(finding.remedy, "PowerDownOnIdle=NO", "partition harvest")) == (ERROR, True)
    assert list(check_power(site(SAVING, "PowerDownOnIdle=NO", "PowerDownOnIdle=YES"), "harvest", [])) == []
    assert list(check_power(site("", "PowerDownOnIdle=YES"), "harvest", [])) == [], "nothing powers nodes down"


def test_a_site_of_which_nothing_is_left() -> None:
    (finding,) = check_power(site(f"{SAVING} SuspendTime=600"), "harvest", [])
    assert (finding.level, says(finding.what, "no others")) == (ERROR, True)


# -- main jobs in the pilots' account ------------------------------------------------------------------------------

OWN = "root|||\nharvest||harvest|\nharvest|ann|harvest|\nphysics||normal|\nphysics|ann|normal|\n"


def doors(batch: str, assoc: str = OWN, config: str = "", harvest: str = "AllowAccounts=harvest") -> list[Finding]:
    enforced = "AccountingStorageEnforce=associations,limits,qos"
    facts = site(f"AccountingStorageType=accounting_storage/slurmdbd {enforced} {config}", harvest, batch)
    return list(check_main_doors(facts, HARVEST, associations(assoc)))


@pytest.mark.parametrize(
    ("batch", "remedy"),
    [
        ("", ("DenyAccounts=harvest", "partition batch")),
        ("DenyAccounts=x", ("DenyAccounts=harvest", "partition batch")),
        ("AllowAccounts=physics,Harvest", ("harvest", "AllowAccounts", "batch")),
        ("AllowAccounts=harvest DenyAccounts=harvest", ("harvest", "AllowAccounts", "batch")),
    ],
)
def test_main_partitions_that_admit_the_pilots_account(batch: str, remedy: tuple[str, ...]) -> None:
    (finding,) = doors(batch)
    assert (finding.level, says(finding.what, "charge")) == (ERROR, True)
    assert says(finding.remedy, *remedy)


@pytest.mark.parametrize(
    "batch", ["DenyAccounts=x,harvest", "AllowAccounts=physics", "AllowQos=normal,high", "DenyQos=Harvest"]
)
def test_main_partitions_that_refuse_it(batch: str) -> None:
    assert [f.level for f in doors(batch)] == [Level.OK]


def test_associations_by_partition_keep_the_pilots_account_out_of_others() -> None:
    """Slurm: Invalid account or account/partition combination specified."""
    by_partition = OWN.replace("harvest|ann|harvest|", "harvest|ann|harvest|harvest")
    assert [f.level for f in doors("", by_partition)] == [Level.OK]
    (finding,) = doors("", by_partition + "harvest|bob|harvest|\n")
    assert "DenyAccounts=harvest" in finding.remedy
    (finding,) = doors("", by_partition, "AccountingStorageEnforce=none")
    assert finding.level is ERROR


def test_the_pilots_qos_in_another_account() -> None:
    (finding,) = doors("DenyAccounts=harvest", OWN + "physics|bob|normal,harvest|\n")
    assert (finding.level, says(finding.what, "account physics", "QOS harvest")) == (ERROR, True)
    assert "set qos-=harvest" in finding.remedy
    (finding,) = doors("DenyAccounts=harvest DenyQos=harvest", OWN + "physics|bob|normal,harvest|\n")
    assert finding.level is Level.OK


@pytest.mark.parametrize(("kind", "level"), [("preempt/partition_prio", WARNING), ("preempt/qos", ERROR)])
def test_a_main_qos_in_the_pilots_account(kind: str, level: Level) -> None:
    assoc = OWN + "harvest|bob|normal,harvest|\n"
    (finding,) = doors("DenyAccounts=harvest", assoc, f"PreemptType={kind}")
    assert (finding.level, "QOS normal too" in finding.what) == (level, True)
    (finding,) = doors("DenyAccounts=harvest", assoc, harvest="AllowAccounts=harvest AllowQos=harvest")
    assert finding.level is Level.OK


def test_without_accounting_nothing_is_charged() -> None:
    assert list(check_main_doors(site(), HARVEST, [])) == []
