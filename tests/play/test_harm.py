"""The harm bench's arithmetic, on runs whose answer is known."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.shared import bootstrap
from scripts.play.arm import STARTED, rpcs_by_kind
from scripts.play.harm import ARMS, BASE, PILOTS, TWIN, lost, p99, pairs, quantile, summary
from scripts.play.load import Kind, MainJob, of_all_kinds
from tests.messages import says

FIXTURES = Path(__file__).parents[1] / "slurm" / "fixtures"


def arm(starts: dict[str, float | None], **more: Any) -> dict[str, Any]:
    jobs = {
        number: {
            "kind": "plain" if int(number) % 2 else "array",
            "nodes": 2, "submit_s": 0.0, "start_s": start, "refused": "", "how": "top", "near_reservation": False,
            "leaves": 1, "heavy": 1,
        }
        for number, start in starts.items()
    }  # fmt: skip
    facts = {"reservations": 1, "reservations_refused": 0, "drained": [], "main_cycle_s": 0.001}
    return {"jobs": jobs, **facts, "backfill_cycle_s": 0.002, **more}


def run_of(**later: float | None) -> dict[str, Any]:
    """A run of 100 jobs, each arm later than the first by so much, or without its first job."""
    arms = {}
    for name in ARMS:
        delay = later.get(name, 0.0)
        starts: dict[str, float | None] = {str(n): 1.0 + n + (delay or 0.0) for n in range(100)}
        if delay is None:
            starts["0"] = None
        arms[name] = arm(starts)
    harvest = {"productive_node_s": 90.0, "possible_node_s": 100.0}
    return {"profile": "fast", "factor": 90.0, "arms": arms, "harvest": harvest}


def test_pairs_are_the_jobs_that_started_in_both_arms() -> None:
    found = pairs(run_of(pilots=0.25), PILOTS)
    assert len(found) == 100
    assert {round(pair.later_s, 6) for pair in found} == {0.25}
    assert {label for pair in found for label in pair.labels} == {"all", "comparable", "plain", "array", "top"}


def test_a_job_that_never_starts_is_lost_and_no_pair() -> None:
    run = run_of(pilots=None)
    assert (len(pairs(run, PILOTS)), lost(run, PILOTS), lost(run, TWIN)) == (99, ["0"], [])
    assert any(says(line, "NOT met", "started") for line in summary([run]))


def test_what_is_slower_than_the_noise_fails_its_goal_and_what_is_not_meets_it() -> None:
    slow, quick = (
        "\n".join(summary([run_of(pilots=3.0, twin=0.5)])),
        "\n".join(summary([run_of(pilots=0.6, twin=0.5)])),
    )
    assert says(slow, "NOT met", "p99", "+2.50 s") and says(slow, "NOT met", "mean", "+2.50 s")
    assert says(quick, "met", "mean", "+0.10 s") and "NOT met" not in quick
    assert says(quick, "met", "productive node-seconds: 90 of 100", "(90%)")


def test_without_pairs_nothing_is_claimed() -> None:
    run = run_of()
    for job in run["arms"][BASE]["jobs"].values():
        job["start_s"] = None
    assert [says(line, "no pair") for line in summary([run])] == [True]


def test_quantiles_lie_between_values_in_proportion() -> None:
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.0, 0.25, 0.5, 1.0)] == [1.0, 1.5, 2.0, 3.0]
    assert p99([float(n) for n in range(101)]) == pytest.approx(99.0)


def test_the_interval_holds_the_mean_about_as_often_as_it_says() -> None:
    rng = random.Random(7)
    held = 0
    for _ in range(60):
        low, high = bootstrap([rng.gauss(1.0, 2.0) for _ in range(80)])
        held += low <= 1.0 <= high
    assert held >= 50  # 95 % of 60 are 57


def test_every_kind_is_dealt_and_nothing_else_changes() -> None:
    jobs = [MainJob(n, float(n), 1 + n % 4, 5.0, 60.0) for n in range(120)]
    dealt = of_all_kinds(jobs)
    assert {job.kind for job in dealt} == set(Kind)
    assert [(j.number, j.submit_s, j.nodes) for j in dealt] == [(j.number, j.submit_s, j.nodes) for j in jobs]
    assert all(job.nodes > 1 for job in dealt if job.kind is not Kind.PLAIN)


def test_what_slurmctld_was_asked_is_counted_by_kind() -> None:
    text = (FIXTURES / "22.05.8" / "sdiag.txt").read_text()
    asked = rpcs_by_kind(text)
    assert asked["REQUEST_PARTITION_INFO"] == (67, 0.01574)
    assert "root" not in asked


def promised(run: dict[str, Any]) -> dict[str, Any]:
    return {**run, "attributed": {"stated": {"main_delay_p95": 2.0, "chance": 0.9}, "main_jobs": []}}


def test_a_promise_is_kept_where_so_many_jobs_show_it_beyond_the_noise() -> None:
    kept, broken = (
        next(line for line in summary([promised(run)]) if "promised" in line)
        for run in (run_of(pilots=0.5), run_of(pilots=3.0))
    )
    assert kept.startswith("met    ")
    assert says(kept, "100 of 100", "2 s")
    assert broken.startswith("NOT met")
    assert "0 of 100" in broken


def chaotic(run: dict[str, Any], numbers: range) -> dict[str, Any]:
    """The run, its twin 40 s later at these jobs: chance decides when they start."""
    for number in numbers:
        run["arms"][TWIN]["jobs"][str(number)]["start_s"] += 40.0
    return run


def promise_of(run: dict[str, Any]) -> tuple[str, str]:
    lines = list(summary([promised(run)]))
    at = next(n for n, line in enumerate(lines) if "promised" in line)
    return lines[at], lines[at + 1]


def test_a_job_that_chance_starts_sooner_or_later_without_pilots_is_not_judged() -> None:
    run = chaotic(run_of(pilots=0.5), range(30))
    for number in range(30):
        run["arms"][PILOTS]["jobs"][str(number)]["start_s"] += 30.0
    said, beside = promise_of(run)
    assert said.startswith("met    ") and says(said, "promised: 70 of 70")
    assert beside.split(maxsplit=4)[:4] == ["70", "of", "100", "jobs"]
    assert beside.endswith("within 2 s: pilots 70 of 100, twin 70 of 100, preemption 100 of 100")


def test_a_poor_twin_keeps_no_promise() -> None:
    late = run_of(pilots=0.5)
    for number in range(10):
        late["arms"][PILOTS]["jobs"][str(number)]["start_s"] += 30.0
    assert promise_of(chaotic(late, range(50, 70)))[0].startswith("NOT met")
    said, _ = promise_of(chaotic(run_of(pilots=0.5), range(60)))
    assert said.startswith("NOT met") and says(said, "promised: 40 of 40", "50%")


def test_a_comparable_job_that_did_not_start_with_pilots_is_late() -> None:
    said, _ = promise_of(run_of(pilots=None))
    assert "promised: 99 of 100 comparable" in said


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("sched: Allocate JobId=12 NodeList=n000 #CPUs=16 Partition=batch", "12"),
        ("sched/backfill: _start_job: Started JobId=13 in batch on n001", "13"),
        ("backfill: Started JobId=9_2(14) in batch on n001", "14"),
    ],
)
def test_who_started_a_job_is_read_from_the_controllers_log(line: str, number: str) -> None:
    match = STARTED.search(f"[2026-11-25T15:00:00.000] {line}")
    assert match is not None
    assert (match[3] or match[2]) == number
    assert match[1].startswith("backfill") == ("backfill" in line)


def test_what_could_be_foreseen_is_what_waited_a_cycle_without_pilots_too() -> None:
    run = run_of(pilots=1.0)  # job n waits 1 + n seconds without pilots, prolog included
    lines = [line for line in summary([{**run, "profile": "site"}]) if "waited" in line]
    figures = ["+1.00", "+1.00", "+1.00", "+0.00"]  # mean, median, worst; the twin's mean
    assert [line.split()[-5:] for line in lines] == [["39", *figures], ["61", *figures]]
