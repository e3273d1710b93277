"""What is replayed is a daemon with its rules: caps, limits, tick, reserve and width of pilots, in both engines."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from malletrain.decide.rules import Rules
from malletrain.domain.job import ResizeCosts
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.engine import Engine
from malletrain.replay.options import Options
from malletrain.replay.result import Cause, Result
from malletrain.replay.run import replay
from malletrain.replay.scoring.figures import Score
from malletrain.replay.sizer import PolicySizer, parse_policy
from malletrain.replay.traces.trace import BUSY, IDLE
from malletrain.replay.workload import TrainingJob, shifted
from tests.replay.small import CURVES, job, trace

#: A daemon as it is shipped: `malletrain.site_rules.rules_from` of an empty configuration.
SHIPPED = Rules(keep_idle=1, max_pilots=100, max_starts=50, margin_s=35.0, min_hole_s=110.0, leave_lead_s=15.0)
TICK_S = 10.0


def busy_machine(seed: int, nodes: int = 48, seconds: int = 7200) -> ClusterTrace:
    """Cohorts of 1 to 6 nodes become idle together; most leave together, some one by one."""
    at = random.Random(seed)
    rows: list[tuple[float, int, int]] = []
    for first in range(0, nodes, 6):
        when = at.uniform(0, 300)
        while when < seconds:
            width = at.choice([1, 2, 4, 6])
            lasts = at.choice([40, 200, 900, 2500]) * at.uniform(0.8, 1.2)
            for node in range(first, first + width):
                rows.append((round(when, 1), node, IDLE))
                rows.append((round(when + lasts + (at.uniform(0, 90) if at.random() < 0.2 else 0), 1), node, BUSY))
            when += lasts + 100 + at.expovariate(1 / 400)
    return trace([row for row in rows if row[0] < seconds], nodes, float(seconds))


def fast(machine: ClusterTrace, jobs: list[TrainingJob], options: Options) -> Result:
    choice = parse_policy("auto", None)
    on_clock = shifted(jobs, machine.start)
    return Engine(machine, on_clock, PolicySizer(choice, on_clock), options).run()


def both(machine: ClusterTrace, jobs: list[TrainingJob], rules: Rules) -> tuple[Score, Score]:
    options = Options.of_daemon(rules, TICK_S)
    choices = [parse_policy("auto", None)]
    quick, slow = (
        replay(machine, jobs, choices, replace(options, by_loop=by_loop), processes=1).scores["auto"]
        for by_loop in (False, True)
    )
    return quick, slow


LIMITED = {"max_nodes": 4, "max_pilots": 9, "max_pilot_s": 900.0, "keep_idle": 3}
CHANGES: dict[str, dict[str, float]] = {
    "shipped": {},
    "capped": {"max_pilots": 9},
    "limited": {"max_pilot_s": 600.0, "keep_idle": 3},
    "capped-and-limited": {"max_pilots": 12, "max_pilot_s": 900.0, "max_starts": 3},
    "wide": {"max_nodes": 4, "max_pilots": 9},
    "wider": {"max_nodes": 8, "max_pilots": 6},
    "wide-and-limited": LIMITED,
}


def alike(seed: int, changed: str, seconds: int) -> None:
    jobs = [job(i + 1, costs=ResizeCosts(), most=16) for i in range(4)]
    quick, slow = both(busy_machine(seed, seconds=seconds), jobs, replace(SHIPPED, **CHANGES[changed]))  # type: ignore[arg-type]
    assert quick.speedup_node_seconds == pytest.approx(slow.speedup_node_seconds, rel=0.002)
    assert quick.occupied_node_seconds == pytest.approx(slow.occupied_node_seconds, rel=0.003)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("changed", CHANGES)
def test_both_engines_replay_the_same_daemon(seed: int, changed: str) -> None:
    alike(seed, changed, 2400)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("changed", CHANGES)
def test_both_engines_replay_the_same_daemon_for_hours(seed: int, changed: str) -> None:
    alike(seed, changed, 7200)


def test_jobs_that_wait_take_turns_in_both_engines() -> None:
    rules = replace(SHIPPED, max_pilots=6, max_wait_s=300.0, turn_s=120.0)
    jobs = [job(i + 1, curve=CURVES[1], costs=ResizeCosts(), most=4) for i in range(20)]
    quick, slow = both(busy_machine(1, seconds=3600), jobs, rules)
    assert quick.speedup_node_seconds == pytest.approx(slow.speedup_node_seconds, rel=0.005)
    assert quick.jobs_started == slow.jobs_started == 20


def test_jobs_whose_turn_it_is_take_whole_pilots_and_leave_no_place_under_the_cap_to_narrow_ones() -> None:
    """Thirty jobs that wait for two pilots of at most eight nodes on sixteen: all are held, whoever's turn it is."""
    machine = trace([(0.0, n, IDLE) for n in range(16)], 16, 7200.0)
    rules = replace(SHIPPED, keep_idle=0, max_nodes=8, max_pilots=2, max_wait_s=300.0, turn_s=120.0)
    log = fast(machine, [job(i + 1, most=8) for i in range(30)], Options.of_daemon(rules, TICK_S)).log
    held_s = float((log.pilots.rows().end - log.pilots.rows().start).sum())
    assert held_s >= 0.85 * 16 * 7200.0, "all but the looks at which nodes change hands"


def test_no_more_pilots_than_the_site_allows() -> None:
    machine = busy_machine(3)
    log = fast(machine, [job(most=64)], Options.of_daemon(replace(SHIPPED, max_pilots=5), TICK_S)).log
    assert log.held.max() == 5


def test_a_cap_counts_tasks_not_nodes() -> None:
    machine = busy_machine(3)
    rules = replace(SHIPPED, max_pilots=5, max_nodes=4)
    log = fast(machine, [job(most=64)], Options.of_daemon(rules, TICK_S)).log
    assert 5 < log.held.max() <= 20


def test_a_pilot_leaves_before_its_limit_and_the_next_starts_a_tick_later() -> None:
    machine = trace([(0.0, 0, IDLE)], 1, 2000.0)
    rules = replace(SHIPPED, keep_idle=0, max_pilot_s=600.0)
    log = fast(machine, [job()], Options.of_daemon(rules, TICK_S)).log
    begun, ended = log.pilots.rows().start - machine.start, log.pilots.rows().end - machine.start
    assert begun.tolist() == [0.0, 600.0, 1200.0, 1800.0]
    assert ended.tolist() == [590.0, 1190.0, 1790.0, 2000.0]  # the first look within leave_lead_s of the limit


def test_a_hole_of_a_second_is_not_harvested() -> None:
    machine = trace([(100.5, 0, IDLE), (101.5, 0, BUSY), (305.0, 0, IDLE)], 1, 600.0)
    log = fast(machine, [job()], Options.of_daemon(replace(SHIPPED, keep_idle=0), TICK_S)).log
    assert (log.pilots.rows().start - machine.start).tolist() == [310.0]


def test_a_task_loses_all_its_nodes_with_one() -> None:
    machine = trace([(0.0, 0, IDLE), (0.0, 1, IDLE), (0.0, 2, IDLE), (501.0, 1, BUSY)], 3, 1000.0)
    rules = replace(SHIPPED, keep_idle=0, max_nodes=3, max_pilots=1)
    log = fast(machine, [job()], Options.of_daemon(rules, TICK_S)).log
    first = log.pilots.rows().start == machine.start
    assert sorted(log.pilots.rows().cause[first].tolist()) == [Cause.PREEMPTED, Cause.TASK, Cause.TASK]
    assert np.unique(log.pilots.rows().start[~first] - machine.start).tolist() == [510.0]


def test_what_the_cap_and_the_reserve_leave_idle_is_counted() -> None:
    machine = trace([(0.0, n, IDLE) for n in range(10)], 10, 1000.0)
    options = Options.of_daemon(replace(SHIPPED, keep_idle=2, max_pilots=5), TICK_S)
    found = replay(machine, [job()], [parse_policy("auto", None)], options, processes=1)
    score = found.scores["auto"]
    assert score.reserve_node_seconds == pytest.approx(2 * 1000.0)
    assert score.beyond_cap_node_seconds == pytest.approx(3 * 1000.0)
    assert any("max_pilots" in warning and "30%" in warning for warning in found.warnings)


def test_the_ideal_machine_is_a_policy_beside_the_daemon() -> None:
    machine = busy_machine(2)
    options = Options.of_daemon(replace(SHIPPED, max_pilots=5), TICK_S)
    choices = [parse_policy("auto", None), parse_policy("ideal-machine", None)]
    found = replay(machine, [job(most=64)], choices, options, processes=1)
    shipped, ideal = found.scores["auto"], found.scores["ideal-machine"]
    assert shipped.occupied_node_seconds < 0.5 * ideal.occupied_node_seconds
    assert ideal.occupied_node_seconds == pytest.approx(ideal.idle_node_seconds)
