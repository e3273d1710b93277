"""A whole replay: one trace, one workload, several policies side by side, each in its own process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from malletrain.domain.errors import InvalidInput
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.likely_outages import SuspectedOutages
from malletrain.replay.loop_engine import score_by_loop
from malletrain.replay.options import Options
from malletrain.replay.parts import Part, Piece, Progress, divisible, parts_of, run_pieces
from malletrain.replay.result import Result, joined
from malletrain.replay.sampling import Sample, SampledReplay, estimated, sampled_replay
from malletrain.replay.scoring.figures import Score, score
from malletrain.replay.scoring.main_delay import Reaction
from malletrain.replay.sizer import ONE_NODE, PolicyChoice, require_replay_inputs
from malletrain.replay.workload import TrainingJob, shifted

#: A limit of the daemon that costs less than this part of the idle time is not worth a sentence.
MIN_SHARE_LOST = 0.05


def limits_that_bind(options: Options, scores: Mapping[str, Score]) -> tuple[str, ...]:
    """One sentence for each rule of the daemon that leaves much idle time unused, whatever policy sizes."""
    if not options.daemon:
        return ()
    found = [score for score in scores.values() if score.idle_node_seconds > 0]
    warnings: list[str] = []
    capped = max(((s.beyond_cap_node_seconds or 0.0) / s.idle_node_seconds for s in found), default=0.0)
    if capped >= MIN_SHARE_LOST:
        most = options.rules.max_nodes
        warnings.append(
            f"The daemon's cap binds: pool.max_pilots = {options.rules.max_pilots:,} pilots of at most {most} nodes "
            f"leave {capped:.0%} of the idle node-hours unused. Wider pilots (pilot.max_nodes), of jobs that take as "
            "many nodes, hold more with as many jobs for slurmctld; a higher cap costs it time in every cycle while "
            "jobs are blocked (see sdiag)."
        )
    kept = max(((s.reserve_node_seconds or 0.0) / s.idle_node_seconds for s in found), default=0.0)
    if kept >= MIN_SHARE_LOST:
        warnings.append(
            f"The reserve is {kept:.0%} of the idle node-hours: pool.keep_idle = {options.rules.keep_idle:,} nodes."
        )
    return tuple(warnings)


@dataclass(frozen=True, slots=True)
class Replay:
    """What was replayed and what came out: `results` and `scores` by policy name, in the order asked for.

    `results` is empty after the daemon's loop (`Options.by_loop`), whose journal is scored. `suspected`: idle time of
    the log that probably was none. `sampled`: which days were replayed, where not all were: totals, samples and
    scores are then estimates of the window, columns and pilots those of these days.
    """

    trace: ClusterTrace
    jobs: tuple[TrainingJob, ...]
    options: Options
    choices: tuple[PolicyChoice, ...]
    results: dict[str, Result]
    scores: dict[str, Score]
    suspected: SuspectedOutages | None = None
    sampled: SampledReplay | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is doubtful about the log, the window and the assumptions, one sentence each."""
        before = *self.trace.account.warnings, *self.trace.warnings
        suspected = () if self.suspected is None else (self.suspected.sentence(),)
        return *before, *limits_that_bind(self.options, self.scores), *suspected

    def trace_json(self) -> dict[str, object]:
        """What is said of the trace in the JSON answer."""
        trace = self.trace
        idle, down = trace.counts
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
        sampled = {} if self.sampled is None else {"sample": self.sampled.as_json(self.trace.seconds)}
        return {
            "trace": self.trace_json() | found,
            **sampled,
            "policies": {name: each.as_json() for name, each in self.scores.items()},
        }


def can_be_sampled(
    trace: ClusterTrace, jobs: Sequence[TrainingJob], choices: Sequence[PolicyChoice], options: Options
) -> bool:
    """Whether some days of the trace say what all would give: nothing that lasts longer than a run-in binds a replay
    of these (`parts.divisible`)."""
    on_clock = shifted(jobs, trace.start)
    return all(divisible(trace, on_clock, _bound(choice, options)) for choice in choices)


def replay(
    trace: ClusterTrace,
    jobs: Sequence[TrainingJob],
    choices: Sequence[PolicyChoice],
    options: Options = Options(),  # noqa: B008 - frozen
    progress: Progress | None = None,
    processes: int | None = None,
    reaction: Reaction = Reaction(),  # noqa: B008 - frozen
    sample: Sample | None = None,
    suspected: SuspectedOutages | None = None,
) -> Replay:
    """Replays each policy. Deterministic but for the seconds that it took; `processes` 1 stays in this process.

    `sample`: the days of the trace that are replayed, where not all are to be; ask `can_be_sampled` before.
    `suspected`: what is known of outages that the log does not tell.
    Raises InvalidInput: no jobs, a policy twice or without its inputs, or something that the engine does not do."""
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
    pieces, workers = _pieces(trace, on_clock, choices, options, sample), processes or os.cpu_count() or 1
    found = run_pieces(pieces, len(choices), partial(_run_part, on_clock, options), progress, workers)
    by_loop = {name: each[0] for name, each in zip(names, found, strict=True) if isinstance(each[0], Score)}
    parts = {
        name: [each for each in all_parts if isinstance(each, Result)]
        for name, all_parts in zip(names, found, strict=True)
    }
    del found  # a year's columns are large: what is joined is not kept in parts, too
    sampled = None
    if sample is None:
        results = {name: joined(each) for name, each in parts.items() if each}
    else:
        sampled = sampled_replay(trace, on_clock, sample, parts)
        results = {name: estimated(each, sampled) for name, each in parts.items()}
    due = np.array([math.nan if e.job.deadline is None else e.job.deadline for e in on_clock])
    due[~(due <= trace.end)] = math.nan
    scores = {name: score(each, trace.seconds, reaction, due) for name, each in results.items()} | by_loop
    return Replay(trace, on_clock, options, tuple(choices), results, scores, suspected, sampled)


#: Why some replays cannot be sampled.
NOT_SAMPLED = (
    "days can stand for all only where jobs have no end and are there from the begin, without budgets, deadlines "
    "and a replay.engine of loop"
)


def _require_plain(choices: Sequence[PolicyChoice], options: Options) -> None:
    """Refuse what a replay by class of nodes does not do."""
    if not options.classes:
        return
    if options.daemon:
        raise InvalidInput("replay.node_class", "sizes by class on the ideal machine alone: give replay.ideal too")
    if options.by_loop or options.budgets:
        raise InvalidInput("replay.node_class", "is for the fast engine, without replay.budget")
    for choice in choices:
        if choice.policy == ONE_NODE:
            raise InvalidInput("--policy", f"{choice.name} knows no classes of nodes: leave out replay.node_class")


def _pieces(
    trace: ClusterTrace,
    jobs: Sequence[TrainingJob],
    choices: Sequence[PolicyChoice],
    options: Options,
    sample: Sample | None,
) -> Iterator[Piece]:
    """The parts of each replay, which go side by side; one part where it cannot be divided."""
    spans = [] if sample is None else sample.spans
    seconds = sum(end - begin for begin, end in spans) or trace.seconds
    for of, choice in enumerate(choices):
        bound = _bound(choice, options)
        parts: Iterable[Part] = [Part(trace, trace.start)]
        if divisible(trace, jobs, bound):
            parts = parts_of(trace, bound, spans)
        for part in parts:
            yield Piece(of, (part.trace.end - part.count_from) / seconds, part, choice)


def _bound(choice: PolicyChoice, options: Options) -> Options:
    """How a policy is replayed: what binds it. The ideal machine has none of the daemon's limits: every event is
    decided at once, any number of pilots, no reserve."""
    ideal = choice.unlimited and options.daemon
    return Options(budgets=options.budgets, classes=options.classes) if ideal else options


def _run_part(jobs: Sequence[TrainingJob], options: Options, part: Part, choice: PolicyChoice) -> Result | Score:
    if options.by_loop:
        return score_by_loop(part.trace, jobs, choice, options)
    return part.run(jobs, choice, _bound(choice, options))
