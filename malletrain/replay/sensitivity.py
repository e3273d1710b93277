"""How much the answer depends on what was assumed: one setting at a time is changed, the others stay as asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.replay.assumed_placement import AssumedPlacement
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.options import Options
from malletrain.replay.run import Replay
from malletrain.replay.run import replay as replayed
from malletrain.replay.scoring.figures import Score
from malletrain.replay.sizer import ONE_NODE, PolicyChoice
from malletrain.replay.workload import TrainingJob

#: Seconds: horizons, starts of a node, and stalls to grow and to shrink.
HORIZONS_S = (60.0, 300.0, 1200.0)
ACTIVATIONS_S = (0.0, 2.0, 6.0, 20.0)
STALLS_S = ((0.2, 0.2), (4.0, 4.0), (18.0, 12.0), (60.0, 40.0))

#: Most pilots at a time, as a part of those asked for; and how many of the training jobs there are.
CAPS = (0.25, 0.5, 2.0, 4.0)
JOB_COUNTS = (1, 3, 10, 30, 100, 300)

#: Makes the machine anew by another placement rule.
Placed = Callable[[AssumedPlacement], ClusterTrace]


@dataclass(frozen=True, slots=True)
class Setting:
    """What came out with `what` set to `value`; `asked`: that is how the replay itself was."""

    what: str
    value: str
    asked: bool
    score: Score


def sensitivity(
    answer: Replay, placed: Placed | None = None, placement: AssumedPlacement = AssumedPlacement.FIRST_FIT,
    progress: Callable[[float], None] | None = None,
) -> tuple[Setting, ...]:  # fmt: skip
    """Replays the first policy of `answer` again, with other horizons, costs, caps on pilots (where a daemon is
    replayed), with the first of its jobs alone and, where `placed` is given (a log without node lists), with other
    placement rules than `placement`. About a score of replays, one after the other."""
    first = answer.choices[0]
    asked = answer.scores[first.name]
    plan = [
        *_horizons(answer, first), *_costs(answer, first), *_caps(answer, first), *_job_counts(answer, first),
        *_placements(answer, first, placed, placement),
    ]  # fmt: skip
    found: list[Setting] = []
    for i, (what, value, run) in enumerate(plan):
        found.append(Setting(what, value, run is None, asked if run is None else run()))
        if progress is not None:
            progress((i + 1) / len(plan))
    return tuple(found)


#: What is set, to which value, and what replays it; None: as asked for.
_Plan = Iterator[tuple[str, str, Callable[[], Score] | None]]


def _again(
    answer: Replay, choice: PolicyChoice, jobs: Sequence[TrainingJob], trace: ClusterTrace,
    options: Options | None = None,
) -> Score:  # fmt: skip
    sample = None if answer.sampled is None else answer.sampled.sample
    found = replayed(trace, jobs, [choice], options or answer.options, processes=1, sample=sample)
    return found.scores[choice.name]


def _horizons(answer: Replay, first: PolicyChoice) -> _Plan:
    if first.policy == ONE_NODE:  # looks nowhere ahead
        return
    for horizon in sorted({*HORIZONS_S, first.horizon_s}):
        choice = replace(first, horizon_s=horizon)
        yield "horizon", f"{horizon:g} s", None if choice == first else _with_choice(answer, choice)


def _with_choice(answer: Replay, choice: PolicyChoice) -> Callable[[], Score]:
    return lambda: _again(answer, choice, answer.jobs, answer.trace)


def _costs(answer: Replay, first: PolicyChoice) -> _Plan:
    own = {each.costs for each in answer.jobs}
    asked = own.pop() if len(own) == 1 else None
    for activate in sorted({*ACTIVATIONS_S, *([asked.activate_s] if asked else [])}):
        yield "activation", f"{activate:g} s", _with_costs(answer, first, {"activate_s": activate})
    for grow, shrink in sorted({*STALLS_S, *([(asked.grow_s, asked.shrink_s)] if asked else [])}):
        changed = {"grow_s": grow, "shrink_s": shrink}
        yield "stall to grow / shrink", f"{grow:g} / {shrink:g} s", _with_costs(answer, first, changed)


def _with_costs(answer: Replay, first: PolicyChoice, changed: Mapping[str, float]) -> Callable[[], Score] | None:
    jobs = [replace(each, costs=replace(each.costs, **changed)) for each in answer.jobs]
    if jobs == list(answer.jobs):
        return None
    return lambda: _again(answer, first, jobs, answer.trace)


def _caps(answer: Replay, first: PolicyChoice) -> _Plan:
    """Saturation over pilots: where the training hardly grows with the cap, a larger one is not worth its starts."""
    cap = answer.options.rules.max_pilots
    if not answer.options.daemon or first.unlimited:
        return
    for pilots in sorted({cap, *(max(1, round(part * cap)) for part in CAPS)}):
        options = answer.options.with_rules(max_pilots=pilots)
        run = None if pilots == cap else _with_options(answer, first, options)
        yield "most pilots at a time", f"{pilots:,}", run


def _with_options(answer: Replay, first: PolicyChoice, options: Options) -> Callable[[], Score]:
    return lambda: _again(answer, first, answer.jobs, answer.trace, options)


def _job_counts(answer: Replay, first: PolicyChoice) -> _Plan:
    """Saturation over training jobs: few jobs cannot use many nodes."""
    every = len(answer.jobs)
    for count in sorted({every, *(n for n in JOB_COUNTS if n < every)}):
        yield "training jobs", f"{count:,}", None if count == every else _with_first_jobs(answer, first, count)


def _with_first_jobs(answer: Replay, first: PolicyChoice, count: int) -> Callable[[], Score]:
    return lambda: _again(answer, first, answer.jobs[:count], answer.trace)


def _placements(answer: Replay, first: PolicyChoice, placed: Placed | None, asked: AssumedPlacement) -> _Plan:
    if placed is None:
        return
    for rule in AssumedPlacement:
        run = None if rule is asked else _placed(answer, first, placed, rule)
        yield "placement of main jobs", rule.value, run


def _placed(answer: Replay, first: PolicyChoice, placed: Placed, rule: AssumedPlacement) -> Callable[[], Score]:
    return lambda: _again(answer, first, answer.jobs, placed(rule))
