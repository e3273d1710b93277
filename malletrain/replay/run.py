"""A whole replay: one trace, one workload, several policies side by side, each in its own process."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import numpy as np

from malletrain.domain.errors import InvalidInput
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.engine import Engine
from malletrain.replay.likely_outages import LikelyOutage
from malletrain.replay.loop_engine import score_by_loop
from malletrain.replay.options import EngineKind, NodeOrder, Options
from malletrain.replay.result import Result
from malletrain.replay.scoring.fairness import finish_time_fairness
from malletrain.replay.scoring.figures import Score, Watts, score
from malletrain.replay.scoring.main_delay import Reaction
from malletrain.replay.scoring.promise_curve import PromiseCurve
from malletrain.replay.scoring.realism import RealismFactor
from malletrain.replay.sizer import ONE_NODE, PolicyChoice, require_replay_inputs, sizer
from malletrain.replay.warnings import doubts, limits_that_bind
from malletrain.replay.workload import TrainingJob, shifted

#: Called with the share done of each policy, and of the other trace where there is one.
Progress = Callable[[list[float]], None]

#: One replay: a trace and who decides.
Task = tuple[ClusterTrace, PolicyChoice]


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
            f"{self.otherwise.equivalent_nodes:,.1f} dedicated nodes. --outages says what was so; --likely-outages "
            "chooses."
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
    other trace that was given. `promise`: harvest against the delay of main jobs, where it was asked for.
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
        """The JSON answer of `malletrain replay` (design, section 4)."""
        found = {} if self.suspected is None else {"likely_outages": self.suspected.as_json()}
        calibrated = {} if self.realism is None else {"calibration": self.realism.as_json()}
        promise = {} if self.promise is None else {"promise": self.promise.as_json()}
        return {
            "trace": self.trace_json() | found,
            **calibrated,
            "policies": {name: each.as_json() for name, each in self.scores.items()},
            **promise,
        }


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
) -> Replay:
    """Replays each policy. Deterministic but for the seconds that it took; `processes` 1 stays in this process.

    `other`: the same machine seen another way, of the same begin and end; where there is one policy, it is replayed
    beside.

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
    on_clock = tuple(shifted(jobs, trace.start))
    tasks = [(trace, choice) for choice in choices]
    if other is not None and len(choices) == 1:
        tasks.append((other, choices[0]))
    workers = min(len(tasks), processes or os.cpu_count() or 1)
    run = _here if workers == 1 else _in_processes
    outcomes = run(tasks, on_clock, options, progress, workers)
    due = np.array([math.nan if e.job.deadline is None else e.job.deadline for e in on_clock])
    due[~(due <= trace.end)] = math.nan

    def scored(each: Result | Score) -> Score:
        if isinstance(each, Score):
            return each
        return score(each, trace.seconds, finish_time_fairness(each, on_clock, trace.end), watts, reaction, due)

    found = dict(zip(names, outcomes[: len(names)], strict=True))
    scores = {name: scored(each) for name, each in found.items()}
    results = {name: each for name, each in found.items() if isinstance(each, Result)}
    otherwise = scored(outcomes[-1]) if len(tasks) > len(names) else None
    return Replay(trace, on_clock, options, tuple(choices), results, scores, otherwise=otherwise)


def _require_plain(choices: Sequence[PolicyChoice], options: Options) -> None:
    """Refuse what a replay by class of nodes does not do."""
    if not options.classes:
        return
    if options.rules is not None:
        raise InvalidInput("--node-class", "sizes by class on the ideal machine alone: give --ideal too")
    if options.engine is EngineKind.LOOP or options.budgets or options.order is not NodeOrder.NAME:
        raise InvalidInput("--node-class", "is for the fast engine, without --budget, with --node-order name")
    for choice in choices:
        if choice.clairvoyant or choice.policy == ONE_NODE:
            raise InvalidInput("--policy", f"{choice.name} knows no classes of nodes: leave out --node-class")


def _one(
    trace: ClusterTrace, jobs: Sequence[TrainingJob], choice: PolicyChoice, options: Options,
    progress: Callable[[float], None] | None,
) -> Result | Score:  # fmt: skip
    if options.engine is EngineKind.LOOP:
        return score_by_loop(trace, jobs, choice, options)
    if choice.unlimited and options.rules is not None:
        options = options.ideal_machine
    if choice.clairvoyant:
        options = replace(options, order=NodeOrder.LIFE, pending_stalls=True)
    return Engine(trace, jobs, sizer(choice, jobs, options.budgets), options, progress).run()


def _here(
    tasks: Sequence[Task], jobs: Sequence[TrainingJob], options: Options, progress: Progress | None, workers: int,
) -> list[Result | Score]:  # fmt: skip
    shares = [0.0] * len(tasks)
    results: list[Result | Score] = []
    for i, (trace, choice) in enumerate(tasks):

        def tell(share: float, i: int = i) -> None:
            shares[i] = share
            if progress is not None:
                progress(shares)

        results.append(_one(trace, jobs, choice, options, tell))
    return results


_share: Any = None
_inputs: Any = None


def _begin(share: list[Synchronized[float]], inputs: tuple[object, ...]) -> None:
    """In each process: what is the same for all its policies is handed over once."""
    global _share, _inputs
    _share, _inputs = share, inputs


def _work(i: int) -> Result | Score:
    tasks, jobs, options = _inputs

    def tell(share: float) -> None:
        _share[i].value = share

    trace, choice = tasks[i]
    return _one(trace, jobs, choice, options, tell)


def _in_processes(
    tasks: Sequence[Task], jobs: Sequence[TrainingJob], options: Options, progress: Progress | None, workers: int,
) -> list[Result | Score]:  # fmt: skip
    # Fresh interpreters: forking one that runs a progress bar's thread may hang.
    context = multiprocessing.get_context("spawn")
    share = [context.Value("d", 0.0) for _ in tasks]
    inputs = (tuple(tasks), tuple(jobs), options)
    with ProcessPoolExecutor(workers, context, _begin, (share, inputs)) as pool:
        pending = [pool.submit(_work, i) for i in range(len(tasks))]
        while wait(pending, timeout=0.2).not_done:
            if progress is not None:
                progress([each.value for each in share])
        return [each.result() for each in pending]
