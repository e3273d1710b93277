"""The daemon's word on each main job against the arms without pilots."""

from __future__ import annotations

from typing import Any

from scripts.play.attribution import agreement, attributed_pairs


def run_of(said: list[tuple[str, float]], *starts: tuple[int, float, float, float]) -> dict[str, Any]:
    """A play: (id, start without, in the twin, with pilots) of each job."""

    def arm(column: int) -> dict[str, Any]:
        jobs = {
            str(n): {"id": row[0], "kind": "plain", "submitted_at": 100.0 * n, "start_s": row[column]}
            for n, row in enumerate(starts)
        }
        return {"jobs": jobs}

    rows = [{"main_job": name, "delay_s": delay, "cause": "leaving"} for name, delay in said]
    arms = {"none": arm(1), "twin": arm(2), "preemption": arm(1), "pilots": arm(3)}
    return {"arms": arms, "attributed": {"main_jobs": rows}}


def test_each_job_is_blamed_or_acquitted_rightly_or_falsely() -> None:
    run = run_of(
        [("10", 5.0), ("11", 4.0), ("14_1", 1.0), ("14_2", 9.0), ("15", 2.5)],
        (10, 1.0, 1.2, 6.0), (11, 1.0, 1.0, 1.4), (12, 1.0, 1.0, 8.0), (13, 1.0, 1.0, 1.1), (14, 1.0, 1.0, 10.0),
        (15, 1.0, 1.0, 2.6), (16, 1.0, 9.0, 9.0),
    )  # fmt: skip
    pairs = attributed_pairs(run)
    assert [pair.verdict for pair in pairs[:6]] == [
        "blamed rightly", "blamed falsely", "acquitted falsely", "acquitted rightly", "blamed rightly",
        "acquitted rightly",
    ]  # fmt: skip
    assert not pairs[6].is_clear, "the arms without pilots do not agree on it"
    lines = list(agreement(pairs))
    assert lines[0].startswith("7 main jobs, 6 of which")
    assert sum("falsely: job" in line for line in lines) == 2


def test_a_job_that_waited_while_no_pilot_ran_was_behind_others() -> None:
    run = run_of([], (12, 1.0, 1.0, 8.0), (13, 1.0, 1.0, 8.0))
    pairs = attributed_pairs(run, [(90.0, 103.0)])
    assert [pair.verdict for pair in pairs] == ["late behind others", "acquitted falsely"]
