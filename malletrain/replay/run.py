"""A whole replay: one trace, one workload, several policies side by side, each in its own process."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import numpy as np

from malletrain.domain.errors import InvalidInput
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.likely_outages import LikelyOutage
from malletrain.replay.loop_engine import score_by_loop
from malletrain.replay.options import EngineKind, NodeOrder, Options
from malletrain.replay.parallel.parts import RUN_IN_TO_OUTAGE_S, Part, divisible, part_count, parts_of
from malletrain.replay.parallel.processes import Piece, Progress, run_here, run_in_processes
from malletrain.replay.result import Result, joined, with_more
from malletrain.replay.sampling.days import OUTAGE_SPANS, RUN_IN_S, Sample, drawn_of_outages
from malletrain.replay.sampling.estimated import KnownOfDays, SampledReplay, estimated, found_in, known_of
from malletrain.replay.scoring.figures import Score, Watts, finish_time_fairness, score
from malletrain.replay.scoring.main_delay import Reaction
from malletrain.replay.scoring.promise_curve import PromiseCurve
from malletrain.replay.scoring.realism import RealismFactor
from malletrain.replay.sizer import ONE_NODE, PolicyChoice, require_replay_inputs
from malletrain.replay.warnings import doubts, limits_that_bind
from malletrain.replay.workload import TrainingJob, shifted


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


@dataclass(frozen=True, slots=True)
class SuspectedOutages:
    """Idle time of the log that probably was none: what was found, whether it was `left_out` of the replay, and what
    `policy` comes to when it is taken the other way."""

    found: tuple[LikelyOutage, ...]
    left_out: bool
    policy: str
    otherwise: Score

    def sentence(self) -> str:
        """What was found, for people."""
        hours = sum(each.node_seconds for each in self.found) / 3600
        still = [each for each in self.found if each.whole]
        away = len(self.found) - len(still)
        parts = [f"the machine stood still {_times(len(still))}"] if still else []
        parts += [f"{_times(away)} a node ran no job for days"] if away else []
        largest = self.found[0]
        when = datetime.fromtimestamp(largest.start, UTC).strftime("%Y-%m-%dT%H:%M UTC")
        what = ", ".join(parts)
        lasts = (largest.end - largest.start) / 3600
        here, other = ("were left out", "counted as idle") if self.left_out else ("count as idle", "left out")
        warnings: list[str] = []
        warnings.append(
            f"Likely outages look like {hours:,.0f} idle node-hours ({what}; the largest from {when}, "
            f"{lasts:,.1f} h). They {here}; {other}, policy {self.policy} would have held "
            f"{self.otherwise.occupied_node_seconds / 3600:,.0f} node-hours and trained as much as "
            f"{self.otherwise.equivalent_nodes:,.1f} dedicated nodes. --outages says what was so; "
            "replay.likely_outages chooses."
        )
        return warnings[0]

    def as_json(self) -> dict[str, object]:
        """As in the JSON answer."""
        return {
            "left_out": self.left_out,
            "node_seconds": sum(each.node_seconds for each in self.found),
            "found": [asdict(each) for each in self.found[:100]],
            "otherwise": {"policy": self.policy, **self.otherwise.as_json()},
        }


@dataclass(frozen=True, slots=True)
class Replay:
    """What was replayed and what came out: `results` and `scores` by policy name, in the order asked for.

    `results` is empty after the daemon's loop (`EngineKind.LOOP`), whose journal is scored. `realism`: how real
    harvests compare with replays, where the site has measured it. `otherwise`: the score of the only policy on the
    other trace that was given. `promise`: harvest against the delay of main jobs, where it was asked for. `sampled`:
    which days were replayed, where not all were: totals, samples and scores are then estimates of the window, columns
    and pilots those of these days.
    """

    trace: ClusterTrace
    jobs: tuple[TrainingJob, ...]
    options: Options
    choices: tuple[PolicyChoice, ...]
    results: dict[str, Result]
    scores: dict[str, Score]
    suspected: SuspectedOutages | None = None
    realism: RealismFactor | None = None
    otherwise: Score | None = None
    promise: PromiseCurve | None = None
    sampled: SampledReplay | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is doubtful about the log, the window and the assumptions, one sentence each."""
        before = *self.trace.account.warnings, *self.trace.warnings, *doubts(self.choices, self.jobs)
        suspected = () if self.suspected is None else (self.suspected.sentence(),)
        return *before, *limits_that_bind(self.options, self.scores, self.jobs), *suspected

    def trace_json(self) -> dict[str, object]:
        """What is said of the trace in the JSON answer."""
        trace = self.trace
        idle, down = trace.counts()
        lasts = np.diff(np.append(trace.time, trace.end))
        total = len(trace.nodes) * trace.seconds
        return {
            "file": trace.account.source,
            "kind": trace.account.kind,
            "lines": trace.account.lines,
            "records": trace.account.records,
            "skipped": dict(trace.account.skipped),
            "warnings": list(self.warnings),
            "start": trace.start,
            "end": trace.end,
            "nodes": len(trace.nodes),
            "steps": len(trace.time),
            "changes": len(trace.node),
            "idle_node_seconds": float(idle @ lasts),
            "down_node_seconds": float(down @ lasts),
            "idle_share": float(idle @ lasts) / total,
            "jobs": len(self.jobs),
        }

    def as_json(self) -> dict[str, object]:
        """The JSON answer of `malletrain replay`."""
        found = {} if self.suspected is None else {"likely_outages": self.suspected.as_json()}
        calibrated = {} if self.realism is None else {"calibration": self.realism.as_json()}
        promise = {} if self.promise is None else {"promise": self.promise.as_json()}
        sampled = {} if self.sampled is None else {"sample": self.sampled.as_json(self.trace.seconds)}
        return {
            "trace": self.trace_json() | found,
            **sampled,
            **calibrated,
            "policies": {name: each.as_json() for name, each in self.scores.items()},
            **promise,
        }


@dataclass(frozen=True, slots=True)
class _Whole:
    """One trace replayed by one policy: `spans` of it alone where there are some; `sample`: those that were drawn,
    and `known`: what is known of its days."""

    trace: ClusterTrace
    choice: PolicyChoice
    spans: Sequence[tuple[float, float]] = ()
    run_in_s: float | None = None
    sample: Sample | None = None
    known: KnownOfDays | None = None


def can_be_sampled(
    trace: ClusterTrace, jobs: Sequence[TrainingJob], choices: Sequence[PolicyChoice], options: Options
) -> bool:
    """Whether some days of the trace say what all would give: nothing that lasts longer than a run-in binds a replay
    of these (`parallel.parts.divisible`)."""
    on_clock = shifted(jobs, trace.start)
    return all(divisible(trace, on_clock, choice, _bound(choice, options)) for choice in choices)


def replay(
    trace: ClusterTrace,
    jobs: Sequence[TrainingJob],
    choices: Sequence[PolicyChoice],
    options: Options = Options(),  # noqa: B008 - frozen
    progress: Progress | None = None,
    processes: int | None = None,
    watts: Watts | None = None,
    reaction: Reaction = Reaction(),  # noqa: B008 - frozen
    other: ClusterTrace | None = None,
    differs_in: Sequence[tuple[float, float]] = (),
    sample: Sample | None = None,
) -> Replay:
    """Replays each policy. Deterministic but for the seconds that it took; `processes` 1 stays in this process.

    `other`: the same machine seen another way, of the same begin and end; where there is one policy, it is replayed
    beside. `differs_in`: the spans (Unix seconds) in which alone it has idle nodes that `trace` has not, which then
    has none: of a replay in parts (`parallel.parts`) or a sample only they are replayed, and added. `sample`: the
    days of the trace that are replayed, where not all are to be; ask `can_be_sampled` before.

    Raises:
        InvalidInput: no jobs, a policy twice or without its inputs, or something that the engine does not do.
    """
    if not jobs:
        raise InvalidInput("--jobs", "there is no job to train")
    names = [choice.name for choice in choices]
    if len(set(names)) < len(names) or not names:
        raise InvalidInput("--policy", "each policy once, and at least one")
    require_replay_inputs(choices, jobs, options.budgets, has_classes=bool(options.classes))
    _require_plain(choices, options)
    if sample is not None and not can_be_sampled(trace, jobs, choices, options):
        raise InvalidInput("--sample", f"{NOT_SAMPLED}: leave it out, or give --sample all")
    on_clock = tuple(shifted(jobs, trace.start))
    known = None if sample is None else known_of(trace, on_clock, sample)
    wholes = [_whole_of(trace, choice, sample, known) for choice in choices]
    if other is not None and len(choices) == 1:
        wholes.append(_other(trace, other, on_clock, choices[0], options, differs_in, sample))
    pieces, workers = _pieces(wholes, on_clock, options), processes or os.cpu_count() or 1
    if workers == 1:
        found = run_here(pieces, len(wholes), _run_part, on_clock, options, progress)
    else:
        found = run_in_processes(pieces, len(wholes), _run_part, on_clock, options, progress, workers)
    sampled = None
    if sample is not None and known is not None:
        in_days = {name: found_in(_results(parts)) for name, parts in zip(names, found, strict=False)}
        sampled = SampledReplay(sample, known, in_days)
    outcomes = [_joined(parts, whole) for parts, whole in zip(found, wholes, strict=True)]
    due = np.array([math.nan if e.job.deadline is None else e.job.deadline for e in on_clock])
    due[~(due <= trace.end)] = math.nan

    def scored(each: Result | Score) -> Score:
        if isinstance(each, Score):
            return each
        return score(each, trace.seconds, finish_time_fairness(each, on_clock, trace.end), watts, reaction, due)

    by_name = dict(zip(names, outcomes, strict=False))
    scores = {name: scored(each) for name, each in by_name.items()}
    results = {name: each for name, each in by_name.items() if isinstance(each, Result)}
    otherwise = None
    if len(wholes) > len(names):
        last = outcomes[-1]
        if differs_in and wholes[-1].spans and isinstance(last, Result):
            last = with_more(results[names[0]], last)
        otherwise = scored(last)
    return Replay(
        trace, on_clock, options, tuple(choices), results, scores, otherwise=otherwise, sampled=sampled
    )  # fmt: skip


#: Why some replays cannot be sampled.
NOT_SAMPLED = (
    "days can stand for all only where jobs have no end and are there from the begin, without budgets, deadlines, "
    "replay.at_once, --schedule, a replay.engine of loop and clairvoyant policies"
)


def _whole_of(trace: ClusterTrace, choice: PolicyChoice, sample: Sample | None, known: KnownOfDays | None) -> _Whole:
    if sample is None:
        return _Whole(trace, choice)
    return _Whole(trace, choice, sample.spans, RUN_IN_S, sample, known)


def _other(
    trace: ClusterTrace, other: ClusterTrace, jobs: Sequence[TrainingJob], choice: PolicyChoice, options: Options,
    differs_in: Sequence[tuple[float, float]], sample: Sample | None,
) -> _Whole:  # fmt: skip
    """How the machine seen another way is replayed: where it differs, on a sample's days, or whole."""
    if sample is not None and differs_in:
        outages = drawn_of_outages(other, differs_in, OUTAGE_SPANS, sample.seed)
        known = known_of(other, jobs, outages)
        return _Whole(other, choice, outages.spans, RUN_IN_TO_OUTAGE_S, outages, known)
    if sample is not None:
        return _whole_of(other, choice, sample, known_of(other, jobs, sample))
    if differs_in and part_count(trace) > 1 and divisible(other, jobs, choice, _bound(choice, options)):
        return _Whole(other, choice, differs_in, RUN_IN_TO_OUTAGE_S)
    return _Whole(other, choice)


def _require_plain(choices: Sequence[PolicyChoice], options: Options) -> None:
    """Refuse what a replay by class of nodes does not do."""
    if not options.classes:
        return
    if options.daemon:
        raise InvalidInput("replay.node_class", "sizes by class on the ideal machine alone: give replay.ideal too")
    if options.engine is EngineKind.LOOP or options.budgets or options.order is not NodeOrder.NAME:
        raise InvalidInput("replay.node_class", "is for the fast engine, without replay.budget")
    for choice in choices:
        if choice.clairvoyant or choice.policy == ONE_NODE:
            raise InvalidInput("--policy", f"{choice.name} knows no classes of nodes: leave out replay.node_class")


def _pieces(wholes: Sequence[_Whole], jobs: Sequence[TrainingJob], options: Options) -> Iterator[Piece]:
    """The parts of each replay, which go side by side; one part where it cannot be divided."""
    for of, whole in enumerate(wholes):
        trace, choice = whole.trace, whole.choice
        parts: Iterable[Part] = [Part(trace, trace.start, None)]
        bound = _bound(choice, options)
        if divisible(trace, jobs, choice, bound):
            parts = parts_of(trace, bound, whole.spans, whole.run_in_s)
        seconds = sum(end - begin for begin, end in whole.spans) or trace.seconds
        for part in parts:
            yield Piece(of, (part.trace.end - part.count_from) / seconds, part, choice)


def _bound(choice: PolicyChoice, options: Options) -> Options:
    """How a policy is replayed: what binds it."""
    if choice.unlimited and options.daemon:
        options = options.ideal_machine
    if choice.clairvoyant:
        options = replace(options, order=NodeOrder.LIFE, pending_stalls=True)
    return options


def _run_part(
    part: Part, jobs: Sequence[TrainingJob], choice: PolicyChoice, options: Options, tell: Callable[[float], None]
) -> Result | Score:
    if options.engine is EngineKind.LOOP:
        return score_by_loop(part.trace, jobs, choice, options)
    return part.run(jobs, choice, _bound(choice, options), tell)


def _results(parts: Sequence[Result | Score]) -> list[Result]:
    return [each for each in parts if isinstance(each, Result)]


def _joined(parts: list[Result | Score], whole: _Whole) -> Result | Score:
    """One replay of what came out of its parts, which it uses up."""
    results = _results(parts)
    if not results:
        return parts[0]
    parts.clear()
    if whole.sample is not None and whole.known is not None:
        return estimated(results, whole.sample, whole.known)
    return joined(results)
