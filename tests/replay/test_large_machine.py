"""A year of a large machine has tens of millions of changes: tables are made some nodes at a time, counts once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from numpy.typing import NDArray

from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.options import Options
from malletrain.replay.report.frames import holes, node_map, rows_of
from malletrain.replay.result import PilotTable
from malletrain.replay.run import Replay, replay
from malletrain.replay.traces.trace import BUSY, IDLE, Account
from tests.replay.small import START, job
from tests.replay.test_daemon_rules import SHIPPED, TICK_S, busy_machine
from tests.replay.test_parts import AUTO

NODES, STEPS = 512, 4096
JOBS = [job(1, most=8), job(2, most=8)]


def rows_at_once(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(import_module("malletrain.replay.cluster_trace"), "ROWS_AT_ONCE", rows)
    monkeypatch.setattr("malletrain.replay.report.frames.ROWS_AT_ONCE", rows)


def answered(machine: ClusterTrace) -> Replay:
    return replay(machine, JOBS, [AUTO], Options.of_daemon(SHIPPED, TICK_S), processes=1)


def large() -> Replay:
    """The answer for a small machine, put on one whose nodes change two million times, with a pilot in each hole."""
    answer = answered(busy_machine(1))
    states = np.arange(STEPS)[:, None] + np.arange(NODES)[None, :]
    state = np.where(states % 2 == 0, np.int8(IDLE), np.int8(BUSY)).ravel()
    node = np.tile(np.arange(NODES, dtype=np.int32), STEPS)
    time: NDArray[np.float64] = np.linspace(START, START + 60.0 * (STEPS - 1), STEPS)
    names, end = tuple(f"n{i:03d}" for i in range(NODES)), START + 60.0 * STEPS
    first = np.arange(STEPS + 1) * NODES
    machine = ClusterTrace(Account("test", "node events", 0, 0), names, START, end, time, first, node, state)
    none = np.zeros(STEPS, np.int32)
    pilots = PilotTable(node[state == IDLE], none + NODES // 2, time, time + 60.0, none, none.astype(np.int8))
    result = answer.results["auto"]
    result = replace(result, log=replace(result.log, pilots=pilots))
    return replace(answer, trace=machine, results={"auto": result})


@pytest.mark.parametrize(
    "table", [holes, lambda answer: node_map(answer, "auto", NODES // 32)], ids=["holes", "node_map"]
)
def test_a_table_of_the_report_takes_less_memory_than_the_trace(
    table: Callable[[Replay], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_at_once(monkeypatch, 1 << 16)
    answer = large()
    trace = answer.trace
    tracemalloc.start()
    try:
        table(answer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < trace.node.nbytes + trace.state.nbytes


def test_holes_are_the_same_however_many_nodes_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = answered(busy_machine(2))
    whole = rows_of(holes(answer))
    for rows in (1, 7, 64):
        rows_at_once(monkeypatch, rows)
        assert len(list(answer.trace.interval_blocks())) > 1
        for mine, all_at_once in zip(rows_of(holes(answer)), whole, strict=True):
            assert mine == pytest.approx(all_at_once)
    assert sum(row[3] for row in whole) > 0


def test_what_is_idle_is_counted_once_and_nobody_can_change_it_for_others() -> None:
    machine = busy_machine(3)
    idle, down = machine.counts
    assert machine.counts[0] is idle and machine.counts[1] is down
    with pytest.raises(ValueError, match="read-only"):
        idle[0] = 1
    other = replace(machine, state=np.full_like(machine.state, BUSY))
    assert other.counts[0].max() == 0 < idle.max()
