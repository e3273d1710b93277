"""Sections of the report: none is empty, and the policies' table says what an analyst compares."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from malletrain.replay import parse_policy, replay
from malletrain.replay.report.page import write_report
from malletrain.replay.report.summary import table
from malletrain.replay.run import Replay
from malletrain.replay.traces.trace import BUSY, IDLE
from tests.replay.small import START, job, trace


def answered(deadline_s: float | None = None) -> Replay:
    jobs = [job(1, samples=20_000.0), job(2)]
    if deadline_s is not None:
        jobs[0] = replace(jobs[0], job=replace(jobs[0].job, deadline=START + deadline_s))
    rows = [(100.0, n, IDLE) for n in range(3)] + [(6000.0, 1, BUSY)]
    return replay(trace(rows, 3, 7200.0), jobs, [parse_policy("auto", None)], processes=1)


def test_no_section_is_empty(tmp_path: Path) -> None:
    page = write_report(answered(), tmp_path).read_text(encoding="utf-8")
    assert not re.search(r"<figure>\s*</figure>", page)
    for part in re.findall(r"<h2>[^<]*</h2>(.*?)(?=<h2>|</main>)", page, re.DOTALL):
        assert re.sub(r"<[^>]*>", "", part).strip()


def test_samples_stand_beside_speed_ups_and_deadlines_where_there_are_some() -> None:
    answer = answered()
    (head, row) = table(answer.scores)
    assert row[head.index("million samples")] == f"{answer.scores['auto'].samples / 1e6:,.1f}"
    assert "deadlines met" not in head
    (head, row) = table(answered(deadline_s=3600.0).scores)
    assert row[head.index("deadlines met")] == "1 of 1"
