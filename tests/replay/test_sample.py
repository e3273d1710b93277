"""A long log is replayed in part: the sample's answer is that of all days, as surely as its interval says."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import ResizeCosts
from malletrain.replay import parts, run, sampling
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.options import Options
from malletrain.replay.report.frames import holes, months, timeline
from malletrain.replay.run import Replay, replay
from malletrain.replay.sampling import Sample, drawn_days, estimate
from malletrain.replay.traces.trace import BUSY, IDLE
from tests.messages import naming, says
from tests.replay.small import job, trace
from tests.replay.test_command import malletrain
from tests.replay.test_daemon_rules import SHIPPED, TICK_S, busy_machine
from tests.replay.test_parts import AUTO

HOURS = 6
OPTIONS = Options.of_daemon(replace(SHIPPED, max_nodes=4, max_pilots=5, max_pilot_s=900.0), TICK_S)
JOBS = [job(n + 1, costs=ResizeCosts(), most=8) for n in range(3)]


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Days of an hour, with a run-in of half of one."""
    monkeypatch.setattr(sampling, "DAY_S", 3600.0)
    monkeypatch.setattr(parts, "RUN_IN_S", 1800.0)


def busy(seed: int, hours: int = HOURS) -> ClusterTrace:
    return busy_machine(seed, nodes=24, seconds=hours * 3600)


def sampled(machine: ClusterTrace, count: int, seed: int = 0, processes: int = 1) -> Replay:
    sample = drawn_days(machine, count, seed, TICK_S)
    return replay(machine, JOBS, [AUTO], OPTIONS, processes=processes, sample=sample)


@pytest.mark.usefixtures("hours")
def test_a_sample_of_all_days_is_the_whole_but_for_what_begins_anew() -> None:
    machine = busy(4)
    whole = replay(machine, JOBS, [AUTO], OPTIONS, processes=1).scores["auto"]
    answer = sampled(machine, HOURS)
    found, sure = answer.scores["auto"], answer.sampled
    assert sure is not None and sure.sample.size == HOURS
    assert found.idle_node_seconds == pytest.approx(whole.idle_node_seconds)
    assert found.ideal_speedup_node_seconds == pytest.approx(whole.ideal_speedup_node_seconds)
    assert found.speedup_node_seconds == pytest.approx(whole.speedup_node_seconds, rel=0.02)
    assert found.occupied_node_seconds == pytest.approx(whole.occupied_node_seconds, rel=0.02)
    assert found.waterfall is not None
    assert sum(found.waterfall.values()) == pytest.approx(found.idle_node_seconds)
    for each in sure.headline("auto", machine.seconds).values():
        assert each.low == each.value == each.high
    assert found.mean_wait_s is None


@pytest.mark.usefixtures("hours")
def test_what_is_known_of_days_is_what_replaying_them_counts() -> None:
    machine = busy(5)
    answer = sampled(machine, HOURS)
    assert answer.sampled is not None
    log = answer.results["auto"].log
    ends = [int(np.searchsorted(log.time, end, side="right")) - 1 for _, end in answer.sampled.sample.spans]
    assert np.diff(log.best[ends], prepend=0.0) == pytest.approx(answer.sampled.ideal)
    assert answer.sampled.idle.sum() == pytest.approx(answer.trace_json()["idle_node_seconds"])


@pytest.mark.usefixtures("hours")
def test_half_of_the_days_are_near_and_parts_add_up() -> None:
    machine = busy(6, 2 * HOURS)
    whole = replay(machine, JOBS, [AUTO], OPTIONS, processes=1).scores["auto"]
    answer = sampled(machine, HOURS)
    found = answer.scores["auto"]
    assert found.idle_node_seconds == pytest.approx(whole.idle_node_seconds)
    assert found.speedup_node_seconds == pytest.approx(whole.speedup_node_seconds, rel=0.05)
    assert found.activations == pytest.approx(whole.activations, rel=0.2)
    used = found.productive_node_seconds + found.stall_node_seconds + found.activation_node_seconds
    assert used == pytest.approx(found.occupied_node_seconds)
    assert found.waterfall is not None and sum(found.waterfall.values()) == pytest.approx(found.idle_node_seconds)
    assert answer.results["auto"].samples.sum() == pytest.approx(10.0 * found.speedup_node_seconds)


@pytest.mark.usefixtures("hours")
def test_the_same_seed_gives_the_same_answer_in_one_process_or_two_and_another_other_days() -> None:
    machine = busy(7)
    one, two, other = sampled(machine, 4), sampled(machine, 4, processes=2), sampled(machine, 4, seed=1)
    a, b, c = (each.scores["auto"].speedup_node_seconds for each in (one, two, other))
    assert a == b != c
    assert one.sampled is not None and two.sampled is not None and other.sampled is not None
    assert one.sampled.sample.spans == two.sampled.sample.spans != other.sampled.sample.spans
    assert one.sampled.as_json(machine.seconds) == two.sampled.as_json(machine.seconds)


@pytest.mark.usefixtures("hours")
def test_tables_tell_what_was_replayed_from_what_was_not() -> None:
    machine = busy(9)
    answer = sampled(machine, 4)
    line = timeline(answer, bins=2 * HOURS)["held_auto"]
    assert np.isnan(line).sum() == 2 * (HOURS - 4) and not np.isnan(timeline(answer, bins=12)["idle"]).any()
    rows = holes(answer)
    assert (rows["used_auto"] <= rows["node_hours"] * (1 + 1e-9)).all()
    assert rows["used_auto"].sum() == pytest.approx(answer.scores["auto"].occupied_node_seconds / 3600, rel=0.2)
    month = months(answer, UTC)
    assert month["worth_node_hours"].sum() == pytest.approx(answer.scores["auto"].speedup_node_seconds / 3600)


def test_what_outlasts_a_run_in_is_not_sampled() -> None:
    machine = busy(10, 1)
    finite = [replace(each, job=replace(each.job, total_samples=1e6)) for each in JOBS]
    sample = Sample(np.array([machine.start]), np.array([machine.end]), np.ones(1, bool), 0)
    assert run.can_be_sampled(machine, JOBS, [AUTO], OPTIONS)
    assert not run.can_be_sampled(machine, finite, [AUTO], OPTIONS)
    with pytest.raises(InvalidInput, match=naming("no end")):
        replay(machine, finite, [AUTO], OPTIONS, processes=1, sample=sample)


# -- which days, and the estimator -----------------------------------------------------------------------------------


def idle_machine(hours: int) -> ClusterTrace:
    """Two nodes; one is idle for a quarter of each hour but every fifth."""
    rows = [(3600.0 * h + at, 0, state) for h in range(hours) if h % 5 for at, state in ((0, IDLE), (900, BUSY))]
    return trace(rows, 2, 3600.0 * hours)


@pytest.mark.usefixtures("hours")
def test_days_without_idle_nodes_are_not_drawn_and_strata_have_as_many_each() -> None:
    sample = drawn_days(idle_machine(100), 16, 3, TICK_S)
    assert len(sample) == 80 and sample.size == 16
    assert sample.drawn.reshape(4, 20).sum(axis=1).tolist() == [4, 4, 4, 4]
    assert drawn_days(idle_machine(10), 30, 3, TICK_S).drawn.all()


@pytest.mark.usefixtures("hours")
def test_each_day_is_as_likely_as_another() -> None:
    machine = idle_machine(25)
    times = np.sum([drawn_days(machine, 8, seed, TICK_S).drawn for seed in range(400)], axis=0)
    assert len(times) == 20
    assert times.min() > 110 and times.max() < 210  # 160 expected, 10 the deviation


def of(drawn: NDArray[np.bool_]) -> Sample:
    at = np.arange(len(drawn), dtype=float)
    return Sample(at, at + 1, drawn, 0)


def test_the_ratio_by_hand() -> None:
    sample = of(np.array([True, True, False, True]))
    assert estimate(sample, np.array([2.0, 4.0, 3.0, 6.0]), np.array([1.0, 2.0, 6.0])).value == pytest.approx(11.25)
    known = np.array([2.0, 4.0, 3.0, 6.0])
    found = estimate(sample, known, 0.9 * known[sample.drawn])
    assert (found.low, found.value, found.high) == pytest.approx((13.5, 13.5, 13.5)), "the ratio is the same each day"


def test_intervals_hold_as_often_as_they_say() -> None:
    """Ten windows of 300 days with a season, of unlike size and with few bad days; 40 samples of each."""
    hits = []
    for window in range(10):
        draw = np.random.default_rng(window)
        season = 1 + 0.5 * np.sin(np.arange(300) / 300 * 7)
        x = draw.gamma(2.0, 500.0, 300) * season
        y = x * (0.98 - 0.2 * draw.beta(1.0, 5.0, 300) - 0.02 * (season - 1))
        for _ in range(40):
            drawn = np.zeros(300, bool)
            for neighbours in range(8):
                mine = np.flatnonzero(np.arange(300) * 8 // 300 == neighbours)
                drawn[draw.choice(mine, 4, replace=False)] = True
            found = estimate(of(drawn), x, y[drawn])
            hits.append(found.low <= y.sum() <= found.high)
    assert 0.9 <= np.mean(hits) <= 0.98


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seventy days of six nodes, of which two idle now and then."""
    at, path = random.Random(5), tmp_path_factory.mktemp("log") / "log.swf"
    rows: list[str] = []
    when = 0
    while when < 70 * 86_400:
        lasts = at.randrange(3600, 20_000)
        rows.append(f"{len(rows)} {when} 0 {lasts} {at.choice([4, 5])} -1 -1 4 30000\n")
        when += lasts + at.randrange(0, 3000)
    path.write_text("; UnixStartTime: 1600000000\n; MaxNodes: 6\n; MaxProcs: 6\n" + "".join(rows))
    return path


def test_the_command_samples_long_logs_and_says_so(long_log: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "report", tmp_path / "answer.json"
    args = [
        "replay",
        str(long_log),
        "--mix",
        "imagenet:3",
        "likely_outages=count",
        "ideal=true",
    ]
    done = malletrain(*args, "--sample", "8", "--report", str(folder), "--json", str(out), "processes=1")
    assert done.returncode == 0, done.stderr
    assert says(done.stderr, "sample: 8 of 70", "(seed 0)")
    assert "Sampled: 8 of 70 days" in done.stdout
    answer = json.loads(out.read_text())
    assert answer["sample"]["replayed"] == len(answer["sample"]["spans"]) == 8
    sure, figures = answer["sample"]["intervals"]["auto"], answer["policies"]["auto"]
    for name in ("occupied_node_seconds", "speedup_node_seconds", "share_of_ideal", "equivalent_nodes"):
        assert sure[name][0] * (1 - 1e-9) <= figures[name] <= sure[name][1] * (1 + 1e-9)
    assert sure["speedup_node_seconds"][0] < sure["speedup_node_seconds"][1]
    page = (folder / "index.html").read_text()
    low, high = sure["equivalent_nodes"]
    assert f"{low:,.1f} to {high:,.1f} nodes" in page and 'id="sampled"' in page and "--sample all" in page
    whole = malletrain(*args, "--sample", "all", "--json", "-", "processes=1")
    everything = json.loads(whole.stdout)
    assert "sample" not in everything and "sample:" not in whole.stderr
    for name in ("idle_node_seconds", "ideal_speedup_node_seconds"):
        assert figures[name] == pytest.approx(everything["policies"]["auto"][name])
    assert figures["share_of_ideal"] == pytest.approx(everything["policies"]["auto"]["share_of_ideal"], abs=0.03)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "sample: 32 of 70"),
        (["--end", "+60d"], ""),
        (["--mix", "hpo:2"], "sample: none"),
    ],
)
def test_what_is_sampled_without_being_asked(long_log: Path, more: list[str], said: str) -> None:
    mix = [] if "--mix" in more else ["--mix", "imagenet:1"]
    done = malletrain("replay", str(long_log), "ideal=true", "likely_outages=count", "processes=1", *mix, *more)
    assert done.returncode == 0, done.stderr
    assert said in done.stderr if said else "sample:" not in done.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--sample", "3"], "4 or more"),
        (["--sample", "some"], "of days"),
        (["--sample", "8", "--mix", "hpo:2"], "no end"),
    ],
)
def test_what_cannot_be_sampled_is_refused_in_one_line(long_log: Path, more: list[str], said: str) -> None:
    done = malletrain("replay", str(long_log), *more)
    assert done.returncode == 2 and said in done.stderr
    assert "Traceback" not in done.stderr
