"""What the answer depends on, and the columns that tell it: each figure is that of a replay done by hand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.decide.rules import Rules
from malletrain.domain.job import ResizeCosts
from malletrain.replay import AssumedPlacement, Window, cluster_trace, parse_policy, replay
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.options import Options
from malletrain.replay.report.frames import policies, sensitivities, users
from malletrain.replay.run import Replay
from malletrain.replay.scoring.figures import busiest_minute
from malletrain.replay.sensitivity import sensitivity
from malletrain.replay.traces.trace import Account, JobRecords
from tests.replay.small import START, job, traces, workloads

COSTS = ResizeCosts(6.0, 18.0, 12.0)


def records(rows: list[tuple[float, float, int]]) -> JobRecords:
    """Jobs without node lists: start and end (seconds after START), nodes."""
    table = np.array(rows, dtype=np.float64)
    none = np.zeros(len(rows))
    return JobRecords(
        Account("test", "swf", len(rows), len(rows)), table[:, 0] + START, table[:, 0] + START, table[:, 1] + START,
        table[:, 2].astype(np.int32), none.astype(np.int32), (), np.zeros(len(rows) + 1, np.int64),
        np.empty(0, np.int32), 8, 1, START + 7200.0, none, none,
    )  # fmt: skip


def answered(log: JobRecords, window: Window) -> Replay:
    jobs = [job(1, costs=COSTS, most=4), job(2, costs=COSTS, most=8, samples=2e5)]
    return replay(cluster_trace(log, window), jobs, [parse_policy("auto", None), parse_policy("equal", None)])


LOG = records([(300.0 * i, 300.0 * i + 400.0 + 170.0 * (i % 5), 1 + i % 4) for i in range(20)])
WINDOW = Window(start=START, end=START + 7200.0, placement=AssumedPlacement.RANDOM)


def test_one_assumption_is_changed_at_a_time_and_what_was_asked_stands_among_them() -> None:
    answer = answered(LOG, WINDOW)
    told: list[float] = []
    placed = lambda rule: cluster_trace(LOG, replace(WINDOW, placement=rule))  # noqa: E731
    found = sensitivity(answer, placed, AssumedPlacement.RANDOM, told.append)
    by = {(each.what, each.value): each for each in found}
    assert [key for key, each in by.items() if each.asked] == [
        ("horizon", "300 s"), ("activation", "6 s"), ("stall to grow / shrink", "18 / 12 s"),
        ("training jobs", "2"), ("placement of main jobs", "random"),
    ]  # fmt: skip
    assert {each.score for each in found if each.asked} == {answer.scores["auto"]}
    assert told == sorted(told) and told[-1] == 1.0
    # Placing does not change how many nodes are idle; waiting longer for a start never leaves more time to train.
    idle = {round(each.score.idle_node_seconds, 6) for each in found}
    assert len(idle) == 1
    busy = [by["activation", f"{s} s"].score for s in (0, 2, 6, 20)]
    assert [s.activation_node_seconds for s in busy] == sorted(s.activation_node_seconds for s in busy)
    assert busy[0].activation_node_seconds == 0 < busy[-1].activation_node_seconds
    # By hand.
    jobs = [replace(each, costs=ResizeCosts(6.0, 60.0, 40.0)) for each in answer.jobs]
    again = replay(answer.trace, jobs, [parse_policy("auto", None)]).scores["auto"]
    dear = by["stall to grow / shrink", "60 / 40 s"].score
    assert replace(dear, solve_s=None, wall_s=0) == replace(again, solve_s=None, wall_s=0)
    table = sensitivities(found).columns
    assert len(np.unique(table["speedup_node_seconds"][table["as_replayed"]])) == 1
    assert len(table["what"]) == len(found)


def test_a_log_that_says_where_jobs_ran_has_no_other_placements() -> None:
    assert "placement of main jobs" not in {each.what for each in sensitivity(answered(LOG, WINDOW))}


def test_saturation_over_caps_and_jobs() -> None:
    """More jobs never have a smaller ideal; a cap that is not reached changes nothing, one pilot holds one node."""
    rules = Rules(max_pilots=4)
    jobs = [job(n, costs=COSTS, most=2) for n in range(1, 6)]
    options = Options.of_daemon(rules, 10.0)
    answer = replay(cluster_trace(LOG, WINDOW), jobs, [parse_policy("auto", None)], options, processes=1)
    found = sensitivity(answer)
    caps = [each for each in found if each.what == "most pilots at a time"]
    counts = [each for each in found if each.what == "training jobs"]
    assert [each.value for each in caps] == ["1", "2", "4", "8", "16"]
    assert [each.value for each in counts] == ["1", "3", "5"]
    assert [each.value for each in (*caps, *counts) if each.asked] == ["4", "5"]
    assert caps[0].score.occupied_node_seconds <= answer.trace.seconds
    assert caps[0].score.occupied_node_seconds < caps[2].score.occupied_node_seconds
    assert caps[-1].score.beyond_cap_node_seconds == 0.0
    ideal = [each.score.ideal_speedup_node_seconds for each in counts]
    assert ideal == sorted(ideal)


@given(st.lists(st.floats(0.0, 1e4), max_size=60))
def test_the_busiest_minute_is_that_with_most_starts(started: list[float]) -> None:
    assert busiest_minute(np.array(started)) == max(Counter(int(t // 60) for t in started).values(), default=0)


@settings(max_examples=20, deadline=None)
@given(traces(), st.lists(st.sampled_from(["ann", "ben", ""]), min_size=1, max_size=4))
def test_users_share_all_that_was_held(machine: ClusterTrace, names: list[str]) -> None:
    jobs = [replace(each, job=replace(each.job, user=name or "replay")) for each, name in
            ((job(n + 1, most=4), name) for n, name in enumerate(names))]  # fmt: skip
    answer = replay(machine, jobs, [parse_policy("auto", None)], processes=1)
    table = users(answer)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows()]
    held = answer.scores["auto"].occupied_node_seconds
    assert {row["user"] for row in rows} == {name or "replay" for name in names}
    assert sum(row["node_hours"] for row in rows) * 3600 == pytest.approx(held)
    assert sum(row["share"] for row in rows) == pytest.approx(1.0 if held else 0.0)
    assert sum(row["jobs"] for row in rows) == len(names)


def test_a_policy_that_looks_nowhere_ahead_has_no_other_horizons() -> None:
    answer = answered(LOG, WINDOW)
    alone = replay(answer.trace, answer.jobs, [parse_policy("one-node", None)], processes=1)
    assert {each.what for each in sensitivity(alone)} == {"activation", "stall to grow / shrink", "training jobs"}


@settings(max_examples=25, deadline=None)
@given(machine=traces(), jobs=workloads(), name=st.sampled_from(["auto", "equal", "one-node"]))
def test_frames_tell_what_the_scores_and_results_tell(machine, jobs, name) -> None:  # type: ignore[no-untyped-def]
    answer = replay(machine, jobs, [parse_policy(name, None)], processes=1)
    table = policies(answer.scores)
    row = dict(zip(table.columns, table.rows()[0], strict=True))
    score = answer.scores[name]
    assert row["policy"] == name
    for key in ("idle_node_seconds", "jain", "mean_wait_s", "mean_rho", "jobs_completed"):
        value = getattr(score, key)
        assert row[key] == pytest.approx(math.nan if value is None else value, nan_ok=True)
