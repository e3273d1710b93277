"""Are the delays that the daemon attributes to pilots those that a twin without pilots shows? Pure.

A pair is one main job of a play: how much later it started with pilots than without (`later_s`), how far the arms
without pilots are from each other (`noise_s`: their backfill cycles come at other moments), and what the daemon says
(`said_s`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from scripts.play.harm import COMPARABLE_S, PILOTS, WITHOUT_PILOTS, quantile

#: A job is late beyond so many seconds: Slurm's own times are whole seconds, and the arms' phases differ.
LATE_S = 2.0

#: A job queued behind others if pilots ran during less than this share of its wait.
QUEUED_SHARE = 0.1

#: What the daemon says is right within so many seconds: it has Slurm's whole seconds at both ends.
RESOLUTION_S = 1.0


@dataclass(frozen=True, slots=True)
class AttributedPair:
    """One main job; seconds. `cause` is the daemon's word, empty where it names no pilot; `queued`: hardly any
    pilot ran while it waited, so that it was behind main jobs (which pilots may have delayed)."""

    number: str
    kind: str
    later_s: float
    noise_s: float
    said_s: float
    cause: str
    queued: bool = False

    @property
    def is_clear(self) -> bool:
        """Whether the arms without pilots agree on when it starts."""
        return self.noise_s <= COMPARABLE_S

    @property
    def verdict(self) -> str:
        """`right`, or how the daemon errs."""
        late, said = self.later_s > LATE_S, self.said_s > LATE_S
        if late == said or abs(self.said_s - self.later_s) <= RESOLUTION_S:
            return "blamed rightly" if late else "acquitted rightly"
        if late:
            return "late behind others" if self.queued else "acquitted falsely"
        return "blamed falsely"


def attributed_pairs(
    run: Mapping[str, Any], pilots: Sequence[tuple[float, float]] | None = None
) -> list[AttributedPair]:
    """The jobs of a play that have an id and started in all arms; `pilots`: from when to when each ran (Unix
    seconds), where that is known. Of an array and of a heterogeneous job the
    part that the daemon says was delayed most counts: the job is there once all of it is."""
    said: dict[str, tuple[float, str]] = {}
    for row in run["attributed"]["main_jobs"]:
        head = row["main_job"].removeprefix("het").partition("_")[0].partition("+")[0]
        said[head] = max(said.get(head, (0.0, "")), (row["delay_s"], row["cause"]))
    without = [run["arms"][arm]["jobs"] for arm in WITHOUT_PILOTS]
    found = []
    for number, job in run["arms"][PILOTS]["jobs"].items():
        starts = [arm.get(number, {}).get("start_s") for arm in without]
        with_pilots = job["start_s"]
        if None in starts or with_pilots is None or job["id"] is None:
            continue
        base, noise = median(starts), max(starts) - min(starts)
        delay, cause = said.get(str(job["id"]), (0.0, ""))
        at = job["submitted_at"]
        queued = pilots is not None and _covered(pilots, at, at + with_pilots) < QUEUED_SHARE * with_pilots
        found.append(AttributedPair(number, job["kind"], with_pilots - base, noise, delay, cause, queued))
    return found


def _covered(spans: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Seconds between `begin` and `end` that some span covers."""
    covered, at = 0.0, begin
    for start, stop in sorted(spans):
        start, stop = max(start, at), min(stop, end)
        if stop > start:
            covered += stop - start
            at = stop
    return covered


def agreement(pairs: Sequence[AttributedPair]) -> Iterator[str]:
    """The pairs for people: the confusion, the error in seconds, and each job that the daemon has wrong."""
    clear = [pair for pair in pairs if pair.is_clear]
    if not clear:
        yield "no main job started alike in all arms without pilots"
        return
    yield (
        f"{len(pairs)} main jobs, {len(clear)} of which the arms without pilots start within {COMPARABLE_S:g} s of "
        f"each other; these count. Late: more than {LATE_S:g} s"
    )
    verdicts = Counter(pair.verdict for pair in clear)
    for name in ("blamed rightly", "acquitted rightly", "blamed falsely", "acquitted falsely", "late behind others"):
        count = verdicts[name]
        yield f"  {name:18} {count:5d}  ({count / len(clear):.1%})"
    late = [pair for pair in clear if pair.later_s > LATE_S]
    for what, those in (("all", clear), ("late", late)):
        if those:
            errors = [pair.said_s - max(0.0, pair.later_s) for pair in those]
            size = sorted(map(abs, errors))
            yield (
                f"  said less measured, {what}: median {median(errors):+.2f} s, mean {fmean(errors):+.2f}, absolute: "
                f"median {median(size):.2f}, 95 % within {quantile(size, 0.95):.2f}"
            )
    noise = sorted(pair.noise_s for pair in clear)
    yield f"  noise, the arms without pilots: median {median(noise):.2f} s, 95 % within {quantile(noise, 0.95):.2f}"
    total, truth = sum(pair.said_s for pair in clear), sum(max(0.0, pair.later_s) for pair in clear)
    yield f"  delay in all: {total:.0f} s said, {truth:.0f} s measured"
    for pair in clear:
        if pair.verdict not in ("blamed rightly", "acquitted rightly"):
            yield (
                f"  {pair.verdict}: job {pair.number} ({pair.kind}) later by {pair.later_s:+.2f} s (noise "
                f"{pair.noise_s:.2f}), said {pair.said_s:.2f} {pair.cause}"
            )
