"""What a play came to, out of the daemon's journal and both main queues; and whether it kept its promises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from malletrain.store.views import StoreViews
from malletrain.wire.rows import EventRow, JobRow
from scripts.play.player import Played
from scripts.play.trainings import Found

#: A main job may start so much later than its twin without anyone noticing: two of Slurm's own whole seconds.
DELAY_S = 2.0

#: Well trained models reach .95 and more on these digits; one whose training is wrong stays far below.
ACCURACY = 0.90


@dataclass(frozen=True, slots=True)
class Summary:
    """Node-seconds that the main queue left, and those that pilots held; delays are in seconds, job by job."""

    idle_node_s: float
    harvested_node_s: float
    samples: float
    pauses_s: tuple[float, ...]
    preemptions: int
    leaves: int
    delays_s: tuple[float, ...]
    starts_s: tuple[float, ...]
    twin_starts_s: tuple[float, ...]
    lost: tuple[str, ...]
    job: JobRow
    losses: tuple[tuple[float, float], ...]  #: of the job: (samples, loss)
    curve: Sequence[tuple[int, float]]  #: of the job: (nodes, samples/s), as measured
    trials: tuple[JobRow, ...]
    found: Found


def summarise(
    journal: Path,
    job: int,
    curve: Sequence[tuple[int, float]],
    found: Found,
    played: Sequence[Played],
    twin: Sequence[Played],
    begin: float,
    end: float,
) -> Summary:
    """Fold the journal between `begin` and `end` (Unix seconds) and pair the two plays."""
    views = StoreViews(journal)
    try:
        events = list(_events(views))
        rows = {row.id: row for row in views.jobs()}
    finally:
        views.close()
    idle, harvested = _node_seconds([e for e in events if e.kind == "pool"], begin, end)
    other = {p.job.number: p for p in twin}
    pairs = [(p.start_s, other[p.job.number].start_s) for p in played if p.job.number in other]
    lost = [f"main job {p.job.number}: {p.refused or 'never started'}" for p in played if p.start_s is None]
    return Summary(
        idle_node_s=idle,
        harvested_node_s=harvested,
        samples=sum(row.samples for row in rows.values()),
        pauses_s=tuple(_number(e.data, "pause_s") for e in events if e.kind == "switched"),
        preemptions=sum(1 for e in events if e.kind == "pilot_ended" and e.data.get("preempted")),
        leaves=sum(1 for e in events if e.kind == "intent" and e.data.get("cause") == "yield"),
        delays_s=tuple(a - b for a, b in pairs if a is not None and b is not None),
        starts_s=tuple(p.start_s for p in played if p.start_s is not None),
        twin_starts_s=tuple(p.start_s for p in twin if p.start_s is not None),
        lost=tuple(lost),
        job=rows[job],
        curve=curve,
        trials=tuple(row for row in rows.values() if row.id != job),
        found=found,
        losses=tuple(
            (_number(e.data, "samples"), _number(e.data, "value"))
            for e in events
            if e.kind == "metric" and e.job == job and e.data.get("name") == "loss"
        ),
    )


def shortcomings(summary: Summary) -> list[str]:
    """The promises that were not kept; empty when all is well."""
    found = list(summary.lost)
    if not summary.delays_s or median(summary.delays_s) > DELAY_S:
        found.append(f"main jobs started more than {DELAY_S:g} s later than without MalleTrain (median)")
    if summary.harvested_node_s <= 0 or not summary.pauses_s:
        found.append("no idle node was harvested")
    job, accuracy = summary.job, _number(summary.job.result, "accuracy")
    if job.phase != "completed":
        found.append(f"job {job.name} is {job.phase}, not completed: {job.reason}")
    elif accuracy < ACCURACY:
        found.append(f"job {job.name} reached an accuracy of {accuracy:.3f} only")
    if summary.found.value is None:
        found.append(f"no trial of the search has completed: {summary.found.trials}")
    return found


def words(summary: Summary) -> Iterator[str]:
    """The summary for people."""
    share = summary.harvested_node_s / summary.idle_node_s if summary.idle_node_s else 0.0
    yield ""
    yield f"idle node-seconds left by the main queue   {summary.idle_node_s:10.0f}"
    yield f"  held by pilots                           {summary.harvested_node_s:10.0f}  ({share:.0%})"
    yield f"samples trained                            {summary.samples:10.0f}"
    if summary.pauses_s:
        yield (
            f"resizes                                    {len(summary.pauses_s):10d}  "
            f"(pause: median {median(summary.pauses_s):.3f} s, longest {max(summary.pauses_s):.3f} s)"
        )
    yield f"pilots that yielded / were preempted       {summary.leaves:10d} / {summary.preemptions}"
    if summary.delays_s:
        yield (
            f"main jobs: submission to start             median {median(summary.starts_s):.2f} s, "
            f"without MalleTrain {median(summary.twin_starts_s):.2f} s"
        )
        yield (
            f"  delay against the twin, job by job       median {median(summary.delays_s):+.2f} s, "
            f"from {min(summary.delays_s):+.2f} to {max(summary.delays_s):+.2f} s ({len(summary.delays_s)} jobs)"
        )
    job, accuracy = summary.job, _number(summary.job.result, "accuracy")
    yield (
        f"job {job.id} {job.name}: {job.phase}, accuracy {accuracy:.3f}, "
        f"{job.samples:.0f} samples, {job.node_seconds:.0f} node-seconds, {job.resizes} resizes"
    )
    learnt = ", ".join(f"{nodes}: {rate:.0f}" for nodes, rate in summary.curve)
    yield f"  its curve, measured as it ran            {learnt} (nodes: samples/s)"
    ended = ", ".join(f"{number} {word}" for word, number in summary.found.trials.items())
    yield f"search: {len(summary.trials)} jobs, {ended}"
    if summary.found.params is not None:
        params = ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in summary.found.params.items()
        )
        yield f"  its best trial                           accuracy {summary.found.value:.3f} with {params}"
    missed = shortcomings(summary)
    yield ""
    yield "all promises kept" if not missed else "NOT kept:"
    for line in missed:
        yield f"  {line}"


def _events(views: StoreViews) -> Iterator[EventRow]:
    after = 0
    while True:
        rows, looked = views.events(after)
        yield from rows
        if not rows:
            return
        after = looked


def _node_seconds(pools: Sequence[EventRow], begin: float, end: float) -> tuple[float, float]:
    """Integrals of what the main queue left (idle, planned, harvested) and of what pilots held."""
    left = held = 0.0
    for pool, after in zip(pools, [*(p.at for p in pools[1:]), end], strict=True):
        seconds = max(0.0, min(after, end) - max(pool.at, begin))
        harvested = _number(pool.data, "harvested")
        held += seconds * harvested
        left += seconds * (harvested + _number(pool.data, "idle") + _number(pool.data, "planned"))
    return left, held


def _number(data: Mapping[str, object], key: str) -> float:
    value = data.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
