"""Figures for Prometheus: what the daemon sees, does and costs. Its own registry, text format only.

Names follow Prometheus' conventions: base units, `_total` for counters (https://prometheus.io/docs/practices/naming).
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from malletrain import __version__
from malletrain.domain import event as kinds
from malletrain.domain.decision import ACTION_NAMES, LeaveCause, LeavePilot, SizingStatus, StartPilot
from malletrain.domain.event import Event
from malletrain.domain.job import JobPhase, JobView, PilotPhase
from malletrain.loop.ports import Clock

# A `_created` series beside each other one adds nothing to what Prometheus records.
disable_created_metrics()  # type: ignore[no-untyped-call]

_COMMAND_BUCKETS = (0.01, 0.03, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30)
_TICK_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10)
_PAUSE_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 15, 60)
_START_BUCKETS = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)


#: What the daemon does again and again: the label `timer`.
TASKS = ("tick", "watch", "upkeep", "journal", "react")


class Metrics:
    """All of the daemon's figures. Safe to call from any thread; no figure makes a method raise."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._released_at: dict[str, float] = {}
        self.registry = registry = CollectorRegistry()

        def gauge(name: str, words: str, *labels: str) -> Gauge:
            return Gauge(f"malletrain_{name}", words, labels, registry=registry)

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"malletrain_{name}", words, labels, registry=registry)

        def histogram(name: str, words: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"malletrain_{name}", words, labels, buckets=buckets, registry=registry)

        gauge("build_info", "1, with the running version.", "version").labels(__version__).set(1)
        self._nodes = gauge("nodes", "Nodes by use.", "use")
        self._pilots = gauge("pilots", "Pilots by phase.", "phase")
        self._jobs = gauge("jobs", "Malleable jobs by phase.", "phase")
        self.snapshot_at = gauge("snapshot_timestamp_seconds", "When Slurm was last seen whole (Unix time).")
        self.slurm_answers = gauge("slurm_answers", "1 while Slurm answers looks; 0 from the first that it does not.")
        self.breaker_open = gauge("breaker_open", "1 while the daemon stands back.")
        self._stage = histogram("tick_seconds", "Time of a tick by stage.", _TICK_BUCKETS, "stage")
        self.failures = counter("run_failures_total", "Runs of a timer that failed.", "timer")
        self.skipped = counter("runs_skipped_total", "Runs left out: the one before was still going.", "timer")
        self._solves = counter("sizing_total", "Sizing answers by status.", "status")
        self._actions = counter("actions_total", "Actions by kind and whether they were done.", "action", "done")
        self._leaves = counter("leaves_total", "Pilots asked to leave, by cause; `yield` is for a main job.", "cause")
        self._preemptions = counter("preemptions_total", "Pilots that Slurm preempted: yielding came too late.")
        strays = "Jobs in the harvest partition that were no pilots; `ended` no: they could not be ended."
        self._strays = counter("strays_total", strays, "ended")
        self._lost = counter("workers_lost_total", "Workers that went without leaving.")
        refused = "Hellos of workers, and members that they named, that were refused: the log says why."
        self.workers_refused = counter("workers_refused_total", refused)
        self._start = histogram("pilot_start_seconds", "From the intent to start to the start.", _START_BUCKETS)
        self._pause = histogram("resize_pause_seconds", "Stall of a world at a resize.", _PAUSE_BUCKETS, "direction")
        dropped = "Figures that workers reported beyond what one worker or one user may."
        self.figures_dropped = counter("worker_figures_dropped_total", dropped)
        self._samples = counter("samples_total", "Samples trained.")
        self._command = histogram("slurm_command_seconds", "Latency of Slurm commands.", _COMMAND_BUCKETS, "command")
        failed = "Slurm commands that failed or gave no answer."
        self._command_failures = counter("slurm_command_failures_total", failed, "command")
        self._unavailable = counter("cluster_unavailable_total", "Looks at Slurm from which no action followed.")
        self.journal_writable = gauge("journal_writable", "0 while the journal refuses writes.")
        self.journal_writable.set(1)
        self.journal_kept = gauge("journal_kept_events", "Events kept in memory until the journal takes them.")
        self.journal_refusals = counter("journal_refusals_total", "Writes that the journal refused.")
        self.journal_free = gauge("journal_free_bytes", "Room on the journal's file system.")
        # Known labels start at 0, so that a rate() over the first event is seen.
        for task in TASKS:
            self.failures.labels(task)
            self.skipped.labels(task)
        for figure, labels in (
            (self._solves, SizingStatus),
            (self._strays, ("yes", "no")),
            (self._leaves, LeaveCause),
        ):
            for label in labels:
                figure.labels(label)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage of a tick: `with metrics.stage("observe"): ...`. A stage that raises is timed too."""
        begun = self._clock.elapsed()
        try:
            yield
        finally:
            self._stage.labels(name).observe(self._clock.elapsed() - begun)

    def slurm_command(self, command: str, seconds: float, ok: bool) -> None:
        """A Slurm command (`squeue`, `scontrol update`, ...) took so long, and answered or did not."""
        self._command.labels(command).observe(seconds)
        if not ok:
            self._command_failures.labels(command).inc()

    def record(self, events: Iterable[Event]) -> None:
        """Facts that were journalled just now; not the journal read again at a restart: they would count twice."""
        for event in events:
            self._record(event)

    def _record(self, event: Event) -> None:
        match event.payload:
            case kinds.SizesDecided(status=status):
                self._solves.labels(status).inc()
            case kinds.ActionIntent(action=StartPilot()):
                self._released_at[event.pilot or ""] = event.at
            case kinds.ActionIntent(action=LeavePilot(cause=cause)):
                self._leaves.labels(cause).inc()
            case kinds.ActionOutcome(action=action, done=done):
                self._actions.labels(ACTION_NAMES[type(action)], "yes" if done else "no").inc()
            case kinds.PoolCounted() as pool:
                for use in ("idle", "planned", "harvested", "main", "down", "reserved", "stray", "powered_down"):
                    self._nodes.labels(use).set(getattr(pool, use))
            case kinds.PilotStarted(started_at=started_at):
                released = self._released_at.pop(event.pilot or "", None)
                if released is not None:
                    self._start.observe(max(0.0, (started_at or event.at) - released))
            case kinds.PilotHeld(preempted=preempted) | kinds.PilotEnded(preempted=preempted):
                self._released_at.pop(event.pilot or "", None)
                if preempted:
                    self._preemptions.inc()
            case kinds.StraysTakenBack(count=count, failed=failed):
                self._strays.labels("no" if failed else "yes").inc(count)
            case kinds.WorkerLost():
                self._lost.inc()
            case kinds.GenerationSwitched(pause_s=pause_s, grew=grew):
                self._pause.labels("grow" if grew else "shrink").observe(_finite(pause_s))
            case kinds.SamplesReported(samples=samples):
                self._samples.inc(max(0.0, _finite(samples)))
            case kinds.SlurmUnavailable():
                self._unavailable.inc()

    def show_jobs(self, jobs: Iterable[JobView]) -> None:
        """Jobs and pilots as they are now."""
        jobs = list(jobs)
        phases = Tally(view.phase.value for view in jobs)
        pilots = Tally(pilot.phase.value for view in jobs for pilot in view.pilots.values())
        for phase in JobPhase:
            self._jobs.labels(phase.value).set(phases[phase.value])
        for pilot_phase in PilotPhase:
            self._pilots.labels(pilot_phase.value).set(pilots[pilot_phase.value])

    def render(self) -> bytes:
        """The page that Prometheus reads (text format)."""
        return generate_latest(self.registry)


def _finite(value: float) -> float:
    """A worker's figure; 0 for one that no sum can bear."""
    return value if abs(value) < 1e300 else 0.0


class RunHealth:
    """Which of the daemon's recurring tasks fail, and whether Slurm answers: for /v1/health, which names no user.

    Counts failures in a row. Safe to call from any thread, one for each task.

    `failed` is called with the task's name at each failure, `answers` after each look whether Slurm answered it."""

    def __init__(self, failed: Callable[[str], None], answers: Callable[[bool], None] = lambda _: None) -> None:
        self._failed = failed
        self._answers = answers
        self._failing: dict[str, tuple[int, str]] = {}
        self._missed = 0

    @contextmanager
    def run(self, task: str) -> Iterator[None]:
        """One run of a task; an error goes on to the caller."""
        try:
            yield
        except Exception as error:
            self._failing[task] = (self._failing.get(task, (0, ""))[0] + 1, type(error).__name__)
            self._failed(task)
            raise
        self._failing.pop(task, None)

    def looked(self, *, answered: bool) -> None:
        """Slurm was asked."""
        self._missed = 0 if answered else self._missed + 1
        self._answers(answered)

    def ailments(self) -> Sequence[str]:
        """What is wrong, a line each."""
        found = [
            f"{task} failed {count} times in a row, last with {error}: the log says more"
            for task, (count, error) in sorted(self._failing.items())
        ]
        if self._missed:
            looks = "look" if self._missed == 1 else f"{self._missed} looks"
            found.append(f"Slurm did not answer the last {looks}: `scontrol ping` tells more")
        return found
