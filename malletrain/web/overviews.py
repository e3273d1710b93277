"""What the pages show beside the strip: jobs in short, studies, usage. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from malletrain.wire.job_columns import JOB_COLUMNS
from malletrain.wire.rows import JobRow, UsageRow

#: A trial's job is called STUDY-IDENTITY-NUMBER (`malletrain.study.conductor`).
_TRIAL = re.compile(r"(?P<study>.+)-(?P<identity>[0-9a-f]{8})-(?P<trial>\d{6})")

_SHORT = (
    "id", "name", "user", "account", "phase", "reason", "nodes", "members", "min_nodes", "max_nodes", "sizes",
    "elastic", "rate", "samples", "total_samples", "node_seconds", "resizes", "mean_pause_s", "preemptions",
    "submitted_at", "ended_at",
)  # fmt: skip


def short_job(row: JobRow) -> dict[str, Any]:
    """A job as a line of a table; `study` and `trial` where it is a study's; `cells`: heading, whether a number, and
    words of each column that the page does not draw in a way of its own."""
    found = {name: getattr(row, name) for name in _SHORT}
    if cells := [[each.head, each.number, each.words(row)] for each in JOB_COLUMNS if not each.drawn]:
        found["cells"] = cells
    if trial := _TRIAL.fullmatch(row.name):
        found |= {"study": f"{trial['study']}-{trial['identity']}", "trial": int(trial["trial"])}
    return found


def studies(rows: Iterable[JobRow]) -> list[dict[str, Any]]:
    """Studies by their trials' jobs, the one with the newest job first."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        trial = _TRIAL.fullmatch(row.name)
        if trial is None:
            continue
        key = (f"{trial['study']}-{trial['identity']}", row.uid)
        study = found.setdefault(
            key,
            {"name": trial["study"], "key": key[0], "user": row.user, "phases": {}, "nodes": 0, "node_seconds": 0.0,
             "trials": [], "submitted_at": row.submitted_at},
        )  # fmt: skip
        study["phases"][row.phase] = study["phases"].get(row.phase, 0) + 1
        study["nodes"] += row.nodes
        study["node_seconds"] += row.node_seconds
        study["submitted_at"] = min(study["submitted_at"], row.submitted_at)
        study["trials"].append({"job": row.id, "trial": int(trial["trial"]), "phase": row.phase, "nodes": row.nodes})
    return sorted(found.values(), key=lambda study: -max(trial["job"] for trial in study["trials"]))


def usage_sums(rows: Sequence[UsageRow]) -> dict[str, list[dict[str, Any]]]:
    """Node-seconds `by` user and account, the largest first, and by day."""
    total = sum(row.node_seconds for row in rows)
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    days: dict[str, float] = {}
    for row in rows:
        days[row.day] = days.get(row.day, 0.0) + row.node_seconds
        each = sums.setdefault(
            (row.user, row.account),
            {
                "user": row.user,
                "account": row.account,
                "node_seconds": 0.0,
                "samples": 0.0,
                "pilots": 0,
                "preempted": 0,
            },
        )
        each["node_seconds"] += row.node_seconds
        each["samples"] += row.samples
        each["pilots"] += row.stays
        each["preempted"] += row.preemptions
    for each in sums.values():
        each["share"] = each["node_seconds"] / total if total else 0.0
    return {
        "by": sorted(sums.values(), key=lambda each: (-each["node_seconds"], each["user"], each["account"])),
        "days": [{"day": day, "node_seconds": seconds} for day, seconds in sorted(days.items())],
    }
