"""A replay gives policies what they need: batches with noise scales, and budgets."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.decide.rules import AccountBudget, Period
from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve, ResizeCosts
from malletrain.replay.job_files import read_jobs
from malletrain.replay.options import Options
from malletrain.replay.policy_inputs import parse_budget
from malletrain.replay.run import replay
from malletrain.replay.scoring.figures import Score
from malletrain.replay.sizer import parse_policy, require_replay_inputs, trained_curve
from malletrain.replay.traces.trace import IDLE
from malletrain.replay.workload import TrainingJob, training_job
from tests.messages import naming
from tests.replay.small import trace

BATCHES = ((32, Curve(((1, 100.0), (4, 120.0)))), (128, Curve(((1, 110.0), (4, 400.0)))))


def scores(jobs: list[TrainingJob], names: str, nodes: int, hours: float, options: Options) -> dict[str, Score]:
    steady = trace([(0.0, n, IDLE) for n in range(nodes)], nodes, 3600 * hours)
    choices = [parse_policy(name, 300.0) for name in names.split(",")]
    return replay(steady, jobs, choices, options, processes=1).scores


def job(number: int, name: str = "", **more: object) -> TrainingJob:
    curve = more.pop("curve", Curve.linear(8))
    fields = {"max_nodes": 8} | more
    return training_job(number, name or f"job-{number}", curve, ResizeCosts(0, 0, 0), **fields)  # type: ignore[arg-type]


def test_progress_counts_at_the_batch_that_the_policy_chooses() -> None:
    each = job(1, curve=BATCHES[0][1], max_nodes=4, batches=BATCHES, noise_scale=96.0)
    own, fastest, best = (trained_curve(each, parse_policy(n, None)) for n in ("auto", "elastic_batch", "goodput"))
    assert own.throughput(4) == 120.0
    worth = (96 + 32) / (96 + 128)  # of a sample at a batch of 128
    assert fastest.throughput(1) == pytest.approx(110 * worth) and fastest.throughput(4) == pytest.approx(400 * worth)
    assert best.throughput(1) == 100.0 and best.throughput(4) == pytest.approx(400 * worth)


def test_goodput_gains_over_a_fixed_batch_and_over_the_fastest() -> None:
    jobs = [job(n, curve=BATCHES[0][1], max_nodes=4, batches=BATCHES, noise_scale=96.0) for n in range(1, 13)]
    found = scores(jobs, "auto,elastic_batch,goodput", 24, 2.0, Options())
    shares = {name: each.share_of_ideal or 0.0 for name, each in found.items()}
    assert shares["goodput"] > 1.1 * shares["auto"]
    assert shares["goodput"] >= shares["elastic_batch"]
    assert max(shares.values()) <= 1.0 + 1e-9, "the ideal is with the best batches"


@pytest.mark.parametrize("name", ["auto", "equal", "budget"])
def test_no_policy_spends_more_than_a_budget(name: str) -> None:
    jobs = [job(1, account="vision"), job(2, account="biology")]
    budget = AccountBudget("vision", frozenset({"vision"}), 4 * 3600.0, Period.WEEK)
    steady = trace([(0.0, n, IDLE) for n in range(8)], 8, 4 * 3600.0)
    found = replay(steady, jobs, [parse_policy(name, 300.0)], Options(budgets=(budget,)), processes=1)
    held = found.results[name].totals.by_job
    assert 0.9 * budget.node_s < held[0] <= budget.node_s * (1 + 1e-9)
    assert held[1] > budget.node_s


def test_what_is_spent_comes_back_with_the_next_period() -> None:
    jobs = [job(1, account="vision")]
    budget = AccountBudget("vision", frozenset({"vision"}), 8 * 3600.0, Period.DAY)
    steady = trace([(0.0, n, IDLE) for n in range(8)], 8, 20 * 3600.0)
    found = replay(steady, jobs, [parse_policy("auto", 300.0)], Options(budgets=(budget,)), processes=1)
    held = found.results["auto"].totals.by_job[0]
    assert 1.9 * budget.node_s < held <= 2 * budget.node_s * (1 + 1e-9)


def test_a_budget_makes_policy_budget_narrow_where_width_is_dear() -> None:
    """Two jobs scale as n^.5: with a quarter of what they would use, budget's widths end them sooner than auto's."""
    bent = Curve(tuple((n, 10.0 * n**0.5) for n in range(1, 9)))
    jobs = [job(n, account="a", curve=bent, total_samples=10.0 * 3600 * 2) for n in (1, 2)]
    budget = AccountBudget("a", frozenset({"a"}), 5 * 3600.0, Period.DAY)
    found = scores(jobs, "auto,budget", 16, 6.0, Options(budgets=(budget,)))
    assert found["budget"].jobs_completed > found["auto"].jobs_completed


def test_batches_accounts_and_noise_come_from_the_jobs_file(tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(
        '[[job]]\nname="a"\naccount="vision"\nnoise_scale=96\nbatch=128\nmax_nodes=4\n'
        "[job.batches]\n32={1=100.0, 4=120.0}\n128={1=110.0, 4=400.0}\n"
    )
    (each,) = read_jobs(file, ResizeCosts())
    assert (each.batches, each.noise_scale, each.job.account) == (BATCHES, 96.0, "vision")
    assert each.curve.throughput(4) == pytest.approx(400 * 128 / 224)
    require_replay_inputs([parse_policy("goodput", None), parse_policy("elastic_batch", None)], [each])
    for wrong in ("batch=64\n", "noise_scale=true\n"):
        file.write_text(file.read_text().replace("batch=128\n", wrong))
        with pytest.raises(InvalidInput):
            read_jobs(file, ResizeCosts())


def test_budgets_are_read_and_named() -> None:
    jobs = [job(1, account="vision"), job(2)]
    assert parse_budget("vision=2.5/week", jobs) == AccountBudget(
        "vision", frozenset({"vision"}), 9000.0, Period.WEEK
    )
    assert parse_budget("10/day", jobs).accounts == {"vision", ""}
    for text in ("vision=2", "x=3/day", "3/hour", "=3/day"):
        with pytest.raises(InvalidInput, match=r"replay\.budget"):
            parse_budget(text, jobs)
    require_replay_inputs([parse_policy("budget", None)], jobs, [parse_budget("10/day", jobs)])
    with pytest.raises(InvalidInput, match=naming("replay.budget")):
        require_replay_inputs([parse_policy("budget", None)], jobs)
