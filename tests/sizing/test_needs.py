"""What each policy needs and can is declared; without its inputs it is refused by name, with what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from malletrain.cli.sizing import plan
from malletrain.config.sections import Config
from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve, ResizeCosts
from malletrain.replay.sizer import parse_policy, require_replay_inputs
from malletrain.replay.workload import mix
from malletrain.site_rules import policy_from
from malletrain.sizing import registry
from malletrain.sizing.constraints import cap
from malletrain.sizing.problem import JobDemand, Problem
from tests.messages import naming, says
from tests.sizing.problems import shipped

NEEDS = {
    "goodput": "batch sizes",
    "elastic_batch": "batch sizes",
    "deadline": "deadlines",
    "budget": "budgets",
    "matching": "node classes",
}
GIVEN: dict[str, dict[str, Any]] = {
    "goodput": {"batches": {"32": {"1": 10}}, "noise_scale": 40},
    "elastic_batch": {"batches": {"32": {"1": 10}}},
    "deadline": {"due": {"seconds": 600, "samples": 100}},
}
GIVEN_OF_PROBLEM: dict[str, dict[str, Any]] = {
    "budget": {"budgets": [{"name": "x", "jobs": ["a"], "node_s": 600}]},
    "matching": {"classes": {"a100": 4}},
}


def problem(name: str, *, full: bool) -> str:
    job: dict[str, Any] = {"id": "a", "max": 4, "throughput": {"1": 10, "4": 30}}
    whole: dict[str, Any] = {"horizon_s": 300, "nodes": 4, "jobs": [job]}
    if full:
        job.update(GIVEN.get(name, {}))
        whole.update(GIVEN_OF_PROBLEM.get(name, {}))
    return json.dumps(whole)


def planned(name: str, text: str, folder: Path) -> Result:
    (folder / "problem.json").write_text(text)
    return CliRunner().invoke(plan, [str(folder / "problem.json"), "--policy", name])


@pytest.mark.parametrize("name", shipped())
def test_plan_refuses_a_policy_without_its_inputs(name: str, tmp_path: Path) -> None:
    done = planned(name, problem(name, full=False), tmp_path)
    if name not in NEEDS:
        assert done.exit_code == 0
        return
    assert isinstance(done.exception, InvalidInput)
    assert says(done.exception, f"policy {name}", NEEDS[name])
    assert planned(name, problem(name, full=True), tmp_path).exit_code == 0


def test_a_problem_without_jobs_needs_nothing(tmp_path: Path) -> None:
    assert planned("goodput", json.dumps({"horizon_s": 300, "nodes": 4, "jobs": []}), tmp_path).exit_code == 0


@pytest.mark.parametrize("name", [*shipped(), "one-node", "bftrainer", "ideal-machine"])
def test_replay_refuses_a_policy_whose_inputs_it_does_not_have(name: str) -> None:
    jobs = mix("imagenet:2", ResizeCosts())
    if name in NEEDS:
        with pytest.raises(InvalidInput, match=naming("--policy:", f"policy {name}", NEEDS[name])):
            require_replay_inputs([parse_policy(name, None)], jobs)
    else:
        require_replay_inputs([parse_policy(name, None)], jobs)


@pytest.mark.parametrize("name", shipped())
def test_the_daemon_refuses_a_policy_whose_inputs_it_cannot_have(name: str) -> None:
    config = Config(sizing={"policy": name})  # type: ignore[arg-type]
    if name in ("budget", "matching"):
        with pytest.raises(InvalidInput, match=naming("sizing.policy:", f"policy {name}", NEEDS[name])):
            policy_from(config)
    else:
        assert policy_from(config).name == name
    with_budget = {"policy": "budget", "budgets": [{"name": "x", "accounts": ["a"], "node_hours": 5}]}
    assert policy_from(Config(sizing=with_budget)).name == "budget"  # type: ignore[arg-type]


@pytest.mark.parametrize("name", shipped())
def test_what_a_policy_declares_is_so(name: str) -> None:
    policy = registry.policy(name)
    job = JobDemand("a", 0, 1, 8, Curve.linear(8))
    free = Problem(300.0, 8, (job,))
    assert policy.size(free).sizes == {"a": 8} or policy.needs
    bound = Problem(300.0, 8, (job,), constraints=(cap("of a", ["a"], 3),))
    if policy.handles_constraints:
        assert policy.size(bound).sizes == {"a": 3}
