"""`malletrain plan` and `malletrain fit`, as programs call them, and their parser under fuzz."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput
from malletrain.sizing.problem_file import parse
from tests import forked_program
from tests.messages import says

GOOD: dict[str, Any] = {
    "horizon_s": 300,
    "nodes": 12,
    "jobs": [
        {"id": "a", "current": 4, "min": 1, "max": 8, "grow_s": 1, "shrink_s": 1, "throughput": {"1": 10, "8": 60}},
        {"id": 7, "current": 0, "min": 2, "max": 8, "weight": 2, "throughput": {"1": 10, "8": 70}},
    ],
    "constraints": [{"name": "u", "coefficients": {"7": 1}, "upper": 3}],
}


def malletrain(*args: str, text: str = "", cwd: Path | None = None) -> forked_program.Ended:
    return forked_program.run("malletrain.cli.main", args, stdin=text.encode(), cwd=cwd)


@pytest.mark.parametrize("policy", ["auto", "milp", "lp"])
def test_plan_prints_the_plan(policy: str) -> None:
    done = malletrain("plan", "-", "--policy", policy, text=json.dumps(GOOD))
    assert (done.returncode, done.stderr) == (0, "")
    out = json.loads(done.stdout)
    assert out["status"] == "optimal"
    assert out["sizes"] == {"a": 8, "7": 3}
    assert out["objective"] == pytest.approx((300 - 1) * 60 + 2 * 300 * (10 + 2 * 60 / 7))


def test_plan_writes_the_model(tmp_path: Path) -> None:
    import highspy

    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps(GOOD))
    done = malletrain("plan", str(problem), "--write-lp", str(tmp_path / "model.lp"))
    assert done.returncode == 0
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(tmp_path / "model.lp"))
    solver.run()
    assert solver.getInfo().objective_function_value == pytest.approx(json.loads(done.stdout)["objective"], rel=1e-9)


def test_every_field_reaches_its_policy() -> None:
    rates = {"step_samples": 100, "exchange_s": 0, "class_rates": {"old": 10, "new": 40}}
    rich = {
        "horizon_s": 300, "nodes": 4, "classes": {"old": 2, "new": 2},
        "budgets": [{"name": "x", "jobs": ["a"], "node_s": 25}],
        "jobs": [
            {"id": "a", "min": 2, "max": 2, "remaining_samples": 1000, "throughput": {"2": 80}, "noise_scale": 10,
             "synchronous": rates, "batches": {"32": {"2": 80}, "256": {"2": 100}}},
            {"id": "b", "min": 1, "max": 2, "remaining_samples": 1000, "throughput": {"1": 10, "2": 20}},
        ],
    }  # fmt: skip

    def plan(policy: str) -> dict[str, Any]:
        done = malletrain("plan", "-", "--policy", policy, text=json.dumps(rich))
        assert (done.returncode, done.stderr) == (0, "")
        out: dict[str, Any] = json.loads(done.stdout)
        return out

    assert plan("elastic_batch")["batches"] == {"a": 256}
    assert plan("goodput")["batches"] == {"a": 32}
    assert plan("budget")["sizes"] == {"a": 2, "b": 2}  # 1000 / 80 * 2 = 25 node-seconds
    assert plan("matching")["classes"]["a"] == {"new": 2}


def test_deadlines_reach_their_policy() -> None:
    job = {"id": "a", "max": 8, "throughput": {"8": 80}, "due": {"seconds": 110, "samples": 4000}}
    other = {"id": "b", "max": 8, "throughput": {"8": 800}}
    rich = {"horizon_s": 300, "nodes": 8, "jobs": [job, other]}
    done = malletrain("plan", "-", "--policy", "deadline", text=json.dumps(rich))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["sizes"] == {"a": 4, "b": 4}


def test_equal_problems_give_equal_bytes_in_any_process() -> None:
    """Also where Python orders its sets and texts differently."""
    answers = set()
    for seed in ("1", "2"):
        code = "from malletrain.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "plan", "-", "--policy", "milp"], input=json.dumps(GOOD).encode(),
            capture_output=True, timeout=120, env=os.environ | {"PYTHONHASHSEED": seed}, check=True,
        )  # fmt: skip
        answers.add(done.stdout)
    assert len(answers) == 1


def test_unknown_fields_are_warned_of_and_not_used() -> None:
    done = malletrain("plan", "-", text=json.dumps(GOOD | {"horizont": 3}))
    assert done.returncode == 0
    assert "horizont" in done.stderr and done.stderr.count("\n") == 1


def test_a_job_that_changes_often_is_not_resized_for_little() -> None:
    grows = {"current": 2, "max": 3, "grow_s": 18, "throughput": {"2": 2, "3": 2.3}}
    for interval_s, size in ((600, 3), (90.0, 2)):
        problem = {"horizon_s": 300, "nodes": 3, "jobs": [{"id": "a", "interval_s": interval_s, **grows}]}
        assert json.loads(malletrain("plan", "-", text=json.dumps(problem)).stdout)["sizes"] == {"a": size}


def _job(**change: Any) -> dict[str, Any]:
    return GOOD | {"constraints": [], "jobs": [GOOD["jobs"][0] | change]}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("not json", "not JSON"),
        ("[" * 100_000, "problem"),
        ("[]", "an object"),
        ("{}", "horizon_s is missing"),
        ('{"nodes": 1, "nodes": 2}', "'nodes'"),
        (json.dumps(GOOD | {"horizon_s": float("nan")}), "NaN"),
        (json.dumps(GOOD | {"horizon_s": -1}), "horizon_s"),
        (json.dumps(GOOD | {"nodes": 10**10}), "nodes"),
        (json.dumps(GOOD).replace("12", "1" * 5000), "problem"),
        (json.dumps(GOOD | {"nodes": 1.5}), "nodes"),
        (json.dumps(GOOD | {"value": "best"}), "value"),
        (json.dumps(GOOD | {"alpha": "1"}), "alpha"),
        (json.dumps(GOOD | {"jobs": GOOD["jobs"] * 2}), "jobs[2].id"),
        (json.dumps(GOOD | {"constraints": [{"coefficients": {"zz": 1}}]}), "constraints[0].coefficients"),
        (json.dumps(_job(throughput={"1": -5})), "jobs[0].throughput['1']"),
        (json.dumps(_job(interval_s=0.0)), "interval_s"),
        (json.dumps(_job(interval_s="often")), "interval_s"),
        (json.dumps(_job(throughput={"x": 5})), "jobs[0].throughput['x']"),
        (json.dumps(_job(throughput={})), "jobs[0].throughput"),
        (json.dumps(_job(throughput={"1": 1e400})), "Infinity"),
        (json.dumps(_job(throughput={"1": 0})).replace('"1": 0', '"1": 1e999'), "jobs[0].throughput['1']"),
        (json.dumps(_job(min=9)), "jobs[0]: job 'a': min"),
        (json.dumps(_job(sizes=[1, "2"])), "jobs[0]: job 'a': sizes"),
        (json.dumps(_job(id=None)), "jobs[0]"),
        (json.dumps(_job(grow_s=-1)), "grow_s"),
        (json.dumps(_job(batches={"x": {"1": 1}})), "jobs[0].batches['x']"),
        (json.dumps(_job(batches={"0": {"1": 1}})), "batches"),
        (json.dumps(_job(batches={"8": {"1": -1}})), "jobs[0].batches['8']['1']"),
        (json.dumps(_job(synchronous={})), "jobs[0].synchronous"),
        (json.dumps(_job(synchronous={"step_samples": 1, "class_rates": {"a": "fast"}})), "class_rates of 'a'"),
        (json.dumps(GOOD | {"classes": {"a": 3}}), "classes"),
        (json.dumps(GOOD | {"budgets": [{"jobs": ["zz"], "node_s": 1}]}), "budgets[0].jobs"),
        (json.dumps(GOOD | {"budgets": [{"jobs": ["a"], "node_s": -1}]}), "node_s"),
        (json.dumps(GOOD | {"budgets": [{"jobs": ["a"], "node_s": 1, "left": {"zz": 1}}]}), "budgets[0].left"),
        (json.dumps(GOOD | {"budgets": [{"jobs": ["a"], "node_s": 1, "arriving": [{}]}]}), "arriving[0]"),
        (json.dumps(_job(due={"samples": 5})), "jobs[0].due"),
        (json.dumps(_job(due={"seconds": -1, "samples": 5})), "due: seconds"),
        (json.dumps(_job(due=[1, 2])), "jobs[0].due"),
    ],
)
def test_refused_problems_name_the_field(text: str, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse(text)
    assert field in str(refused.value)


def test_refusal_is_one_line_and_status_2(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(_job(min=9)))
    done = malletrain("plan", "p.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert says(done.stderr, "malletrain: p.json: jobs[0]: job 'a': min: 9", "max 8")
    (tmp_path / "q.json").write_bytes(b"\xff\xfe{}")
    assert malletrain("plan", "q.json", cwd=tmp_path).returncode == 2
    assert malletrain("plan", "-", "--policy", "nope", text=json.dumps(GOOD)).returncode == 2
    unwritable = malletrain("plan", "-", "--write-lp", str(tmp_path / "no" / "x.lp"), text=json.dumps(GOOD))
    assert unwritable.returncode == 2 and says(unwritable.stderr, tmp_path / "no" / "x.lp")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(max_size=200) | json_values.map(json.dumps))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse(text)
    except InvalidInput as refused:
        assert "\n" not in refused.where


@given(st.data())
def test_a_good_problem_with_one_field_replaced_is_parsed_or_refused(data: st.DataObject) -> None:
    problem = json.loads(json.dumps(GOOD))
    place = data.draw(st.sampled_from([problem, *problem["jobs"], problem["jobs"][0]["throughput"],
                                       *problem["constraints"]]))  # fmt: skip
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(json_values)
    try:
        parsed, _ = parse(json.dumps(problem))
    except InvalidInput as refused:
        assert refused.where
    else:
        assert parsed.nodes >= 0


SAMPLES = "nodes,samples_per_s\n1,100\n4,380\n4,384\n16,1300\n"


def test_fit_prints_the_curve() -> None:
    done = malletrain("fit", "-", "--at", "4,8,32", text=SAMPLES + "16,nan\n2,-3\n")
    assert (done.returncode, done.stderr) == (0, "")
    out = json.loads(done.stdout)
    assert out["curve"]["1"] == 100 and out["curve"]["4"] == 382 and out["curve"]["16"] == 1300
    assert list(out["predictions"]) == ["4", "8", "32"]
    assert 382 < out["predictions"]["8"] < 1300 < out["predictions"]["32"]
    low, high = out["bands"]["8"]
    assert low < out["predictions"]["8"] < high
    assert 0 < out["error_bound"] < 0.3
    assert out["ignored"] == {"the rate is not above zero": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ("-:1:", "nodes")),
        ("nodes,rate\n1,2\n", ("-:1:", "samples_per_s")),
        ("nodes,samples_per_s\n1,2\n1,x\n", ("-:3: samples_per_s:", "'x'")),
        ("nodes,samples_per_s\n1.5,2\n", ("-:2: nodes:", "'1.5'")),
        ("nodes,samples_per_s\n1\n", ("-:2:", 2)),
        ("nodes,samples_per_s\n1,0\n", ("-: no sample", "(1 left out:")),
        ("nodes,samples_per_s\n", ("-: no sample", "none)")),
    ],
)
def test_fit_refuses_with_file_and_line(text: str, said: tuple[object, ...]) -> None:
    done = malletrain("fit", "-", text=text)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert says(done.stderr.replace("<stdin>", "-").removeprefix("malletrain: "), *said)


def test_fit_refuses_sizes_that_are_none() -> None:
    for sizes in ("0", "1,,2", "x", "9" * 30, "-1"):
        assert malletrain("fit", "-", f"--at={sizes}", text=SAMPLES).returncode == 2
