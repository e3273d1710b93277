"""Saved outputs as sites and public reports have them: read as they are meant, or refused with what is wrong."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from malletrain.domain.errors import InvalidInput
from malletrain.domain.snapshot import NodeState, SlurmState, Snapshot
from malletrain.slurm.read_files import snapshot

#: More of these, in a folder beside the checkout.
REPORTED = Path(__file__).resolve().parents[3] / "shared" / "cases" / "slurm"

TWO_NODES = (
    "NodeName=n1 CPUAlloc=8 CPUTot=8 State=ALLOCATED Partitions=main\n"
    "NodeName=n2 CPUAlloc=8 CPUTot=8 State=ALLOCATED Partitions=main\n"
)
SQUEUE = "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
SQUEUE_L = (
    "Fri Nov 27 05:16:10 2026\n"
    "             JOBID PARTITION     NAME     USER    STATE       TIME TIME_LIMI  NODES NODELIST(REASON)\n"
)


def read(folder: Path, **files: str) -> Snapshot:
    """`squeue="..."` is squeue.txt, `squeue_json` squeue.json; two allocated nodes where none are given."""
    if not {"nodes", "sinfo", "sinfo_json"} & files.keys():
        files["nodes"] = TWO_NODES
    for name, text in files.items():
        stem, _, ending = name.replace("nodes", "scontrol-show-node").partition("_")
        (folder / f"{stem}.{ending or 'txt'}").write_text(text)
    return snapshot(folder)


def reported(name: str) -> Snapshot:
    if not (REPORTED / name).is_dir():
        pytest.skip(f"no {REPORTED / name} here")
    return snapshot(REPORTED / name)


def test_numbers_that_outgrew_their_zeros(tmp_path: Path) -> None:
    head = "JOBID|PARTITION|NAME|USER|ST|TIME|NODES|NODELIST(REASON)\n"
    found = read(tmp_path, squeue=f"{head}7|main|cfd|ada|R|1:00|100|n[01-100]\n")
    assert len(found.jobs[0].nodes) == 100
    assert {"n01", "n100"} <= set(found.jobs[0].nodes)


@pytest.mark.parametrize(
    "before",
    [
        "sinfo: error: StateSaveLocation specified more than once, latest value used\n",
        "sinfo: warning: lua: something\n\n",
        "Loading slurm/24.11\n",
        "Warning: Permanently added 'head,10.0.0.1' to the list of known hosts.\n*** Budget 2026: ask us! ***\n",
        "Fri Nov 27 05:16:10 2026\n",
        "CLUSTER: alpha\n",
    ],
)
def test_what_stands_before_a_heading_is_passed_over(tmp_path: Path, before: str) -> None:
    table = "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\nmain*        up   infinite      2   idle n[1-2]\n"
    found = read(tmp_path, sinfo=before + table)
    assert [node.name for node in found.nodes] == ["n1", "n2"]
    assert {node.state for node in found.nodes} == {NodeState.IDLE}


def test_errors_in_the_midst_are_passed_over_and_an_error_alone_is_no_empty_queue(tmp_path: Path) -> None:
    row = "                12     main      cfd      ada  R       1:00      2 n[1-2]\n"
    found = read(tmp_path, squeue=f"{SQUEUE}slurm: error: x\nsqueue: error: Invalid user id 7\n{row}")
    assert [job.id for job in found.jobs] == ["12"]
    with pytest.raises(InvalidInput, match=r"squeue\.txt:1: .*Unable to contact"):
        read(tmp_path, squeue="slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(InvalidInput, match=r"squeue\.txt:1: .*Unable to contact"):
        read(tmp_path, squeue="squeue: error: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(InvalidInput, match=r"scontrol-show-node\.txt:1: .*Unable to contact"):
        read(tmp_path, nodes="scontrol: error: Unable to contact slurm controller (connect failure)\n")
    found = read(tmp_path, squeue=SQUEUE, nodes=f"scontrol: error: lua: x\n{TWO_NODES}")
    assert len(found.nodes) == 2


def test_an_error_before_json_is_passed_over(tmp_path: Path) -> None:
    found = read(tmp_path, squeue_json='squeue: error: x\n{"jobs": [{"job_id": 1, "job_state": "RUNNING"}]}')
    assert found.jobs[0].id == "1"


def test_a_byte_order_mark_is_no_part_of_the_heading(tmp_path: Path) -> None:
    found = read(tmp_path, squeue=f"\ufeff{PIPED}12|main|x|ada|RUNNING|2|n[1-2]\n")
    assert found.jobs[0].id == "12"


def test_two_clusters_in_one_file_are_refused(tmp_path: Path) -> None:
    table = "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\nmain*        up   infinite      2   idle n[1-2]\n"
    with pytest.raises(InvalidInput, match=r"alpha.*beta.*one cluster"):
        read(tmp_path, sinfo=f"CLUSTER: alpha\n{table}\nCLUSTER: beta\n{table}")


PIPED = "JOBID|PARTITION|NAME|USER|STATE|NODES|NODELIST(REASON)\n"


@pytest.mark.parametrize("name", ["crazy|name", "|", "a|b|RUNNING|2|n7", "12|main|x|ada|RUNNING|2|n9", "a b|"])
def test_a_name_may_hold_the_separator(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, squeue=f"{PIPED}12|main|{name}|ada|RUNNING|2|n[1-2]\n")
    job = found.jobs[0]
    assert (job.id, job.state, job.user, job.nodes) == ("12", SlurmState.RUNNING, "ada", ("n1", "n2"))
    assert job.name == name


def test_rows_whose_columns_cannot_be_told_are_refused_by_line(tmp_path: Path) -> None:
    two_free = "JOBID|NAME|COMMENT|STATE|NODELIST\n12|a|b|c|RUNNING|n1\n"
    with pytest.raises(InvalidInput, match=r"squeue\.txt:2: .*'\|'"):
        read(tmp_path, squeue=two_free)
    with pytest.raises(InvalidInput, match=r"squeue\.txt:3: "):
        read(tmp_path, squeue=f"{PIPED}12|main|x|ada|RUNNING|2|n1\n13|main|x|ada|RUNN")
    no_heading = "12|main|x|ada|RUNNING|2|n1\n13|main|x|y|ada|RUNNING|2|n2\n14|main|x|ada|RUNNING|2|n1\n"
    with pytest.raises(InvalidInput, match=r"squeue\.txt:2: "):
        read(tmp_path, squeue=no_heading)


@pytest.mark.parametrize(
    ("cut", "state"),
    [
        ("CONFIGUR", SlurmState.CONFIGURING), ("COMPLETI", SlurmState.COMPLETING), ("COMPLETE", SlurmState.COMPLETED),
        ("SUSPENDE", SlurmState.SUSPENDED), ("NODE_FAI", SlurmState.NODE_FAIL),
        ("OUT_OF_M", SlurmState.OUT_OF_MEMORY),
        ("PREEMPTE", SlurmState.PREEMPTED), ("CANCELLE", SlurmState.CANCELLED), ("SPECIAL_", SlurmState.PENDING),
        ("BOOT_FAI", SlurmState.NODE_FAIL), ("SIGNALIN", SlurmState.RUNNING), ("STAGE_OU", SlurmState.COMPLETING),
        ("RUNNING", SlurmState.RUNNING), ("XYZ_FAIL", SlurmState.UNKNOWN), ("COMPLET", SlurmState.UNKNOWN),
    ],
)  # fmt: skip
def test_states_that_squeue_cut_to_eight_letters(tmp_path: Path, cut: str, state: SlurmState) -> None:
    row = f"                36     main     wrap     root {cut:>8}       0:03 365-00:00:00      2 n[1-2]\n"
    job = read(tmp_path, squeue=SQUEUE_L + row).jobs[0]
    assert (job.state, job.nodes, job.time_limit_s) == (state, ("n1", "n2"), 365 * 86400.0)


@pytest.mark.parametrize(
    ("cut", "state"),
    [
        ("powering_do", NodeState.POWERED_DOWN), ("powered_dow", NodeState.POWERED_DOWN),
        ("reboot_issu", NodeState.MAINT),
        ("reboot_requ", NodeState.MAINT), ("maintenance", NodeState.MAINT), ("allocated+", NodeState.ALLOCATED),
        ("powering_", NodeState.UNKNOWN), ("some_new_st", NodeState.UNKNOWN),
    ],
)  # fmt: skip
def test_states_that_sinfo_cut_to_eleven_letters(tmp_path: Path, cut: str, state: NodeState) -> None:
    table = f"NODELIST   NODES PARTITION       STATE CPUS\nn1             1     main* {cut:>11} 8\n"
    assert read(tmp_path, sinfo=table).nodes[0].state is state


@pytest.mark.parametrize(
    ("row", "name", "reason"),
    [
        ("            123456      main               ada PD       0:00      2 (ReqNodeNotAvail, UnavailableNodes:n1)",
         "", "ReqNodeNotAvail, UnavailableNodes:n1"),
        ("            123456      main    a job      ada PD       0:00      2 (ReqNodeNotAvail, UnavailableNodes:n1)",
         "a job", "ReqNodeNotAvail, UnavailableNodes:n1"),
        ("            123456      main               ada PD       0:00      2 (Priority)", "", "Priority"),
        ("            123456      main      cfd      ada PD       0:00      2 (Nodes required for job are DOWN)",
         "cfd", "Nodes required for job are DOWN"),
        ("            123456      main               ada PD       0:00      2 ", "", ""),
        ("            123456      main    a b c      ada PD       0:00      2 ", "a b c", ""),
    ],
)  # fmt: skip
def test_empty_names_and_reasons_of_several_words(tmp_path: Path, row: str, name: str, reason: str) -> None:
    job = read(tmp_path, squeue=f"{SQUEUE}{row}\n").jobs[0]
    assert (job.id, job.user, job.state, job.node_count) == ("123456", "ada", SlurmState.PENDING, 2)
    assert (job.name, job.reason, job.nodes) == (name, reason, ())


@pytest.mark.parametrize("char", ["\t", "\n", "\x1b", "\x00", "\x7f", "\r"])
def test_control_characters_in_json(tmp_path: Path, char: str) -> None:
    text = f'{{"jobs": [{{"job_id": 1, "job_state": ["RUNNING"], "name": "a{char}b", "nodes": "n1"}}]}}'
    job = read(tmp_path, squeue_json=text).jobs[0]
    assert (job.nodes, job.name) == (("n1",), f"a{char}b")


def test_json_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="JSON"):
        read(tmp_path, squeue_json='{"jobs": [{"job_id": 1, "job_')


def reservation(start: str, end: str) -> str:
    return (
        f"ReservationName=maint StartTime={start} EndTime={end} Duration=10:00:00 Nodes=n1 NodeCnt=1 CoreCnt=8 "
        "Features=(null) PartitionName=(null) Flags=MAINT Users=root Groups=(null) Accounts=(null) State=INACTIVE\n"
    )


@pytest.mark.parametrize(
    "blank", ["2026-12-01 08:00", "2026-12-01 08:00:00", "2026-12-01T08:00", "2026-12-01T08:00:00"]
)
def test_times_in_forms_of_iso_are_read(tmp_path: Path, blank: str) -> None:
    found = read(tmp_path, reservations=reservation(blank, blank.replace("08", "18"))).reservations[0]
    begin = time.mktime((2026, 12, 1, 8, 0, 0, 0, 0, -1))
    assert (found.start, found.end, found.nodes) == (begin, begin + 36000, ("n1",))


@pytest.mark.parametrize("form", ["01.12.2026 08:00", "12/01/26 08:00", "Tomorr 08:00", "01 Dec 08:00", "Mon 08:00"])
def test_other_times_are_refused_with_the_cause(tmp_path: Path, form: str) -> None:
    with pytest.raises(InvalidInput, match="unset SLURM_TIME_FORMAT"):
        read(tmp_path, reservations=reservation(form, form))
    job = f"JobId=1 JobName=x UserId=ada(7) JobState=PENDING StartTime={form} Partition=main NodeList=(null)\n"
    with pytest.raises(InvalidInput, match="unset SLURM_TIME_FORMAT"):
        read(tmp_path, squeue=job)
    table = f"JOBID|STATE|START_TIME|SCHEDNODES\n1|PENDING|{form}|n1\n"
    with pytest.raises(InvalidInput, match=r"squeue\.txt:2: .*unset SLURM_TIME_FORMAT"):
        read(tmp_path, squeue=table)


def test_arrays_with_a_throttle(tmp_path: Path) -> None:
    row = "  2653343_[3-4%2]      defq    array      ada PD       0:00      1 (JobArrayTaskLimit)\n"
    found = read(tmp_path, squeue=SQUEUE + row).jobs
    assert [(job.array_id, job.task_count, job.state) for job in found] == [(2653343, 2, SlurmState.PENDING)]


def test_the_reported_ones_are_read_or_refused_as_their_notes_expect() -> None:
    seven = reported("02-padding-outgrown-squeue").jobs[0]
    assert (seven.id, len(seven.nodes)) == ("7", 100)
    assert len(reported("18-sinfo-error-line-first").nodes) == 2
    assert reported("22-squeue-name-with-pipe").jobs[0].nodes == ("n1", "n2")
    cut = reported("24-squeue-l-cut-states").jobs
    assert [job.state for job in cut] == [SlurmState.CONFIGURING, SlurmState.COMPLETING]
    assert cut[0].time_limit_s == 365 * 86400.0
    pending = reported("26-squeue-empty-name-two-word-reason").jobs[0]
    assert (pending.user, pending.state) == ("ada", SlurmState.PENDING)
    assert reported("32-json-control-character").jobs[0].nodes == ("n1",)
    states = {node.name: str(node.state) for node in reported("36-states-json").nodes}
    wanted = {"n0": "down", "n3": "powered_down", "n4": "down", "n2": "mixed", "n6": "unknown", "n16": "unknown"}
    assert wanted.items() <= states.items()
    array = reported("40-array-throttle-and-ranges").jobs
    assert [(job.task_count, job.state) for job in array] == [(2, SlurmState.PENDING)]
    assert reported("46-reservation-time-format").reservations[0].nodes == ("n1",)
