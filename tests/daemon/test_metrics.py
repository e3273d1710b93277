"""Figures as Prometheus reads them: the page is parsed by its own library."""

from collections.abc import Mapping
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from malletrain.daemon.metrics import Metrics
from malletrain.domain.event import FACTS, Event, JsonValue
from malletrain.domain.job import JobPhase, JobView, MalleableJob, Pilot, PilotPhase
from tests.world import event_of


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def elapsed(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics(clock)


def figures(metrics: Metrics) -> dict[str, float]:
    """`name{label="value"}` to value, of the page."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def event(kind: str, at: float = 100.0, pilot: str | None = None, **data: JsonValue) -> Event:
    return event_of(at, kind, job=1, pilot=pilot, data=data)


def test_nodes_by_use(metrics: Metrics) -> None:
    metrics.record([event("pool", idle=3, planned=1, harvested=2, main=4, down=0, powered_down=5)])
    page = figures(metrics)
    wanted = {"idle": 3, "planned": 1, "harvested": 2, "main": 4, "down": 0, "powered_down": 5}
    assert {use: page[f"malletrain_nodes{{use={use}}}"] for use in wanted} == wanted


def test_yields_and_other_leaves_are_told_apart(metrics: Metrics) -> None:
    metrics.record([
        event("intent", pilot="1_0", type="leave", cause="yield"),
        event("intent", pilot="1_1", type="leave", cause="shrink"),
        event("intent", pilot="1_2", type="leave", cause="yield"),
    ])  # fmt: skip
    page = figures(metrics)
    assert page["malletrain_leaves_total{cause=yield}"] == 2
    assert page["malletrain_leaves_total{cause=shrink}"] == 1
    assert page["malletrain_leaves_total{cause=operator}"] == 0


def test_preemptions_are_counted_and_orderly_ends_are_not(metrics: Metrics) -> None:
    metrics.record([
        event("pilot_ended", pilot="1_0", preempted=True),
        event("pilot_ended", pilot="1_1", preempted=False),
    ])  # fmt: skip
    assert figures(metrics)["malletrain_preemptions_total"] == 1


def test_the_latency_of_a_start_is_from_intent_to_start(metrics: Metrics) -> None:
    metrics.record([event("intent", at=100.0, pilot="1_0", type="start")])
    metrics.record([event("pilot_started", at=110.0, pilot="1_0", started_at=101.5)])
    # Started again without an intent of ours: no latency to tell.
    metrics.record([event("pilot_started", at=210.0, pilot="1_0", started_at=201.5)])
    page = figures(metrics)
    assert page["malletrain_pilot_start_seconds_count"] == 1
    assert page["malletrain_pilot_start_seconds_sum"] == 1.5


def test_a_pilot_that_went_back_is_not_waited_for(metrics: Metrics) -> None:
    metrics.record([
        event("intent", at=100.0, pilot="1_0", type="start"),
        event("pilot_held", at=160.0, pilot="1_0"),
        event("pilot_started", at=900.0, pilot="1_0", started_at=900.0),
    ])  # fmt: skip
    assert figures(metrics)["malletrain_pilot_start_seconds_count"] == 0


def test_resizes_with_their_pause(metrics: Metrics) -> None:
    metrics.record([
        event("switched", pause_s=0.3, grew=True),
        event("switched", pause_s=0.1, grew=False),
        event("switched", pause_s=0.2, grew=False),
    ])  # fmt: skip
    page = figures(metrics)
    assert page["malletrain_resize_pause_seconds_count{direction=grow}"] == 1
    assert page["malletrain_resize_pause_seconds_count{direction=shrink}"] == 2
    assert page["malletrain_resize_pause_seconds_sum{direction=shrink}"] == pytest.approx(0.3)


def test_stages_of_a_tick_are_timed_even_when_they_fail(metrics: Metrics, clock: Clock) -> None:
    with metrics.stage("observe"):
        clock.at += 0.2
    with pytest.raises(ValueError, match="no"), metrics.stage("decide"):
        clock.at += 0.1
        raise ValueError("no")
    page = figures(metrics)
    assert page["malletrain_tick_seconds_sum{stage=observe}"] == pytest.approx(0.2)
    assert page["malletrain_tick_seconds_count{stage=decide}"] == 1


def test_slurm_commands_and_their_failures(metrics: Metrics) -> None:
    metrics.slurm_command("squeue", 0.02, ok=True)
    metrics.slurm_command("squeue", 10.0, ok=False)
    page = figures(metrics)
    assert page["malletrain_slurm_command_seconds_count{command=squeue}"] == 2
    assert page["malletrain_slurm_command_failures_total{command=squeue}"] == 1


def test_solver_answers_actions_and_the_breaker(metrics: Metrics) -> None:
    metrics.record([event("decided", status="fallback"), event("outcome", type="start", done=False)])
    metrics.breaker_open.set(1)
    metrics.failures.labels("tick").inc()
    metrics.skipped.labels("watch").inc()
    metrics.snapshot_at.set(1234.0)
    page = figures(metrics)
    assert page["malletrain_sizing_total{status=fallback}"] == 1
    assert page["malletrain_sizing_total{status=optimal}"] == 0
    assert page["malletrain_actions_total{action=start,done=no}"] == 1
    assert page["malletrain_breaker_open"] == 1
    assert page["malletrain_run_failures_total{timer=tick}"] == 1
    assert page["malletrain_runs_skipped_total{timer=watch}"] == 1
    assert page["malletrain_snapshot_timestamp_seconds"] == 1234


def test_jobs_and_pilots_by_phase_go_back_to_zero(metrics: Metrics) -> None:
    job = MalleableJob(1, "a", "ann", 1000, "", 1, 4, 0.0)
    pilots = {"1_0": Pilot("1_0", 1, PilotPhase.RUNNING, 0.0), "1_1": Pilot("1_1", 1, PilotPhase.HELD, 0.0)}
    metrics.show_jobs([JobView(job, JobPhase.RUNNING, pilots)])
    page = figures(metrics)
    assert page["malletrain_jobs{phase=running}"] == 1
    assert page["malletrain_pilots{phase=running}"] == 1
    assert page["malletrain_pilots{phase=held}"] == 1
    metrics.show_jobs([])
    page = figures(metrics)
    assert page["malletrain_jobs{phase=running}"] == 0
    assert page["malletrain_pilots{phase=held}"] == 0


json_values: st.SearchStrategy[JsonValue] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True), st.text(max_size=4), st.just([])
)


@given(st.lists(st.tuples(
    st.sampled_from(sorted(FACTS)),
    st.dictionaries(
        st.sampled_from(
            ["type", "cause", "done", "pause_s", "grew", "samples", "started_at", "preempted", "idle", "status"]
        ),
        json_values,
    ),
)))  # fmt: skip
def test_no_event_however_odd_is_an_error(events: list[tuple[str, Mapping[str, JsonValue]]]) -> None:
    metrics = Metrics(Clock())
    for kind, data in events:
        with suppress(ValueError):  # of the wrong type: refused when it is read
            metrics.record([event_of(1.0, kind, job=1, pilot="1_0", data=data)])
    assert figures(metrics)["malletrain_build_info{version=" + _version() + "}"] == 1


def _version() -> str:
    from malletrain import __version__

    return __version__
