"""What pilots cost one main job: whether one stood in its way, for how long, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DelayCause(StrEnum):
    """Why a main job that met pilots started when it did."""

    NONE = "none"  #: its nodes were free before Slurm came to it
    LEAVING = "leaving"  #: it waited for workers to leave and for the epilog
    BACKFILL = "backfill"  #: a backfill cycle found its nodes taken; a later one started it
    PREEMPTED = "preempted"  #: Slurm took a node from a pilot for it
    ELSEWHERE = "elsewhere"  #: it began on other nodes than those that pilots were asked to leave for it
    BEHIND = "behind"  #: it waited behind a main job that pilots had delayed
    PUT_OFF = "put_off"  #: Slurm preempted a pilot for a part of a heterogeneous job, and put the job off


CAUSE_WORDS = {
    DelayCause.NONE: "no delay: pilots had left before Slurm came to it",
    DelayCause.LEAVING: "it waited for workers to leave and for the epilog",
    DelayCause.BACKFILL: "a backfill cycle found its nodes taken, and a later one started it",
    DelayCause.PREEMPTED: "Slurm preempted a pilot for it",
    DelayCause.ELSEWHERE: "pilots were asked to leave for it, and it began on other nodes",
    DelayCause.BEHIND: "it waited behind another main job, which pilots had delayed",
    DelayCause.PUT_OFF: "Slurm preempted a pilot for one of its parts, and put the heterogeneous job off",
}


@dataclass(frozen=True, slots=True)
class MainJobDelay:
    """A main job that pilots gave way to, or that Slurm preempted one for.

    Attributes:
        could_at: when it could have started without pilots (Unix seconds), as far as the daemon can tell.
        started_at: when it did.
        nodes: those of its nodes that pilots had.
        freed_s: seconds after `could_at` until the last of these was free.
        delay_s: seconds by which it started later for pilots, never negative.
        preempted: nodes that Slurm took from pilots for it.
        put_off: Slurm put it off by its own two minutes, as it does with heterogeneous jobs.
        elsewhere: it began on nodes that no pilot had had, so that `delay_s` is a bound.
        behind: the main job that it waited behind and that pilots had delayed by so much, so that `delay_s` is a
            bound; "" where it met pilots itself.
    """

    main_job: str
    user: str
    could_at: float
    started_at: float
    nodes: tuple[str, ...]
    freed_s: float
    delay_s: float
    by_backfill: bool = False
    preempted: int = 0
    put_off: bool = False
    elsewhere: bool = False
    behind: str = ""

    @property
    def cause(self) -> DelayCause:
        """The last thing that it waited for."""
        if self.delay_s <= 0:
            return DelayCause.NONE
        if self.behind:
            return DelayCause.BEHIND
        if self.put_off:
            return DelayCause.PUT_OFF
        if self.elsewhere:
            return DelayCause.ELSEWHERE
        if self.preempted:
            return DelayCause.PREEMPTED
        return DelayCause.BACKFILL if self.by_backfill else DelayCause.LEAVING

    def words(self) -> str:
        """One line: for how long, and why."""
        if self.delay_s <= 0:
            return CAUSE_WORDS[DelayCause.NONE]
        if self.behind:
            front = f"main job {self.behind}, which they had delayed"
            return f"at most {self.delay_s:.3g} s later for pilots: it waited behind {front}"
        if self.elsewhere:
            return f"at most {self.delay_s:.3g} s later for pilots: {CAUSE_WORDS[self.cause]}"
        where = "" if self.put_off else f" on {len(self.nodes)} of its nodes"
        return f"{self.delay_s:.3g} s later for pilots{where}: {CAUSE_WORDS[self.cause]}"


def head_of(main_job: str) -> str:
    """The number that the parts of one job share: of `12_3`, `12_[4-9]`, `12+1` and `het12`, 12."""
    return main_job.removeprefix("het").partition("_")[0].partition("+")[0]
