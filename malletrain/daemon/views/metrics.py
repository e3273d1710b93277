"""Figures for Prometheus: what the daemon sees, does and costs. Its own registry, text format only.

Names follow Prometheus' conventions: base units, `_total` for counters (https://prometheus.io/docs/practices/naming).
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from malletrain import __version__
from malletrain.domain.decision import ACTION_NAMES, LeaveCause, LeavePilot, SizingStatus, StartPilot
from malletrain.domain.event import (
    ActionIntent,
    ActionOutcome,
    Event,
    GenerationSwitched,
    PilotEnded,
    PilotHeld,
    PilotStarted,
    PoolCounted,
    SamplesReported,
    SizesDecided,
    SlurmUnavailable,
    StraysTakenBack,
    WorkerLost,
)
from malletrain.domain.job import JobPhase, JobView, PilotPhase

# A `_created` series beside each other one adds nothing to what Prometheus records.
disable_created_metrics()  # type: ignore[no-untyped-call]

#: How nodes are used: the keys of a `pool` event.
USES = ("idle", "planned", "harvested", "main", "down", "reserved", "stray")

_COMMAND_BUCKETS = (0.01, 0.03, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30)
_TICK_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10)
_PAUSE_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 15, 60)
_START_BUCKETS = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)


#: What the daemon does again and again: the label `timer`.
TASKS = ("tick", "watch", "upkeep", "journal", "react")


class Elapsed(Protocol):
    """A clock for durations (`loop.ports.Clock`)."""

    def elapsed(self) -> float:
        """Seconds of a clock that never jumps."""
        ...


class Metrics:
    """All of the daemon's figures. Safe to call from any thread; no figure makes a method raise."""

    def __init__(self, clock: Elapsed) -> None:
        self._clock = clock
        self.registry = registry = CollectorRegistry()
        self._released_at: dict[str, float] = {}
        info = Gauge("malletrain_build_info", "1, with the running version.", ["version"], registry=registry)
        info.labels(__version__).set(1)
        self._nodes = Gauge("malletrain_nodes", "Nodes by use.", ["use"], registry=registry)
        self._pilots = Gauge("malletrain_pilots", "Pilots by phase.", ["phase"], registry=registry)
        self._jobs = Gauge("malletrain_jobs", "Malleable jobs by phase.", ["phase"], registry=registry)
        self._snapshot_at = Gauge(
            "malletrain_snapshot_timestamp_seconds", "When Slurm was last seen whole (Unix time).", registry=registry
        )
        self._answers = Gauge(
            "malletrain_slurm_answers", "1 while Slurm answers looks; 0 from the first that it does not.",
            registry=registry,
        )  # fmt: skip
        self._breaker = Gauge("malletrain_breaker_open", "1 while the daemon stands back.", registry=registry)
        self._stage = Histogram(
            "malletrain_tick_seconds", "Time of a tick by stage.", ["stage"], buckets=_TICK_BUCKETS, registry=registry
        )
        self._failures = Counter(
            "malletrain_run_failures_total", "Runs of a timer that failed.", ["timer"], registry=registry
        )
        self._late = Counter(
            "malletrain_runs_skipped_total",
            "Runs left out: the one before was still going.",
            ["timer"],
            registry=registry,
        )
        self._solves = Counter("malletrain_sizing_total", "Sizing answers by status.", ["status"], registry=registry)
        self._actions = Counter(
            "malletrain_actions_total",
            "Actions by kind and whether they were done.",
            ["action", "done"],
            registry=registry,
        )
        self._leaves = Counter(
            "malletrain_leaves_total", "Pilots asked to leave, by cause; `yield` is for a main job.", ["cause"],
            registry=registry,
        )  # fmt: skip
        self._preemptions = Counter(
            "malletrain_preemptions_total", "Pilots that Slurm preempted: yielding came too late.", registry=registry
        )
        self._strays = Counter(
            "malletrain_strays_total",
            "Jobs in the harvest partition that were no pilots; `ended` no: they could not be ended.",
            ["ended"],
            registry=registry,
        )
        self._lost = Counter("malletrain_workers_lost_total", "Workers that went without leaving.", registry=registry)
        self._refused = Counter(
            "malletrain_workers_refused_total",
            "Hellos of workers, and members that they named, that were refused: the log says why.",
            registry=registry,
        )
        self._start = Histogram(
            "malletrain_pilot_start_seconds", "From the intent to start to the start.", buckets=_START_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self._pause = Histogram(
            "malletrain_resize_pause_seconds", "Stall of a world at a resize.", ["direction"], buckets=_PAUSE_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self._figures_dropped = Counter(
            "malletrain_worker_figures_dropped_total",
            "Figures that workers reported beyond what one worker or one user may.",
            registry=registry,
        )
        self._samples = Counter("malletrain_samples_total", "Samples trained.", registry=registry)
        self._command = Histogram(
            "malletrain_slurm_command_seconds", "Latency of Slurm commands.", ["command"], buckets=_COMMAND_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self._command_failures = Counter(
            "malletrain_slurm_command_failures_total", "Slurm commands that failed or gave no answer.", ["command"],
            registry=registry,
        )  # fmt: skip
        self._unavailable = Counter(
            "malletrain_cluster_unavailable_total", "Looks at Slurm from which no action followed.", registry=registry
        )
        self._journal_writable = Gauge(
            "malletrain_journal_writable", "0 while the journal refuses writes.", registry=registry
        )
        self._journal_writable.set(1)
        self._journal_kept = Gauge(
            "malletrain_journal_kept_events", "Events kept in memory until the journal takes them.", registry=registry
        )
        self._journal_refusals = Counter(
            "malletrain_journal_refusals_total", "Writes that the journal refused.", registry=registry
        )
        self._journal_free = Gauge(
            "malletrain_journal_free_bytes", "Room on the journal's file system.", registry=registry
        )
        # Known labels start at 0, so that a rate() over the first event is seen.
        for task in TASKS:
            self._failures.labels(task)
            self._late.labels(task)
        for status in SizingStatus:
            self._solves.labels(status.value)
        for ended in ("yes", "no"):
            self._strays.labels(ended)
        for cause in LeaveCause:
            self._leaves.labels(cause.value)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage of a tick: `with metrics.stage("observe"): ...`. A stage that raises is timed too."""
        begun = self._clock.elapsed()
        try:
            yield
        finally:
            self.stage_took(name, self._clock.elapsed() - begun)

    def stage_took(self, name: str, seconds: float) -> None:
        """One stage of a tick took so long."""
        self._stage.labels(name).observe(seconds)

    def slurm_command(self, command: str, seconds: float, *, ok: bool) -> None:
        """A Slurm command (`squeue`, `scontrol update`, ...) took so long, and answered or did not."""
        self._command.labels(command).observe(seconds)
        if not ok:
            self._command_failures.labels(command).inc()

    def snapshot_taken(self, at: float) -> None:
        """Slurm was seen whole at `at` (Unix seconds)."""
        self._snapshot_at.set(at)

    def record(self, events: Iterable[Event]) -> None:
        """Facts that were journalled just now; not the journal read again at a restart: they would count twice."""
        for event in events:
            self._record(event)

    def _record(self, event: Event) -> None:
        match event.payload:
            case SizesDecided(status=status):
                self._solves.labels(status).inc()
            case ActionIntent(action=StartPilot()):
                self._released_at[event.pilot or ""] = event.at
            case ActionIntent(action=LeavePilot(cause=cause)):
                self._leaves.labels(cause).inc()
            case ActionOutcome(action=action, done=done):
                self._actions.labels(ACTION_NAMES[type(action)], "yes" if done else "no").inc()
            case PoolCounted() as pool:
                self.show_pool({use: getattr(pool, use) for use in USES})
            case PilotStarted(started_at=started_at):
                released = self._released_at.pop(event.pilot or "", None)
                if released is not None:
                    self._start.observe(max(0.0, (started_at or event.at) - released))
            case PilotHeld(preempted=preempted) | PilotEnded(preempted=preempted):
                self._released_at.pop(event.pilot or "", None)
                if preempted:
                    self._preemptions.inc()
            case StraysTakenBack(count=count, failed=failed):
                self._strays.labels("no" if failed else "yes").inc(count)
            case WorkerLost():
                self._lost.inc()
            case GenerationSwitched(pause_s=pause_s, grew=grew):
                self._pause.labels("grow" if grew else "shrink").observe(_finite(pause_s))
            case SamplesReported(samples=samples):
                self._samples.inc(max(0.0, _finite(samples)))
            case SlurmUnavailable():
                self._unavailable.inc()
            case _:
                pass

    def show_pool(self, counts: Mapping[str, float]) -> None:
        """Node counts by use (`USES`); what is missing is 0."""
        for use in USES:
            self._nodes.labels(use).set(counts.get(use, 0))

    def show_jobs(self, jobs: Iterable[JobView]) -> None:
        """Jobs and pilots as they are now."""
        phases: Tally[str] = Tally()
        pilots: Tally[str] = Tally()
        for view in jobs:
            phases[view.phase.value] += 1
            pilots.update(pilot.phase.value for pilot in view.pilots.values())
        for phase in JobPhase:
            self._jobs.labels(phase.value).set(phases[phase.value])
        for pilot_phase in PilotPhase:
            self._pilots.labels(pilot_phase.value).set(pilots[pilot_phase.value])

    def slurm_answers(self, answered: bool) -> None:
        """Slurm was looked at, and answered or did not."""
        self._answers.set(1 if answered else 0)

    def breaker(self, *, is_open: bool) -> None:
        """Whether the daemon stands back by itself."""
        self._breaker.set(1 if is_open else 0)

    def run_failed(self, timer: str) -> None:
        """A run of a timer ended with an exception."""
        self._failures.labels(timer).inc()

    def run_skipped(self, timer: str) -> None:
        """A run of a timer was left out, the one before was still going."""
        self._late.labels(timer).inc()

    def journal_refused(self) -> None:
        """The journal refused a write."""
        self._journal_refusals.inc()

    def journal_kept(self, events: int, *, writable: bool) -> None:
        """So many events wait for the journal, which takes them or not."""
        self._journal_kept.set(events)
        self._journal_writable.set(1 if writable else 0)

    def journal_room(self, free_bytes: float) -> None:
        """Room on the journal's file system."""
        self._journal_free.set(free_bytes)

    def worker_refused(self) -> None:
        """A hello, or a member that one names, was refused."""
        self._refused.inc()

    def figures_dropped(self, count: int) -> None:
        """Figures of a report were left out."""
        self._figures_dropped.inc(count)

    def render(self) -> bytes:
        """The page that Prometheus reads (text format)."""
        return generate_latest(self.registry)


def _finite(value: float) -> float:
    """A worker's figure; 0 for one that no sum can bear."""
    return value if abs(value) < 1e300 else 0.0
