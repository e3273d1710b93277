"""From records to a machine: node lists rule, else a stated rule places; every instant adds up."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput
from malletrain.replay.assumed_placement import AssumedPlacement, overcommitted, place_jobs
from malletrain.replay.cluster_trace import ClusterTrace, Window, cluster_trace
from malletrain.replay.traces import JobRecords, read_trace
from malletrain.replay.traces.trace import BUSY, DOWN, IDLE, Account
from tests.messages import says
from tests.replay.small import START, changes, intervals, traces


def records(
    rows: list[tuple[float, float, int]], *, nodes: int | None = None, per_node: int = 1, procs: bool = True
) -> JobRecords:
    """A log without node lists: (start, end, processors or nodes)."""
    start, end, width = (np.array(column) for column in zip(*rows, strict=True))
    return JobRecords(
        account=Account("test", "SWF", len(rows), len(rows)),
        submit=START + start,
        start=START + start,
        end=START + end.astype(float),
        limit=np.full(len(start), np.nan),
        count=(width * (not procs)).astype(np.int32),
        procs=(width * procs).astype(np.int32),
        node_count=nodes,
        procs_per_node=per_node,
        last_seen=float(START + np.max(end[np.isfinite(end)])),
    )


def busy_seconds(machine: ClusterTrace) -> float:
    idle, down = machine.counts
    lasts = np.diff(np.append(machine.time, machine.end))
    return float(((len(machine.nodes) - idle - down) * lasts).sum())


def test_jobs_with_node_lists_keep_them(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "JobID|Start|End|NodeList\n1|1700000000|1700000100|a\n2|1700000050|1700000200|a\n3|1700000300|1700000400|b\n"
        "4|1700000100|Unknown|b\n"
    )
    machine = cluster_trace(read_trace(path), Window(start=1_700_000_000.0, end=1_700_000_400.0))
    holes = intervals(machine)
    assert [machine.nodes[n] for n in holes.node] == ["a", "b"]
    assert (holes.begin - 1.7e9).tolist() == [200.0, 0.0]
    assert (holes.end - 1.7e9).tolist() == [400.0, 100.0]
    assert holes.cut.tolist() == [True, True]


def test_nodes_that_were_down_are_not_idle(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("JobID|Start|End|NodeList\n1|1700000000|1700000100|n000\n2|1700000300|1700000400|n000\n")
    outages = changes([(150.0, 0, DOWN), (180.0, 0, DOWN), (200.0, 0, IDLE), (250.0, 0, IDLE)], 1)
    machine = cluster_trace(read_trace(path), Window(end=1_700_000_400.0), outages)
    assert (intervals(machine).end - intervals(machine).begin).tolist() == [50.0, 50.0]


def test_a_range_of_nodes_and_a_window() -> None:
    log = changes([(0.0, n, IDLE) for n in range(10)] + [(100.0, 0, BUSY)], 10)
    machine = cluster_trace(log, Window(first_node=2, node_count=3, start_after=10.0, end_after=60.0))
    assert machine.nodes == ("n002", "n003", "n004")
    assert (machine.start, machine.end) == (START + 10.0, START + 60.0)
    assert machine.counts[0].tolist() == [3]
    for window in (
        Window(node_count=11),
        Window(start=START + 50, end=START + 50),
        Window(start=START + 100, end=START + 200),
    ):
        with pytest.raises(InvalidInput):
            cluster_trace(log, window)


def test_an_inconsistent_log_is_said_so_with_its_share_of_time() -> None:
    log = records([(0, 100, 3), (50, 100, 2), (100, 200, 4)], nodes=4)
    machine = cluster_trace(log, Window())
    assert any(says(text, "INCONSISTENT LOG", "25.00%") for text in machine.warnings)


def test_without_a_machine_size_the_peak_is_taken() -> None:
    machine = cluster_trace(records([(0, 100, 3), (50, 200, 2), (200, 300, 4)]), Window())
    assert len(machine.nodes) == 5
    assert any("--nodes" in text for text in machine.warnings)


def test_small_jobs_share_nodes_and_large_ones_do_not() -> None:
    _, node = place_jobs(records([(0, 100, 8), (1, 100, 8), (2, 100, 1), (3, 100, 16)], nodes=4, per_node=16), 4, 16,
                        AssumedPlacement.FIRST_FIT, 0)  # fmt: skip
    assert node.tolist() == [0, 0, 1, 2]


@given(
    rows=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 300), st.integers(1, 40)), min_size=1, max_size=30),
    rule=st.sampled_from(AssumedPlacement),
    per_node=st.sampled_from([1, 4]),
)
def test_placement_never_gives_a_node_twice(
    rows: list[tuple[int, int, int]], rule: AssumedPlacement, per_node: int
) -> None:
    log = records([(float(a), float(a + d), w) for a, d, w in rows], nodes=12, per_node=per_node)
    first, nodes = place_jobs(log, 12, per_node, rule, 3)
    used: dict[tuple[int, int], int] = {}
    moments = sorted({a for a, _, _ in rows})
    for i, (a, d, w) in enumerate(rows):
        mine = nodes[first[i] : first[i + 1]].tolist()
        assert len(set(mine)) == len(mine) <= -(-w // per_node)
        for moment in moments:
            if a <= moment < a + d:
                for node in mine:
                    used[moment, node] = used.get((moment, node), 0) + min(w, per_node)
    assert max(used.values(), default=0) <= per_node
    assert nodes.tolist() == place_jobs(log, 12, per_node, rule, 3)[1].tolist()
    if overcommitted(log, 12, per_node)[0] == 0 and per_node == 1:
        machine = cluster_trace(log, Window(start=START + moments[0], end=START + 900, placement=rule))
        assert busy_seconds(machine) == pytest.approx(sum(d * w for _, d, w in rows))


@given(traces())
def test_idle_intervals_are_the_idle_time(machine: ClusterTrace) -> None:
    holes = intervals(machine)
    idle, down = machine.counts
    lasts = np.diff(np.append(machine.time, machine.end))
    assert float((holes.end - holes.begin).sum()) == pytest.approx(float(idle @ lasts), abs=1e-3)
    assert ((idle >= 0) & (down >= 0) & (idle + down <= len(machine.nodes))).all()
    assert (holes.end > holes.begin).all()


@pytest.mark.data
def test_summit_is_as_its_publishers_counted(data_dir: Path) -> None:
    machine = cluster_trace(read_trace(data_dir / "bftrainer" / "summit_node_events.csv.gz"), Window())
    holes = intervals(machine)
    closed = (holes.end - holes.begin)[~holes.cut]
    assert np.quantile(closed, [0.05, 0.25, 0.5, 0.75, 0.95]).tolist() == [81, 162, 475, 1397, 4723]
    assert float(closed.mean()) == pytest.approx(1192, abs=1)
    share = float((holes.end - holes.begin).sum()) / machine.seconds / len(machine.nodes)
    assert share == pytest.approx(0.0827, abs=5e-5)
    assert math.isclose(machine.seconds / 86_400, 14.92, abs_tol=0.01)


@pytest.mark.data
def test_theta_placed_first_fit_has_the_derived_holes(data_dir: Path) -> None:
    machine = cluster_trace(read_trace(data_dir / "swf" / "ALCF-Theta-2023.asis.swf.gz"), Window())
    closed = intervals(machine)
    length = (closed.end - closed.begin)[~closed.cut]
    assert np.quantile(length, [0.05, 0.25, 0.5]).tolist() == pytest.approx([64, 109, 148], abs=2)
    assert not any("INCONSISTENT" in text for text in machine.warnings)
