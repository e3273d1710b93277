"""The backfill plan as sdiag(1) reports it: when it was last made, how deep it went, how busy slurmctld is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from malletrain.domain.snapshot import BackfillPlan
from malletrain.slurm.formats import scalars

_LINE = re.compile(r"\s*([A-Za-z][^:]*?):\s*(.*)\Z")
_EPOCH = re.compile(r"\((\d{9,12})\)")


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """`plan` for planning; longest cycles in seconds."""

    plan: BackfillPlan
    at: float | None = None
    main_cycle_max_s: float | None = None
    backfill_cycle_max_s: float | None = None


def parse(text: str, interval_s: float = 30.0) -> SchedulerStatistics:
    """The answer of `sdiag`; what it does not say stays None. `interval_s` is bf_interval of slurm.conf(5)."""
    sections: dict[str, dict[str, str]] = {"": {}}
    section = ""
    at = since = None
    for line in text.splitlines():
        if line.startswith("sdiag output at"):
            at = _epoch(line)
        elif line.startswith("Data since"):
            since = _epoch(line)
        elif line.startswith(("Main schedule statistics", "Backfilling stats", "Latency for", "Remote Procedure")):
            section = line.split(" ", 1)[0]
            sections.setdefault(section, {})
        else:
            found = _LINE.match(line)
            if found is not None:
                sections[section].setdefault(found[1], found[2])
    main, backfill = sections.get("Main", {}), sections.get("Backfilling", {})
    depth, queue = backfill.get("Last depth cycle (try sched)"), backfill.get("Last queue length")
    return SchedulerStatistics(
        plan=BackfillPlan(
            last_cycle_at=_epoch(backfill.get("Last cycle when", "")) or None,
            interval_s=interval_s,
            depth=None if depth is None else scalars.number(depth),
            queue_length=None if queue is None else scalars.number(queue),
            main_cycle_s=_micros(main.get("Last cycle")),
            backfill_cycle_s=_micros(backfill.get("Last cycle")),
            main_cycles_per_minute=_per_minute(main.get("Total cycles"), since, at),
        ),
        at=at,
        main_cycle_max_s=_micros(main.get("Max cycle")),
        backfill_cycle_max_s=_micros(backfill.get("Max cycle")),
    )


def _epoch(line: str) -> float | None:
    found = _EPOCH.search(line)
    return float(found[1]) if found else None


def _per_minute(count: str | None, since: float | None, at: float | None) -> float | None:
    if count is None or since is None or at is None or at - since < 60.0:  # too few cycles
        return None
    return 60.0 * scalars.number(count) / (at - since)


def _micros(value: str | None) -> float | None:
    return None if value is None else scalars.number(value) / 1e6
