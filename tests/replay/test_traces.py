"""Readers: told apart by content, every oddity either read right or counted, no line lost in silence."""

from __future__ import annotations

import gzip
import math
import resource
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput, MalletrainError
from malletrain.replay.traces import JobRecords, NodeChanges, read_machine, read_trace
from malletrain.replay.traces import source as source_module
from malletrain.replay.traces.events import read_outages
from malletrain.replay.traces.trace import BUSY, DOWN, IDLE
from malletrain.replay.traces.words import expand, time_parser
from malletrain.slurm.formats.hostlist import MAX_NODES
from tests.messages import naming, says

HEADER = "JobID|JobIDRaw|State|Submit|Start|End|NodeList|AllocNodes"


def write(tmp_path: Path, text: str | bytes, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def jobs_of(tmp_path: Path, text: str | bytes) -> JobRecords:
    trace = read_trace(write(tmp_path, text))
    assert isinstance(trace, JobRecords)
    return trace


def sacct(tmp_path: Path, *rows: str, header: str = HEADER) -> JobRecords:
    return jobs_of(tmp_path, "\n".join([header, *rows]) + "\n")


def nodes_of(jobs: JobRecords, i: int) -> list[str]:
    return [jobs.nodes[n] for n in jobs.node[jobs.first[i] : jobs.first[i + 1]]]


# -- node events ----------------------------------------------------------------------------------------------------


def test_node_events_in_any_order_of_columns_and_time(tmp_path: Path) -> None:
    trace = read_trace(
        write(
            tmp_path,
            "state,node,time,why\nidle,b,2021-02-10T00:00:20,x\nbusy,a,2021-02-10T00:00:10,y\ndown*,a,1612915230,z\n",
        )
    )
    assert isinstance(trace, NodeChanges)
    assert [trace.nodes[n] for n in trace.node] == ["a", "b", "a"]
    assert trace.state.tolist() == [BUSY, IDLE, DOWN]
    assert np.diff(trace.time).tolist() == [10.0, 10.0]
    assert says(trace.account.warnings[0], "order")


def test_bad_node_events_are_counted_with_their_first_line(tmp_path: Path) -> None:
    at = "2021-02-10T00:00:10"
    text = f"time,node,state\n{at},a,idle\nrubbish\n,a,idle\n{at},a,odd\n{at},,idle\ntime,node,state\n"
    account = read_trace(write(tmp_path, text)).account
    assert account.skipped == {
        "too few fields": 1, "unreadable time": 1, "unknown state": 1, "no node name": 1, "another header": 1,
    }  # fmt: skip
    assert account.first_skipped["unknown state"] == 5
    assert account.records == 1


# -- SWF ------------------------------------------------------------------------------------------------------------


def swf_row(submit: float, wait: float, run: float, procs: float, requested: float = -1) -> str:
    return f"1 {submit} {wait} {run} {procs} -1 -1 {requested} -1 -1 1 1 1 -1 -1 -1 -1 -1"


def test_swf_traps(tmp_path: Path) -> None:
    text = "\n".join(
        [
            "; UnixStartTime: 1000000", "; MaxNodes: 10", ";MaxProcs: 165",
            swf_row(100, 5, 50, 16), swf_row(10, -1, 20, -1, 8), swf_row(0, 1, 0, 4), swf_row(0, 1, -1, 4),
            swf_row(0, 1, 9, -1), swf_row(-5, 1, 9, 1), swf_row(5, -7, 9, 1), "1 2 3", "1 a b c d", "1 nan 1 1 1",
            "; MaxNodes: 12", swf_row(1e300, 1, 1, 1),
        ]
    )  # fmt: skip
    jobs = jobs_of(tmp_path, text)
    assert jobs.start.tolist() == [1000105.0, 1000010.0]
    assert jobs.end.tolist() == [1000155.0, 1000030.0]
    assert jobs.procs.tolist() == [16, 8]
    assert (jobs.node_count, jobs.procs_per_node) == (11, 16)
    assert sum(jobs.account.skipped.values()) == 9
    said = " ".join(jobs.account.warnings)
    assert all(says(said, each) for each in ("wait time", "allocated processors", "second MaxNodes"))


def test_swf_with_tabs_and_absolute_times_has_no_offset(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, "; UnixStartTime: 5\n7\t1672529301\t71\t3632\t8\n")
    assert jobs.start.tolist() == [1672529372.0]
    assert jobs.node_count is None


def test_swf_with_words_after_its_eighteen_fields_is_read(tmp_path: Path) -> None:
    row = "1 100 5 50 16 -1 -1 16 3600 -1 1 1 1 1 1 1 -1 -1 r1i0n[3-4] COMPLETED gpu=2"
    jobs = jobs_of(tmp_path, row + "\n" + row.replace("1 100", "2 200", 1) + "\n")
    assert jobs.start.tolist() == [105.0, 205.0]
    assert jobs.limit.tolist() == [3600.0, 3600.0]
    said = " ".join(jobs.account.warnings)
    assert says(said, "2 rows", "18 fields")


def test_swf_that_does_not_say_its_nodes_is_counted_in_processors_and_says_so(tmp_path: Path) -> None:
    row = swf_row(100, 5, 50, 16)
    for header in ("", "; MaxProcs: 64\n", "; MaxNodes: 64\n"):
        assert says(" ".join(jobs_of(tmp_path, header + row).account.warnings), "in processors")
    both = jobs_of(tmp_path, "; MaxNodes: 4\n; MaxProcs: 64\n" + row)
    assert not says(" ".join(both.account.warnings), "in processors")


# -- sacct ----------------------------------------------------------------------------------------------------------


def test_sacct_rows_of_every_kind(tmp_path: Path) -> None:
    jobs = sacct(
        tmp_path,
        "10|10|COMPLETED|2025-03-20T01:00:00|2025-03-20T02:00:00|2025-03-20T03:00:00|n[1-3]|3",
        "10.batch|10.batch|COMPLETED|2025-03-20T01:00:00|2025-03-20T02:00:00|2025-03-20T03:00:00|n1|1",
        "11_4|15|CANCELLED by 1000|2025-03-20T01:00:00|2025-03-20T02:00:00|2025-03-20T02:30:00|n4|1",
        "11_[5-9]|11|PENDING|2025-03-20T01:00:00|Unknown|Unknown|None assigned|",
        "12+1|13|RUNNING|2025-03-20T01:00:00|2025-03-20T02:10:00|Unknown|n5|1",
        "14|14|CANCELLED|2025-03-20T01:00:00|None|2025-03-20T02:00:00|None assigned|0",
        "16|16|COMPLETED|2025-03-20T01:00:00|2025-03-20T02:00:00|2025-03-20T01:00:00|n4|1",
        "17|17|FAILED|2025-03-20T01:00:00|2025-03-20T02:00:00|2025-03-20T02:00:00|n4|1",
        "18|18|COMPLETED|2025-03-20T01:00:00|2025-03-20T99:00:00|2025-03-20T02:00:00|n4|1",
        "19|19|COMPLETED|2025-03-20T01:00:00|2025-03-20T02:00:00|2025-03-20T02:30:00|n[1|1",
    )
    assert [nodes_of(jobs, i) for i in range(3)] == [["n1", "n2", "n3"], ["n4"], ["n5"]]
    assert jobs.end[2] == math.inf
    assert jobs.account.skipped == {
        "a step": 1, "never started": 2, "ends before it starts": 1, "ran for 0 s": 1, "unreadable time": 1,
        "unreadable node list": 1,
    }  # fmt: skip


def test_requeued_and_resized_jobs_have_a_record_for_each_allocation(tmp_path: Path) -> None:
    jobs = sacct(
        tmp_path,
        "10|10|NODE_FAIL|2025-03-20T01:00:00|2025-03-20T02:00:00|2025-03-20T03:00:00|n1|1",
        "10|10|RESIZING|2025-03-20T01:00:00|2025-03-20T04:00:00|2025-03-20T05:00:00|n[1-2]|2",
        "10|10|COMPLETED|2025-03-20T01:00:00|2025-03-20T05:00:00|2025-03-20T06:00:00|n1|1",
    )
    assert [nodes_of(jobs, i) for i in range(3)] == [["n1"], ["n1", "n2"], ["n1"]]


def test_a_job_that_stands_in_two_days_logs_counts_once_with_the_end_that_is_known(tmp_path: Path) -> None:
    jobs = sacct(
        tmp_path,
        "10|10|RUNNING|2025-03-20T01:00:00|2025-03-20T02:00:00|Unknown|n1|1",
        HEADER,
        "10|10|COMPLETED|2025-03-20T01:00:00|2025-03-20T02:00:00|2025-03-21T03:00:00|n1|1",
    )
    assert jobs.end.tolist() == [jobs.start[0] + 25 * 3600]
    assert jobs.account.skipped == {"another header": 1, "repeats a job": 1}


@pytest.mark.parametrize("delimiter", ["|", "|#", "\t", ",", ";", "||"])
def test_any_delimiter_and_the_trailing_one(tmp_path: Path, delimiter: str) -> None:
    text = "\n".join([HEADER, "10|10|COMPLETED|2025-03-20T01:00:00|2025-03-20T02:00:00|2025-03-20T03:00:00|n1|1"])
    jobs = jobs_of(tmp_path, text.replace("|", delimiter).replace("\n", delimiter + "\n") + delimiter)
    assert nodes_of(jobs, 0) == ["n1"]


def test_names_that_hold_the_delimiter_or_line_breaks(tmp_path: Path) -> None:
    header = "JobID|State|Start|End|NodeList|JobName|SubmitLine"
    times = "COMPLETED|2025-03-20T02:00:00|2025-03-20T03:00:00"
    jobs = sacct(
        tmp_path,
        f"1|{times}|n1|a|b|sbatch x",
        f"2|{times}|n2|c|sbatch x | tee y",
        f"3|{times}|n3|d|sbatch --wrap='a",
        "b",
        "c'",
        f"4|{times}|n4|x",
        "y|sbatch",
        header=header,
    )
    assert [nodes_of(jobs, i) for i in range(len(jobs.start))] == [["n1"], ["n2"], ["n3"], ["n4"]]


def test_columns_behind_a_name_that_holds_the_delimiter_are_counted_from_the_right(tmp_path: Path) -> None:
    times = "COMPLETED|2025-03-20T02:00:00|2025-03-20T03:00:00"
    jobs = sacct(tmp_path, f"1|a|b|{times}|n1", f"2|c|{times}|n2", header="JobID|JobName|State|Start|End|NodeList")
    assert [nodes_of(jobs, i) for i in range(2)] == [["n1"], ["n2"]]
    header = "JobID|JobName|State|Start|End|NodeList|SubmitLine"  # which of the two texts holds it is not known
    jobs = sacct(tmp_path, f"1|a|b|{times}|n1|sbatch", f"2|c|{times}|n2|sbatch", header=header)
    assert nodes_of(jobs, 0) == ["n2"] and jobs.account.skipped == {"more separators than columns": 1}


def test_time_limits(tmp_path: Path) -> None:
    header = "JobID|State|Start|End|NodeList|TimelimitRaw|Priority"
    times = "COMPLETED|2025-03-20T02:00:00|2025-03-20T03:00:00"
    jobs = sacct(tmp_path, f"1|{times}|n1|90|4294", f"2|{times}|n1|UNLIMITED|x", header=header)
    assert jobs.limit[0] == 5400.0 and math.isnan(jobs.limit[1])


def test_an_array_that_waits_and_one_that_runs(tmp_path: Path) -> None:
    ran = "COMPLETED|2025-03-20T01:00:00|2025-03-20T02:00:00|2025-03-20T03:00:00"
    jobs = sacct(
        tmp_path,
        f"7_1|8|{ran}|n1|1",
        f"7_[2-5%2]|7|{ran.replace('COMPLETED', 'PENDING')}|None assigned|",
        "7_[6-9|7|PENDING|2025-03-20T01:00:00|Unknown|Unknown|None assigned|",
        f"7_1.extern|8.extern|{ran}|n1|1",
        f"9+0|9|{ran}|n2|1",
        f"9+1|10|{ran}|n3|1",
    )
    assert [nodes_of(jobs, i) for i in range(len(jobs.start))] == [["n1"], ["n2"], ["n3"]]
    assert jobs.account.skipped == {"never started": 2, "a step": 1}


def test_undecodable_bytes_do_not_lose_the_row(tmp_path: Path) -> None:
    row = b"1|a\xff\xfe\xe9|COMPLETED|2025-03-20T02:00:00|2025-03-20T03:00:00|n1\n"
    assert nodes_of(jobs_of(tmp_path, b"JobID|JobName|State|Start|End|NodeList\n" + row), 0) == ["n1"]


def test_a_partition_can_be_ignored(tmp_path: Path) -> None:
    text = "JobID|Partition|Start|End|NodeList\n1|harvest|1700000000|1700000100|n1\n2|main|1700000000|1700000100|n2\n"
    trace = read_trace(write(tmp_path, text), ignore_partitions=frozenset({"harvest"}))
    assert trace.nodes == ("n2",)
    assert trace.account.skipped == {"of an ignored partition": 1}


def test_a_header_without_times_names_what_is_missing_and_the_mend(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r":1: .* start, end.*--how"):
        sacct(tmp_path, "1|0:0", header="JobID|ExitCode")


def test_outages(tmp_path: Path) -> None:
    rows = ["|1700000000|Unknown||Cluster", "n[1-2]|1700000000|1700000100|DOWN|a", "n1|1700000200|Unknown|DRAIN|b"]
    outages = read_outages(write(tmp_path, "\n".join(["NodeName|TimeStart|TimeEnd|State|Reason", *rows])))
    assert outages.nodes == ("n1", "n2")
    assert outages.state.tolist().count(DOWN) == 3
    assert outages.state.tolist().count(IDLE) == 2


# -- hostile input --------------------------------------------------------------------------------------------------


def test_a_gzip_file_cut_off_says_so(tmp_path: Path) -> None:
    rows = "".join(f"{1700000000 + i},n{i * 7919 % 1000},idle\n" for i in range(50_000))
    whole = gzip.compress(("time,node,state\n" + rows).encode())
    with pytest.raises(InvalidInput, match=r":\d+: .*gzip"):
        read_trace(write(tmp_path, whole[: len(whole) // 2]))
    with pytest.raises(InvalidInput, match=r":\d+: .*gzip"):
        read_trace(write(tmp_path, whole[:20]))


def test_a_line_without_end_is_never_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"time,node,state\n1700000000,n1,idle\n")
        for _ in range(200):
            file.write(b"x" * (1 << 20))
        file.write(b"\n1700000100,n1,busy\n")
    tracemalloc.start()
    trace = read_trace(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * source_module.MAX_LINE_BYTES
    assert trace.account.skipped == {"longer than 4 MiB": 1}
    assert trace.account.records == 2


@pytest.mark.nightly
def test_ten_gigabytes_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "long.gz"
    piece = gzip.compress(b"x" * (256 << 20), compresslevel=1)  # members of a gzip file may be put together
    with path.open("wb") as file:
        file.write(gzip.compress(b"; MaxNodes: 4\n1 0 0 10 1\n"))
        for _ in range(40):
            file.write(piece)
        file.write(gzip.compress(b"\n2 5 0 10 1\n"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trace = read_trace(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # kB
    assert (trace.account.records, trace.account.skipped) == (2, {"longer than 4 MiB": 1})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("JobID|State\n1|X\n".encode("utf-16"), "holds NUL bytes"),
        (b"BZh91AY", "--how"),
        (b"1879824|1879824|u|a|RUNNING|2025-09-12T14:06:12\n", "--noheader"),
        (b'{"jobs": []}', "--how"),
    ],
)
def test_what_is_not_read_says_what_to_do(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_trace(write(tmp_path, data))


_NEGATIVE = [
    # node events, SWF and sacct: each row but the last has a time before 1970, or a wait below 0.
    ("time,node,state\n-5,a,idle\n-1700000000,a,busy\n1969-12-31T23:00:00,a,idle\n1700000000,a,idle\n",
     {"unreadable time": 3}),
    ("\n".join([swf_row(-5, 1, 9, 1), swf_row(5, -7, 9, 1), swf_row(5, 1, -9, 1), swf_row(5, 1, 9, 1)]),
     {"negative submit time": 1, "negative wait": 1, "never ran (run time 0 or unknown)": 1}),
    ("JobID|State|Start|End|NodeList\n1|COMPLETED|-5|1700000000|a\n2|COMPLETED|1700000000|-5|a\n"
     "3|COMPLETED|1700000000|1969-01-01T00:00:00|a\n4|COMPLETED|1700000000|1700000100|a\n", {"unreadable time": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "skipped"), _NEGATIVE, ids=["events", "swf", "sacct"])
def test_negative_times_are_counted_and_never_last_for_ever(
    tmp_path: Path, text: str, skipped: dict[str, int]
) -> None:
    trace = read_trace(write(tmp_path, text))
    assert (trace.account.records, trace.account.skipped) == (1, skipped)
    if isinstance(trace, JobRecords):
        assert np.isfinite(trace.end).all()


def test_an_outage_with_a_negative_end_is_no_outage_for_ever(tmp_path: Path) -> None:
    rows = ["n1|1700000000|-5|DOWN|a", "n2|-5|1700000000|DOWN|a", "n3|1700000000|1700000100|DOWN|a"]
    outages = read_outages(write(tmp_path, "\n".join(["NodeName|TimeStart|TimeEnd|State|Reason", *rows])))
    assert outages.nodes == ("n3",)
    assert outages.account.skipped == {"unreadable": 2}


def test_logs_of_several_encodings_put_together(tmp_path: Path) -> None:
    def row(job: int, name: bytes) -> bytes:
        return f"{job}|".encode() + name + b"|COMPLETED|2025-03-20T02:00:00|2025-03-20T03:00:00|n1\r\n"

    text = b"\xef\xbb\xbfJobID|JobName|State|Start|End|NodeList\r\n"
    text += row(1, "Ærø".encode()) + row(2, "Ærø".encode("latin-1")) + row(3, "日本".encode("shift-jis"))
    text += "4|x|COMPLETED".encode("utf-16-le")
    account = jobs_of(tmp_path, text).account
    assert (account.records, account.skipped) == (3, {"holds NUL bytes": 1})


def test_a_second_header_in_another_order(tmp_path: Path) -> None:
    jobs = sacct(
        tmp_path, "1|2025-03-20T02:00:00|2025-03-20T03:00:00|n1", "NodeList;JobID;End;State;Start",
        "n2;2;2025-03-20T03:00:00;COMPLETED;2025-03-20T02:00:00", header="JobID|Start|End|NodeList",
    )  # fmt: skip
    assert [nodes_of(jobs, i) for i in range(len(jobs.start))] == [["n1"], ["n2"]]


@pytest.mark.parametrize(
    "text", ["n[1-99999999999]", "n[0-9999][0-9999]", "n[1-", "a b", "@all", "n[1-3]!n2", "n[5-1]", "*"]
)
def test_no_node_list_is_expanded_beyond_reason(text: str) -> None:
    assert expand(text) is None


def test_node_lists() -> None:
    assert expand("d[03,05-06]s1,k7") == ("d03s1", "d05s1", "d06s1", "k7")
    assert expand("None assigned") == ()
    assert expand("Unknown") == expand("(null)") == expand("") == ()
    assert len(expand(f"n[1-{MAX_NODES}]") or ()) == MAX_NODES


@pytest.mark.parametrize("text", ["", "\n\n", "\x00\x00", "hello\nworld\n", "{}", '{"jobs": 3}', '{"jobs": [{"a": 1'])
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_trace(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InvalidInput, match=naming(path, "read")):
            read_trace(path)


_line = st.one_of(
    st.text(max_size=60),
    st.from_regex(
        r"[0-9_.+\[\]-]{1,8}\|[0-9]{1,8}\|[A-Z]{1,9}\|[0-9T:-]{0,20}\|[0-9T:-]{0,20}\|[0-9]{0,11}\|n\[?[0-9,-]{0,8}\]?\|[0-9]?"
    ),
    st.from_regex(r"-?[0-9]{1,12}( -?[0-9]{1,12}){3,17}"),
    st.from_regex(r"[0-9T:-]{0,20},n[0-9],(idle|busy|down)"),
)


@given(
    head=st.sampled_from(
        ["", "time,node,state", HEADER, "; MaxNodes: 10", '{"jobs": [', "JobID|JobName|Start|End|NodeList"]
    ),
    lines=st.lists(_line, max_size=12),
    cut=st.integers(0, 400),
)
def test_no_input_breaks_a_reader(
    tmp_path_factory: pytest.TempPathFactory, head: str, lines: list[str], cut: int
) -> None:
    data = "\n".join([head, *lines]).encode("utf-8", "surrogatepass")[: cut or None]
    path = tmp_path_factory.mktemp("fuzz") / "trace"
    path.write_bytes(data)
    try:
        trace = read_trace(path)
    except MalletrainError as error:
        assert str(path) in str(error)
        return
    if isinstance(trace, JobRecords):
        assert (trace.end > trace.start).all()
        assert (trace.count + trace.procs > 0).all()
        assert np.isfinite(trace.start).all()
    else:
        assert (np.diff(trace.time) >= 0).all()
    assert trace.account.records == (len(trace.start) if isinstance(trace, JobRecords) else len(trace.time))


@given(st.binary(max_size=400))
def test_no_bytes_break_a_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "trace"
    path.write_bytes(data)
    try:
        read_trace(path)
    except MalletrainError as error:
        assert "\n" not in str(error)


# -- times ----------------------------------------------------------------------------------------------------------


def test_times() -> None:
    parse = time_parser()
    assert parse("2023-11-14T22:13:20") == parse("1700000000") == parse("2023-11-14 23:13:20+01:00") == 1.7e9
    for text in (
        "Unknown",
        "",
        "None",
        "1969-01-01T00:00:00",
        "9999-01-01T00:00:00",
        "-5",
        "nan",
        "inf",
        "2023-13-01T00:00:00",
    ):
        assert parse(text) is None


# -- real logs ------------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "records", "skipped"),
    [
        ("swf/CEA-Curie-2011-2.1-cln.swf.gz", 295_540, 17_286),
        ("swf/UniLu-Gaia-2014-1.swf.gz", 51_859, 128),
        ("swf/ALCF-Theta-2023.asis.swf.gz", 23_387, 0),
        ("swf/NASA-iPSC-1993-3.1-cln.swf.gz", 18_066, 173),
        ("sacct-joblogs/uio-fox-2025-03-20.sacct.psv.gz", 1_278, 2_562),
        ("slurm-outputs/ub-hpc/sacct_simple.log", 4, 0),
        ("slurm-outputs/meta-gcm/sample-sacct-multiple-multiline.txt", 2, 4),
    ],
)
def test_real_logs_lose_no_row(data_dir: Path, name: str, records: int, skipped: int) -> None:
    account = read_trace(data_dir / name).account
    assert (account.records, sum(account.skipped.values())) == (records, skipped)


@pytest.mark.data
def test_records_over_several_lines_read_as_their_joined_form(data_dir: Path) -> None:
    folder = data_dir / "slurm-outputs" / "meta-gcm"
    for stem in ("fake-line-break", "one-multiline", "multiple-multiline"):
        cut, whole = (read_trace(folder / f"sample-sacct-{stem}{end}.txt") for end in ("", "-expected"))
        assert isinstance(cut, JobRecords) and isinstance(whole, JobRecords)
        assert cut.start.tolist() == whole.start.tolist()
        assert cut.nodes == whole.nodes


def test_errors_that_were_saved_with_the_rows_are_passed_over(tmp_path: Path) -> None:
    text = "sacct: error: slurm_persist_conn_open: lost\nJobID|State|Start|End|NodeList\n"
    text += "1|COMPLETED|2026-10-01T00:00:00|2026-10-01T01:00:00|n1\nsacct: error: x\n"
    account = jobs_of(tmp_path, text.encode()).account
    assert (account.records, account.skipped) == (1, {"an error of Slurm's command": 2})
    with pytest.raises(InvalidInput, match=naming(1, "Slurm's command")):
        jobs_of(tmp_path, b"sacct: error: no access\n")


def test_jobs_of_two_clusters_are_refused(tmp_path: Path) -> None:
    """Their nodes have the same names, their jobs the same ids: they were taken for one machine of two nodes."""
    head = "Cluster|JobID|State|Submit|Start|End|NNodes|NodeList"
    row = "1|COMPLETED|2026-10-01T00:00:00|2026-10-01T00:00:00|2026-10-01T01:00:00|2|n[1-2]"
    assert len(sacct(tmp_path, f"alpha|{row}", header=head).start) == 1
    with pytest.raises(InvalidInput, match=r":3: .*alpha .* beta.*-M beta"):
        sacct(tmp_path, f"alpha|{row}", f"beta|{row}", header=head)
    events = tmp_path / "events"
    events.write_text(
        "Cluster|NodeName|TimeStart|TimeEnd\nalpha|n1|1700000000|1700000100\nbeta|n1|1700000000|1700000100\n"
    )
    with pytest.raises(InvalidInput, match=naming("alpha", "beta")):
        read_outages(events)


def test_times_in_a_form_of_the_sites_own_are_named_as_the_cause(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"3 unreadable time.*unset SLURM_TIME_FORMAT"):
        sacct(tmp_path, *("1|01 Oct 08:00|01 Oct 09:00|n1",) * 3, header="JobID|Start|End|NodeList")


@pytest.mark.parametrize("name", ["04-padding-outgrown-machine", "20-sacct-two-clusters", "38-sacct-odd-states"])
def test_the_reported_logs(name: str) -> None:
    folder = Path(__file__).resolve().parents[3] / "shared" / "cases" / "slurm" / name
    if not folder.is_dir():
        pytest.skip(f"no {folder} here")
    if name.startswith("04"):
        assert len(read_machine(folder / "nodes.sinfo")) == 120
    elif name.startswith("20"):
        with pytest.raises(InvalidInput, match=naming("alpha", "beta")):
            read_trace(folder / "jobs.sacct")
    else:
        jobs = read_trace(folder / "jobs.sacct")
        assert isinstance(jobs, JobRecords)
        assert list(np.diff(jobs.first)) == [4, 2, 4, 1, 1, 1]
        assert sum(jobs.account.skipped.values()) == 2
