"""The ladder by which a site takes MalleTrain on: a few nodes, then the whole; each rung with what it must show.

The rung below, watching alone (`malletraind --observe`), has a report of its own (`malletrain observed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DAY_S = 86400.0


class Stage(StrEnum):
    """A rung: pool.stage of the configuration."""

    FEW = "few"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Lately:
    """What the journal has of this stage: since when (Unix seconds), and counts since then."""

    stage: Stage
    since: float
    started: int = 0
    preempted: int = 0
    slow_exits: int = 0
    ailing_nodes: int = 0
    opened: int = 0  #: how often the breaker opened


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that a stage must show before the next: in words, with how it stands."""

    words: str
    met: bool


#: A week holds a site's rhythm; the counts are such that a rate of one in a hundred would show.
DAYS = 7
PILOTS = 500
PREEMPTED_SHARE = 0.01


def criteria(lately: Lately, now: float) -> tuple[Criterion, ...]:
    """What the present stage must show, and what of it is shown."""
    days = (now - lately.since) / DAY_S
    week = Criterion(f"{days:.1f} of {DAYS} days", days >= DAYS)
    match lately.stage:
        case Stage.FEW:
            most = PREEMPTED_SHARE * max(lately.started, 1)
            return (
                week,
                Criterion(f"{lately.started} of {PILOTS} pilots started", lately.started >= PILOTS),
                Criterion(
                    f"{lately.preempted} preempted (at most {PREEMPTED_SHARE:.0%})",
                    lately.preempted <= most or lately.preempted == 0,
                ),
                Criterion(f"{lately.slow_exits} slow to leave (none)", lately.slow_exits == 0),
                Criterion(f"{lately.ailing_nodes} nodes ailed after pilots (none)", lately.ailing_nodes == 0),
                Criterion(f"breaker opened {lately.opened} times (never)", lately.opened == 0),
            )
        case Stage.WHOLE:
            return (Criterion(f"breaker opened {lately.opened} times", lately.opened < 3),)


def summary(lately: Lately, now: float) -> str:
    """The stage and its criteria in one line; for the last rung nothing, unless it should be left."""
    found = criteria(lately, now)
    missing = [criterion.words for criterion in found if not criterion.met]
    if lately.stage is Stage.WHOLE:
        return f'stage whole: {missing[0]}: go back to pool.stage = "few" and see why' if missing else ""
    if missing:
        return f"stage few: not done yet: {'; '.join(missing)}"
    return 'stage few: all criteria met: pool.stage = "whole" may follow'
