"""The text of scontrol, squeue and sdiag: records of 22.05 as recorded, odd ones, and noise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput
from malletrain.domain.snapshot import Node, NodeState
from malletrain.slurm.formats import normalise, sdiag, squeue, text
from malletrain.slurm.formats.records import JobRecord, NodeRecord
from tests.messages import says

NODE = (
    "NodeName=n000 Arch=x86_64 CoresPerSocket=16  CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=0.06 "
    "AvailableFeatures=ib,big ActiveFeatures=ib Gres=gpu:4 NodeAddr=127.0.0.1 NodeHostName=localhost Port=23010 "
    "Version=22.05.8 OS=Linux 6.1 #1 SMP x=y  RealMemory=64000 AllocMem=0 FreeMem=23607 Sockets=1 Boards=1 "
    "State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=7 Owner=N/A MCS_label=N/A Partitions=batch,harvest  "
    "BootTime=1795192315 CfgTRES=cpu=16,mem=62.50G AllocTRES= "
    "Reason=bad fan, see ticket = 5 [root@2026-11-20T16:31:41]\n"
)


def test_a_node() -> None:
    (row,) = text.nodes(NODE)
    assert row == NodeRecord(
        "n000", "IDLE+DRAIN", ("batch", "harvest"), 16, 0, 64000, "gpu:4", ("ib",), 7,
        "bad fan, see ticket = 5 [root@2026-11-20T16:31:41]",
    )  # fmt: skip


def test_the_time_of_a_nodes_reason_is_one_that_people_read() -> None:
    # The daemon asks with SLURM_TIME_FORMAT=%s, and this text is shown as it is.
    (row,) = text.nodes(NODE.replace("2026-11-20T16:31:41]", "1795192301]"))
    assert row.reason == "bad fan, see ticket = 5 [root@2026-11-20T16:31:41Z]"


def test_a_node_on_several_lines_reads_the_same() -> None:
    folded = NODE.replace("  ", "\n   ").replace(" Reason", "\n   Reason")
    assert text.nodes(folded + "\n") == text.nodes(NODE)


@pytest.mark.parametrize(
    "answer", ["NodeName= State=IDLE\n", "NodeName=n1 Arch=x86\n", "slurm_load_node error: Unable to contact\n"]
)
def test_half_a_node_is_refused(answer: str) -> None:
    with pytest.raises(InvalidInput):
        text.nodes(answer)


def test_reservations() -> None:
    (row,) = text.reservations(
        "ReservationName=r1 StartTime=1795195997 EndTime=1795199597 Duration=01:00:00 Nodes=n[001-002] NodeCnt=2 "
        "Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=32 Users=root,bob Groups=(null) Accounts=(null) State=INACTIVE\n"
    )
    assert (row.name, row.start, row.end, row.nodes) == ("r1", 1795195997.0, 1795199597.0, ("n001", "n002"))
    assert row.flags == {"MAINT", "IGNORE_JOBS", "SPEC_NODES"}
    assert row.users == ("root", "bob")
    assert row.accounts == ()
    assert text.reservations("No reservations in the system\n") == []


@given(st.text(max_size=200))
def test_noise_is_refused_or_empty(noise: str) -> None:
    for parse in (text.nodes, text.reservations, text.jobs):
        try:
            assert isinstance(parse(noise), list)
        except InvalidInput as error:
            assert str(error)
    assert isinstance(text.config(noise), dict)
    assert sdiag.parse(noise).plan.interval_s == 30.0


@given(st.integers(0, len(NODE) - 2))
def test_a_cut_answer_never_makes_a_node_free(cut: int) -> None:
    """Whatever is lost at the end, a drained node does not become one that could be harvested."""
    try:
        rows = text.nodes(NODE[:cut])
    except InvalidInput:
        return
    for row in rows:
        state = normalise.node(row).state
        # The one cut that could: right after State=IDLE, which CommandReader refuses for its missing line end.
        assert state is NodeState.DRAINED or NODE[:cut].endswith(("State=IDLE", "State=IDLE+"))  or state not in (
            NodeState.IDLE, NodeState.PLANNED
        )  # fmt: skip


MARK = "\x1e0a1b2c3d\x1e"


def _line(row: dict[str, str], account: str, name: str) -> str:
    defaults = dict.fromkeys(squeue._COLUMNS, "N/A") | {
        "i": "7",
        "A": "7",
        "F": "7",
        "T": "PENDING",
        "D": "1",
        "l": "5:00",
    }
    fixed = squeue.FIELD_SEPARATOR.join((defaults | row)[letter] for letter in squeue._COLUMNS)
    return f"{MARK}{fixed}{MARK}{account}{MARK}{name}{MARK}\n"


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), max_size=5))
def test_names_and_accounts_of_any_bytes_survive(free: list[tuple[str, str]]) -> None:
    answer = "".join(_line({}, account, name) for account, name in free)
    rows = squeue.parse_queue(answer, MARK)
    assert [row.name for row in rows] == [name for _, name in free]


def test_a_name_cannot_forge_a_row() -> None:
    forged = _line({"i": "8", "A": "8", "u": "root"}, "a", "b").replace(MARK, "\x1eguessed!\x1e")
    rows = squeue.parse_queue(_line({}, "acct", "evil\n" + forged), MARK)
    assert [row.id for row in rows] == ["7"]


@given(st.integers(0, 300))
def test_a_cut_queue_is_refused(cut: int) -> None:
    answer = _line({}, "a", "first") + _line({"i": "8", "A": "8"}, "a", "second")
    part = answer[: min(cut, len(answer) - 2)]
    if part.strip() and part.rstrip("\n") != answer.partition("\n")[0]:
        with pytest.raises(InvalidInput):
            squeue.parse_queue(part, MARK)


def test_of_jobs_known_to_run_only_the_ids_are_read() -> None:
    def row(job: str, state: str) -> str:
        return _line({"i": job, "A": job, "T": state}, "a", "b")

    answer = row("1", "RUNNING") + row("2", "RUNNING") + row("3", "COMPLETING") + row("4", "PENDING")
    changed, running = squeue.parse_changed(answer, MARK, frozenset({"1", "3", "4", "9"}))
    assert changed == squeue.parse_queue(answer, MARK)[1:]
    assert running == {"1"}
    with pytest.raises(InvalidInput):
        squeue.parse_changed(answer + row("5", "RUNNING")[:-9], MARK, frozenset({"1"}))


def test_rows_of_arrays_and_hetjobs() -> None:
    answer = (
        _line({"i": "9_[0-9999]", "A": "9", "F": "9", "K": "0-9999", "P": "batch"}, "", "")
        + _line({"i": "5_[0,3-4]", "A": "5", "F": "5", "K": "0,3-4", "P": "harvest", "r": "JobHeldUser"}, "", "")
        + _line({"i": "5_1", "A": "6", "F": "5", "K": "1", "P": "harvest", "T": "RUNNING", "N": "n1"}, "", "")
        + _line({"i": "6_[2]", "A": "60", "F": "6", "K": "2", "P": "harvest", "r": "JobHeldUser"}, "", "")
        + _line({"i": "20+1", "A": "21", "F": "21"}, "", "")
    )
    seen = normalise.snapshot(
        1.0, [NodeRecord("n1", "ALLOCATED")], squeue.parse_queue(answer, MARK), task_by_task="harvest"
    )
    by_id = {job.id: job for job in seen.jobs}
    assert by_id["9_[0-9999]"].task_count == 10000
    assert {"5_0", "5_3", "5_4", "5_1", "6_2"} <= by_id.keys()
    assert (by_id["5_3"].array_id, by_id["5_3"].task_count) == (5, 1)
    assert (by_id["5_1"].array_id, by_id["5_1"].nodes) == (5, ("n1",))
    assert by_id["20+1"].het_id == 20
    assert seen.warnings == ()


def test_several_partitions_over_one_node_make_one_node_of_the_strongest_state() -> None:
    rows = [
        NodeRecord("n1", "idle", ("a",)),
        NodeRecord("n1", "drain", ("b",)),
        NodeRecord("n2", "IDLE", ("a",), 16, 4),
    ]
    seen = normalise.snapshot(1.0, rows)
    assert seen.node["n1"].state is NodeState.DRAINED
    assert seen.node["n1"].partitions == ("a", "b")
    assert seen.node["n2"].state is NodeState.MIXED, "partly busy is not idle"
    assert "two states" in seen.warnings[0]


def test_oddities_are_warned_of_with_their_count() -> None:
    rows = [NodeRecord("n1", "ALLOCATED"), NodeRecord("n2", "WOBBLY"), NodeRecord("n3", "WOBBLY")]
    jobs = [JobRecord("7", 7, "RUNNING", nodes="n9"), JobRecord("8", 8, "PENDING", planned_nodes="@x")]
    lines = " | ".join(normalise.snapshot(1.0, rows, jobs).warnings)
    assert "'WOBBLY' (2 times, first: n2)" in lines
    assert "not listed (1 time, first: n9)" in lines
    assert "unreadable SchedNodeList" in lines
    assert "not shown" in lines


def test_impossible_answers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no node"):
        normalise.snapshot(1.0, [])
    with pytest.raises(InvalidInput, match="NodeList"):
        normalise.snapshot(1.0, [NodeRecord("n1", "IDLE")], [JobRecord("7", 7, "RUNNING", nodes="n[1-")])


SDIAG = """sdiag output at Fri Nov 20 16:33:17 2026 (1795192397)
Server thread count:  3
Main schedule statistics (microseconds):
	Last cycle:   21000
	Max cycle:    124
	Last queue length: 5
Backfilling stats
	Last cycle when: Fri Nov 20 16:33:15 2026 (1795192395)
	Last cycle: 1618
	Last depth cycle: 99
	Last depth cycle (try sched): 98
	Last queue length: 151
"""


def test_sdiag() -> None:
    seen = sdiag.parse(SDIAG, 30.0)
    assert seen.at == 1795192397.0
    assert seen.plan.last_cycle_at == 1795192395.0
    assert (seen.plan.depth, seen.plan.queue_length) == (98, 151)
    assert seen.plan.main_cycle_s == pytest.approx(0.021)
    assert seen.plan.main_cycles_per_minute is None, "it does not say since when it counts"
    assert not seen.plan.is_stale(1795192395.0 + 60)
    assert seen.plan.is_stale(1795192395.0 + 61)


@pytest.mark.parametrize(("since", "per_minute"), [(1795192397 - 120, 6.0), (1795192397 - 30, None)])
def test_how_often_the_main_scheduler_runs(since: int, per_minute: float | None) -> None:
    text = SDIAG.replace("Server thread", f"Data since      Fri Nov 20 ({since})\nServer thread")
    text = text.replace("\tMax cycle:    124\n", "\tMax cycle:    124\n\tTotal cycles: 12\n")
    assert sdiag.parse(text).plan.main_cycles_per_minute == per_minute


def test_errors_name_their_tasks_in_both_spellings() -> None:
    old = "7_3: Job has already finished; 12_0: Invalid job id specified"
    assert text.task_errors(old) == {"7_3": "Job has already finished", "12_0": "Invalid job id specified"}
    assert text.task_errors("1_[2,5-6]: Job has already finished") == dict.fromkeys(
        ("1_2", "1_5", "1_6"), "Job has already finished"
    )
    assert text.task_errors("slurm_update error: Invalid user id") == {}


@given(st.text(max_size=60))
def test_noise_names_no_task_or_a_real_one(noise: str) -> None:
    assert all(name.replace("_", "").isdigit() for name in text.task_errors(noise))


def test_a_node_that_slurmctld_has_not_heard_of_is_unknown_and_no_fault_of_the_answer() -> None:
    (row,) = text.nodes(NODE.replace("State=IDLE+DRAIN", "State=UNKNOWN*"))
    assert normalise.node(row).state is not NodeState.IDLE
    (row,) = text.nodes(NODE.replace("State=IDLE+DRAIN", "State=UNKNOWN"))
    assert normalise.node(row).state is NodeState.UNKNOWN


def test_the_leaf_of_each_node_is_the_lowest_switch_or_the_block() -> None:
    tree = """SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[000-001]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n002,n[001,003]
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[000-003] Switches=leaf[0-1]
"""
    assert text.leaf_of_each(tree) == {"n000": "leaf0", "n001": "leaf0", "n002": "leaf1", "n003": "leaf1"}
    blocks = "BlockName=b1 BlockIndex=0 Nodes=n[0-1] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n2 BlockSize=2\n"
    assert text.leaf_of_each(blocks) == {"n0": "b1", "n1": "b1", "n2": "b2"}
    assert text.leaf_of_each("No topology information available\n") == {}
    with pytest.raises(InvalidInput, match="leaf0"):
        text.leaf_of_each("SwitchName=leaf0 Level=0 Nodes=n[0-\n")


@given(st.text(max_size=300))
def test_any_topology_is_read_or_refused(printed: str) -> None:
    try:
        assert isinstance(text.leaf_of_each(printed), dict)
    except InvalidInput as error:
        assert says(error, "scontrol show topology")


@given(
    st.lists(st.lists(st.sampled_from(["IDLE", "MIXED", "DOWN*", "IDLE+DRAIN"]), min_size=1, max_size=4), max_size=4)
)
def test_rows_that_are_remembered_are_those_that_would_be_read(looks: list[list[str]]) -> None:
    known: dict[str, NodeRecord] = {}
    for states in looks:
        answer = "".join(
            NODE.replace("State=IDLE+DRAIN", f"State={state}").replace("NodeName=n000", f"NodeName=n{at}")
            for at, state in enumerate(states)
        )
        assert text.nodes(answer, known) == text.nodes(answer)
        assert len(known) == len(set(answer.splitlines()))


def test_an_answer_that_cannot_be_read_is_not_remembered() -> None:
    known: dict[str, NodeRecord] = {}
    before = text.nodes(NODE, known)
    with pytest.raises(InvalidInput):
        text.nodes(NODE.replace("State=", "Stat="), known)
    assert text.nodes(NODE, known) == before


@given(
    st.lists(
        st.lists(st.sampled_from(["IDLE", "MIXED", "DOWN*", "IDLE+WOBBLY"]), min_size=1, max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_nodes_that_are_remembered_are_those_that_would_be_made(looks: list[list[str]]) -> None:
    known: dict[str, NodeRecord] = {}
    before: dict[str, Node] = {}
    for states in looks:
        answer = "".join(
            NODE.replace("State=IDLE+DRAIN", f"State={state}").replace("NodeName=n000", f"NodeName=n{at}")
            for at, state in enumerate(states)
        )
        seen = normalise.snapshot(1.0, text.nodes(answer, known))
        assert seen == normalise.snapshot(1.0, text.nodes(answer)), "oddities are warned about each time"
        now = {node.name: node for node in seen.nodes}
        for name in now.keys() & before.keys():
            if now[name] == before[name] and not any("WOBBLY" in line for line in seen.warnings):
                assert now[name] is before[name], "what stands again is the same object: decisions are spared by that"
        before = now
