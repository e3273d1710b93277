"""Deadlines in a replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.domain.errors import InvalidInput
from malletrain.replay import parse_policy, read_jobs, replay
from malletrain.replay.traces.trace import BUSY, IDLE
from malletrain.replay.workload import TrainingJob, shifted, training_job
from tests.replay.small import FREE, LINEAR, START, job, trace

#: Four nodes, then two; each trains ten samples a second.
MACHINE = trace([*((0.0, n, IDLE) for n in range(4)), (300.0, 0, BUSY), (300.0, 1, BUSY)], 4, 3600.0)


def with_deadline(number: int, samples: float, seconds: float) -> TrainingJob:
    return training_job(number, f"due-{number}", LINEAR, FREE, submitted_at=START, max_nodes=64,
                        total_samples=samples, deadline_s=seconds)  # fmt: skip


@pytest.mark.parametrize(("seconds", "met"), [(900.0, 1), (100.0, 0)])
def test_deadline_gives_a_job_its_share_before_others(seconds: float, met: int) -> None:
    """7,000 samples take 700 s on one node: to be met in 900 s and not in 100, where all three others are served."""
    jobs = [job(1), job(2), job(3), job(4), with_deadline(5, 7000.0, seconds)]
    answer = replay(MACHINE, jobs, [parse_policy("deadline", None), parse_policy("auto", None)], processes=1)
    assert (answer.scores["deadline"].deadlines, answer.scores["deadline"].deadlines_met) == (1, met)
    # Five jobs alike for two nodes: by ids the last one waits.
    assert (answer.scores["auto"].deadlines, answer.scores["auto"].deadlines_met) == (1, 0)
    assert answer.scores["deadline"].speedup_node_seconds == pytest.approx(answer.scores["auto"].speedup_node_seconds)


def test_deadlines_beyond_the_window_do_not_count() -> None:
    jobs = [job(1), with_deadline(2, 1e9, 4000.0)]
    score = replay(MACHINE, jobs, [parse_policy("deadline", None)], processes=1).scores["deadline"]
    assert (score.deadlines, score.deadlines_met) == (0, 0)


def test_deadlines_are_read_and_move_with_the_window(tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text("model,submit_time,total_samples,deadline_s\nresnet18,60,1e6,600\nresnet18,120,1e6,\n")
    text = tmp_path / "jobs.toml"
    text.write_text('[[job]]\nmodel = "resnet18"\nsubmit = 60\ntotal_samples = 1e6\ndeadline_s = 600\n')
    (first, second), (same,) = (shifted(read_jobs(path, FREE), START) for path in (table, text))
    assert first.job.deadline == same.job.deadline == START + 660.0
    assert second.job.deadline is None


@pytest.mark.parametrize(("rest", "what"), [("deadline_s = 60", "total_samples"),
                                            ("total_samples = 1\ndeadline_s = -1", "deadline_s")])  # fmt: skip
def test_a_deadline_that_says_nothing_is_refused(tmp_path: Path, rest: str, what: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(f'[[job]]\nmodel = "resnet18"\n{rest}\n')
    with pytest.raises(InvalidInput, match=what):
        read_jobs(path, FREE)
