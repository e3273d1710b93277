"""What is said of a horizon that forbids starting or growing, and that it is so."""

from __future__ import annotations

import pytest

from malletrain.domain.job import ResizeCosts
from malletrain.replay import parse_policy, replay
from malletrain.replay.report.page import facts
from malletrain.replay.run import Replay
from malletrain.replay.traces.trace import IDLE
from tests.replay.small import job, trace

MACHINE = trace([(0.0, 0, IDLE), (0.0, 1, IDLE), (600.0, 2, IDLE)], 3, 3600.0)


def answered(policy: str, *costs: ResizeCosts) -> Replay:
    jobs = [job(number, costs=each) for number, each in enumerate(costs, 1)]
    return replay(MACHINE, jobs, [parse_policy(policy, None)], processes=1)


@pytest.mark.parametrize("policy", ["auto", "exact", "greedy", "milp", "ideal-machine"])
@pytest.mark.parametrize("horizon", [10.0, 20.0, 20.5])
def test_a_horizon_up_to_the_activation_starts_nothing_and_is_told(policy: str, horizon: float) -> None:
    answer = answered(f"{policy}:{horizon:g}", ResizeCosts(20.0, 0.0, 0.0))
    told = [sentence for sentence in answer.warnings if "starts no node for 1 of 1 jobs" in sentence]
    assert len(told) == (horizon <= 20.0)
    (score,) = answer.scores.values()
    assert (score.activations == 0) == (horizon <= 20.0)
    assert set(told) <= {value for _, value in facts(answer)}
    assert answer.trace_json()["warnings"] == list(answer.warnings)


def test_a_horizon_up_to_start_and_stall_never_grows_and_is_told() -> None:
    for horizon, grown in ((30.0, 2), (300.0, 3)):
        answer = answered(f"auto:{horizon:g}", ResizeCosts(20.0, 10.0, 0.0))
        assert any("never grows a world that trains of 1 of 1 jobs" in each for each in answer.warnings) == (
            grown == 2
        )
        assert answer.scores[f"auto:{horizon:g}"].activations == grown


def test_only_jobs_concerned_are_counted_and_rules_without_a_horizon_are_not() -> None:
    costs = (ResizeCosts(20.0, 0.0, 0.0), ResizeCosts(5.0, 0.0, 0.0))
    assert any("starts no node for 1 of 2 jobs" in each for each in answered("auto:10", *costs).warnings)
    for policy in ("equal:10", "one-node:10", "bftrainer:10", "auto"):
        answer = answered(policy, *costs)
        assert not any("looks" in each for each in answer.warnings)
        assert answer.scores[policy].activations > 0
