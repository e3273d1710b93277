"""The main queue simulated: priority, EASY and conservative backfill, and what training makes of its plans."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput
from malletrain.replay import Engine, Options, Window, cluster_trace, parse_policy
from malletrain.replay.assumed_placement import AssumedPlacement
from malletrain.replay.main_queue import MainSchedule, Scheduled, simulate
from malletrain.replay.result import Cause
from malletrain.replay.sizer import PolicySizer
from malletrain.replay.traces import Account, JobRecords
from tests.replay.small import START, changes, job

#: submit, nodes, run time, time limit, priority
Row = tuple[float, int, float, float, float]


def records(rows: list[Row], nodes: int = 4) -> JobRecords:
    submit, count, run, limit, priority = (np.array(each, dtype=np.float64) for each in zip(*rows, strict=True))
    return JobRecords(
        Account("test", "sacct", len(rows), len(rows)), START + submit, START + submit, START + submit + run,
        count.astype(np.int32), np.zeros(len(rows), np.int32), (), np.empty(0, np.int64), np.empty(0, np.int32),
        nodes, 1, float(START + (submit + run).max()), limit, priority,
    )  # fmt: skip


def starts(how: MainSchedule, rows: list[Row], nodes: int = 4) -> list[float]:
    done = simulate(records(rows), nodes, 1, how, AssumedPlacement.FIRST_FIT, 0)
    return [float(at) for at in done.jobs.start - START]


#: Three of four nodes run until 100; then a wide job, a short narrow one, and a long narrow one.
QUEUE: list[Row] = [
    (0.0, 3, 100.0, 100.0, 0.0), (1.0, 4, 50.0, 50.0, 0.0), (2.0, 1, 90.0, 90.0, 0.0), (3.0, 1, 200.0, 200.0, 0.0),
]  # fmt: skip


def test_without_backfill_a_wide_job_stops_all_behind_it() -> None:
    assert starts(MainSchedule.FCFS, QUEUE) == [0.0, 100.0, 150.0, 150.0]


@pytest.mark.parametrize("how", [MainSchedule.BACKFILL, MainSchedule.CONSERVATIVE])
def test_backfill_fills_the_hole_without_moving_the_wide_job(how: MainSchedule) -> None:
    assert starts(how, QUEUE) == [0.0, 100.0, 2.0, 150.0]


def test_priority_goes_before_submission() -> None:
    rows: list[Row] = [(0.0, 4, 10.0, 10.0, 0.0), (1.0, 4, 10.0, 10.0, 1.0), (2.0, 4, 10.0, 10.0, 5.0)]
    assert starts(MainSchedule.BACKFILL, rows) == [0.0, 20.0, 10.0]


def test_plans_go_by_limits_and_jobs_that_end_early_free_the_rest() -> None:
    rows: list[Row] = [(0.0, 4, 10.0, 100.0, 0.0), (1.0, 4, 10.0, 50.0, 0.0)]
    done = simulate(records(rows), 4, 1, MainSchedule.BACKFILL, AssumedPlacement.FIRST_FIT, 0)
    assert (done.jobs.start - START).tolist() == [0.0, 10.0]
    first = done.plans.time == START + 1.0
    assert (done.plans.start[first] - START).tolist() == [100.0] * 4  # planned by the limit of the first
    assert np.isinf(done.plans.start[done.plans.time == START + 10.0]).all()


def test_conservative_keeps_every_plan_where_easy_keeps_the_first() -> None:
    # Behind the wide job another of three nodes waits; a long job of one node would delay it, not the first.
    rows: list[Row] = [
        (0.0, 3, 100.0, 100.0, 0.0), (1.0, 2, 100.0, 100.0, 0.0), (2.0, 4, 100.0, 100.0, 0.0),
        (3.0, 1, 150.0, 150.0, 0.0),
    ]  # fmt: skip
    easy, careful = (starts(how, rows) for how in (MainSchedule.BACKFILL, MainSchedule.CONSERVATIVE))
    assert easy[3] == 3.0 and easy[2] == 200.0
    assert careful[2] == 200.0 and careful[3] == 3.0
    rows[3] = (3.0, 1, 300.0, 300.0, 0.0)
    easy, careful = (starts(how, rows) for how in (MainSchedule.BACKFILL, MainSchedule.CONSERVATIVE))
    assert easy[2] == 303.0
    assert careful[2] == 200.0


def test_jobs_wider_than_the_machine_are_told() -> None:
    done = simulate(records([(0.0, 9, 1.0, 1.0, 0.0), (0.0, 1, 1.0, 1.0, 0.0)]), 4, 1, MainSchedule.BACKFILL,
                    AssumedPlacement.FIRST_FIT, 0)  # fmt: skip
    assert (done.too_wide, len(done.jobs.start)) == (1, 1)


rows_of = st.lists(
    st.tuples(
        st.integers(0, 500).map(float), st.integers(1, 4), st.integers(1, 100).map(float),
        st.integers(1, 120).map(float), st.integers(0, 2).map(float),
    ),
    min_size=1, max_size=14,
)  # fmt: skip


@given(rows=rows_of, how=st.sampled_from([MainSchedule.FCFS, MainSchedule.BACKFILL, MainSchedule.CONSERVATIVE]),
       rule=st.sampled_from(AssumedPlacement))  # fmt: skip
def test_laws(rows: list[Row], how: MainSchedule, rule: AssumedPlacement) -> None:
    done = simulate(records(rows), 4, 1, how, rule, 1)
    assert len(done.jobs.start) == len(rows)  # none starves
    assert (done.jobs.start >= done.jobs.submit).all()
    _no_node_twice(done)
    again = simulate(records(rows), 4, 1, how, rule, 1)
    assert again.placed.node.tobytes() == done.placed.node.tobytes()
    assert again.plans.start.tobytes() == done.plans.start.tobytes()


def _no_node_twice(done: Scheduled) -> None:
    counts = np.diff(done.placed.first)
    assert counts.tolist() == done.jobs.count.tolist()
    node = done.placed.node
    start, end = np.repeat(done.jobs.start, counts), np.repeat(done.jobs.end, counts)
    order = np.lexsort((start, node))
    node, start, end = node[order], start[order], end[order]
    assert (start[1:] >= end[:-1])[node[1:] == node[:-1]].all()


@given(rows=rows_of)
def test_the_first_that_waits_never_starts_after_its_plan(rows: list[Row]) -> None:
    # Where no job overruns its limit and all have one priority, EASY's promise to the head of the queue is kept.
    kept = [(at, count, min(run, limit), limit, 0.0) for at, count, run, limit, _ in rows]
    done = simulate(records(kept), 4, 1, MainSchedule.BACKFILL, AssumedPlacement.FIRST_FIT, 0)
    plans, order = done.plans, np.lexsort((np.arange(len(rows)), done.jobs.submit))
    for moment in np.unique(plans.time):
        waiting = [i for i in order if done.jobs.submit[i] <= moment < done.jobs.start[i]]
        planned = plans.start[(plans.time == moment) & np.isfinite(plans.start)]
        if waiting and len(planned):
            assert done.jobs.start[waiting[0]] <= planned.max() + 1e-6


def test_pilots_leave_before_a_planned_start_and_short_holes_are_left_alone() -> None:
    rows: list[Row] = [(0.0, 3, 1000.0, 1000.0, 0.0), (1.0, 4, 500.0, 500.0, 0.0), (1600.0, 1, 10.0, 10.0, 0.0)]
    machine = cluster_trace(records(rows), Window(schedule=MainSchedule.BACKFILL))
    assert machine.plans is not None
    jobs = [job()]
    result = Engine(machine, jobs, PolicySizer(parse_policy("auto", None), jobs), Options()).run()
    ends = (result.log.pilots.rows().end[result.log.pilots.rows().cause == Cause.LIMIT] - START).tolist()
    assert ends == [970.0]  # 30 s before the wide job starts at 1000
    assert result.totals.preemptions <= 4  # at 1600, which was not planned
    assert result.totals.main_starts_on_pilots <= 1


def test_what_if_the_machine_were_larger() -> None:
    waits = {}
    for nodes in (4, 8):
        machine = cluster_trace(records(QUEUE), Window(schedule=MainSchedule.BACKFILL, node_count=nodes))
        assert len(machine.nodes) == nodes
        waits[nodes] = next(text for text in machine.warnings if "simulated" in text)
    assert "wait 0.00 h" in waits[8] and "wait 0.00 h" not in waits[4]


def test_a_queue_needs_jobs_and_no_outages() -> None:
    events = changes([(0.0, 0, 1), (10.0, 0, 0)], 1)
    with pytest.raises(InvalidInput, match="no jobs to schedule"):
        cluster_trace(events, Window(schedule=MainSchedule.BACKFILL))
    with pytest.raises(InvalidInput, match="--outages"):
        cluster_trace(records(QUEUE), Window(schedule=MainSchedule.BACKFILL), events)
    with pytest.raises(InvalidInput, match="fits on"):
        cluster_trace(records([(0.0, 4, 1.0, math.nan, 0.0)]), Window(schedule=MainSchedule.BACKFILL, node_count=2))
