"""A scenario: a log, a machine under a daemon's rules, training jobs, policies and costs; and its replay."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from pathlib import Path

from malletrain.decide.rules import MainPromise
from malletrain.replay import run
from malletrain.replay.assumed_placement import AssumedPlacement
from malletrain.replay.cluster_trace import ClusterTrace, Window, cluster_trace
from malletrain.replay.likely_outages import LikelyOutage, likely_outages, without_outages
from malletrain.replay.options import Options
from malletrain.replay.parallel.processes import Progress
from malletrain.replay.report.summary import best
from malletrain.replay.sampling.days import Sample, drawn_days
from malletrain.replay.scoring.figures import Watts
from malletrain.replay.scoring.main_delay import Reaction
from malletrain.replay.scoring.promise_curve import promise_curve
from malletrain.replay.scoring.realism import Calibration
from malletrain.replay.sensitivity import Setting, sensitivity
from malletrain.replay.sizer import PolicyChoice
from malletrain.replay.traces import JobRecords, NodeChanges, Trace, read_trace
from malletrain.replay.traces.events import read_outages
from malletrain.replay.warnings import doubts
from malletrain.replay.workload import TrainingJob

#: Seconds of a replay up to which other assumptions are replayed without being asked.
MAX_UNASKED_REPLAY_S = 5.0

#: Days of a window up to which all are replayed, and days that are drawn of a longer one, where nothing is said: as
#: many as two processors replay in two minutes or so, of a machine of some thousand nodes.
MAX_WHOLE_DAYS, DEFAULT_SAMPLE_DAYS = 64, 32

#: What `Scenario.log.sample` has where all days are replayed.
ALL_DAYS = 0


@dataclass(frozen=True, slots=True)
class LogInput:
    """The log: its `file`, the `zone` of times that name none, partitions whose jobs count as idle time, the output
    of `sacctmgr show event`. `counts_outages`: likely outages count as idle time. `sample`: days to draw; None: all
    of a window that is not long."""

    file: Path
    zone: tzinfo = UTC
    ignore_partitions: frozenset[str] = frozenset()
    outages: Path | None = None
    counts_outages: bool = False
    sample: int | None = None


@dataclass(frozen=True, slots=True)
class MachineInput:
    """The machine: which part of the log and of its nodes, and under which daemon's rules. `include`, `exclude`: the
    nodes that this daemon may take, where the log names nodes and the window does not choose."""

    window: Window = field(default_factory=Window)
    options: Options = field(default_factory=Options)
    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SiteCosts:
    """What is reckoned beside training: energy, the delay of main jobs, what a promise to them would cost (None: not
    asked for), and how real harvests compare with replays."""

    watts: Watts | None = None
    reaction: Reaction = field(default_factory=Reaction)
    promise: MainPromise | None = None
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is replayed. `seed`: of all random choices; `other_assumptions`: whether these are replayed, too (None: if
    one replay is quick); `processes`: replays at once (None: one a processor)."""

    log: LogInput
    machine: MachineInput
    jobs: tuple[TrainingJob, ...]
    policies: tuple[PolicyChoice, ...]
    costs: SiteCosts = field(default_factory=SiteCosts)
    seed: int = 0
    other_assumptions: bool | None = False
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who waits for a replay: is told sentences, and how far it is. `bar` makes a progress bar for each name."""

    say: Callable[[str], None] = lambda sentence: None
    bar: Callable[[list[str]], AbstractContextManager[Progress | None]] = lambda names: nullcontext()


@dataclass(frozen=True, slots=True)
class Answer:
    """What came out; with other assumptions, too, or why not (`left_out`)."""

    replay: run.Replay
    settings: tuple[Setting, ...] = ()
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class _Machine:
    """The machine as the log shows it: replayed as `counted`, or `cleared` of likely outages."""

    log: Trace
    window: Window
    down: NodeChanges | None
    found: tuple[LikelyOutage, ...]
    counted: ClusterTrace
    cleared: ClusterTrace

    def placed(self, rule: AssumedPlacement, *, counts_outages: bool) -> ClusterTrace:
        """The same by another placement rule."""
        again = cluster_trace(self.log, replace(self.window, placement=rule), self.down)
        return again if counts_outages else without_outages(again, self.found)


def answer(scenario: Scenario, watcher: Watcher = Watcher()) -> Answer:
    """Reads the log and replays it.

    Raises:
        InvalidInput: the log cannot be read, or something cannot be replayed.
    """
    seen = _machine_of(scenario)
    machine = seen.counted if scenario.log.counts_outages else seen.cleared
    before = [*machine.account.warnings, *machine.warnings, *doubts(scenario.policies, scenario.jobs)]
    for warning in before:
        watcher.say(f"warning: {warning}")
    sample = _sample(scenario, machine, watcher)
    found = _replayed(scenario, seen, machine, sample, watcher)
    costs = scenario.costs
    if costs.calibration is not None:
        found = replace(found, realism=costs.calibration.factor(best(found)[1].share_of_ideal))
    if costs.promise is not None:
        curve = promise_curve(seen.log, machine, seen.window.procs_per_node, costs.promise, costs.reaction)
        found = replace(found, promise=curve)
    for warning in found.warnings[len(before) :]:
        watcher.say(f"warning: {warning}")
    return _with_other_assumptions(scenario, seen, found, watcher)


def _machine_of(scenario: Scenario) -> _Machine:
    given, machine = scenario.log, scenario.machine
    window = machine.window
    log = read_trace(given.file, given.zone, given.ignore_partitions)
    down = read_outages(given.outages, given.zone) if given.outages else None
    has_names = isinstance(log, NodeChanges) or log.has_node_lists
    if has_names and not window.include and not window.exclude:
        window = replace(window, include=machine.include, exclude=machine.exclude)
    counted = cluster_trace(log, window, down)
    found = likely_outages(counted)
    cleared = without_outages(counted, found)
    _release_freed_memory()  # reading a year leaves a third of the memory that the replay then needs
    return _Machine(log, window, down, found, counted, cleared)


def _release_freed_memory() -> None:
    """glibc keeps freed pages that lie between arrays that live on, until malloc_trim(3)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _sample(scenario: Scenario, machine: ClusterTrace, watcher: Watcher) -> Sample | None:
    """Which days are replayed; None: all."""
    asked, options = scenario.log.sample, scenario.machine.options
    is_long = round(machine.seconds / 86_400.0) > MAX_WHOLE_DAYS
    if asked == ALL_DAYS or (asked is None and not is_long):
        return None
    if asked is None and not run.can_be_sampled(machine, scenario.jobs, scenario.policies, options):
        watcher.say(f"sample: none, all days are replayed; {run.NOT_SAMPLED}")
        return None
    drawn = drawn_days(machine, asked or DEFAULT_SAMPLE_DAYS, scenario.seed, options.tick_s)
    if drawn.size < len(drawn):
        watcher.say(f"sample: {drawn.sentence()}")
        return drawn
    if is_long:
        watcher.say(f"sample: none, all days are replayed; {run.NOT_SAMPLED}")
    return None


def _replayed(
    scenario: Scenario, seen: _Machine, machine: ClusterTrace, sample: Sample | None, watcher: Watcher
) -> run.Replay:
    """The machine replayed, and with its likely outages taken the other way."""
    jobs, choices, options, costs = scenario.jobs, scenario.policies, scenario.machine.options, scenario.costs
    counts = scenario.log.counts_outages
    other = seen.cleared if counts else seen.counted
    found, names = seen.found, [choice.name for choice in choices]
    beside = other if found and len(choices) == 1 else None
    # Where the machine stood still nothing is idle without it: those times are replayed alone, and added.
    apart = sorted((each.start, each.end) for each in found)
    if counts or not all(each.whole for each in found):
        apart = []
    with watcher.bar(names if beside is None else [*names, "likely outages"]) as progress:
        answered = run.replay(
            machine, jobs, choices, options, progress, scenario.processes, costs.watts, costs.reaction, beside, apart,
            sample,
        )  # fmt: skip
    if not found:
        return answered
    otherwise, name = answered.otherwise, best(answered)[0]
    if otherwise is None:  # of several policies the best is known only now
        chosen = [choice for choice in choices if choice.name == name]
        with watcher.bar(["likely outages"]) as progress:
            again = run.replay(
                other, jobs, chosen, options, progress, 1, costs.watts, costs.reaction, sample=sample
            )  # fmt: skip
        otherwise = again.scores[name]
    return replace(answered, suspected=run.SuspectedOutages(found, not counts, name, otherwise))


def _with_other_assumptions(scenario: Scenario, seen: _Machine, found: run.Replay, watcher: Watcher) -> Answer:
    wanted = scenario.other_assumptions
    took_s = next(iter(found.scores.values())).wall_s
    left_out = "Left out: asked for by replay.sensitivity = false."
    if wanted is None and took_s > MAX_UNASKED_REPLAY_S:
        left_out = f"Left out: a score more replays of {took_s:.0f} s each; replay.sensitivity makes them."
        watcher.say(f"sensitivity: {left_out[0].lower()}{left_out[1:]}")
        wanted = False
    if wanted is False:
        return Answer(found, (), left_out)
    placed = None
    if isinstance(seen.log, JobRecords) and not seen.log.has_node_lists:

        def placed(rule: AssumedPlacement) -> ClusterTrace:
            return seen.placed(rule, counts_outages=scenario.log.counts_outages)

    with watcher.bar(["other assumptions"]) as progress:
        tell = None if progress is None else lambda share: progress([share])
        settings = sensitivity(found, placed, scenario.machine.window.placement, tell)
    return Answer(found, settings)
