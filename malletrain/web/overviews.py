"""What the pages show beside the strip: jobs in short, studies, usage, the promise to the main queue. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from malletrain.api.visibility import Visibility
from malletrain.domain.history import MainJobMeeting
from malletrain.wire.job_columns import JOB_COLUMNS
from malletrain.wire.rows import JobRow, UsageRow

#: A trial's job is called STUDY-IDENTITY-NUMBER (`malletrain.study.conductor`).
_TRIAL = re.compile(r"(?P<study>.+)-(?P<identity>[0-9a-f]{8})-(?P<trial>\d{6})")

#: Meetings of main jobs with pilots that the page lists.
MAX_LISTED_MEETINGS = 100

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


def promise(
    meetings: Sequence[MainJobMeeting], by_day: Mapping[str, tuple[int, int]],
    breakers: Sequence[tuple[float, bool, str]], sight: Visibility,
) -> dict[str, Any]:  # fmt: skip
    """Preemptions and delays. Counts are of all main jobs; those that the reader may see are listed."""
    delays = sorted(delay for meeting in meetings if (delay := meeting.delay_s) is not None)
    pilots, preempted = (sum(each[at] for each in by_day.values()) for at in (0, 1))
    listed = [meeting for meeting in meetings if sight.sees_main_job_of(meeting.user)][-MAX_LISTED_MEETINGS:]
    return {
        "main_jobs": len(meetings),
        "preempted_for": sum(1 for meeting in meetings if meeting.preempted),
        "pilots": pilots,
        "preempted": preempted,
        "delays": len(delays),
        "delay_median_s": median(delays) if delays else None,
        "delay_p99_s": delays[min(len(delays) - 1, int(0.99 * len(delays)))] if delays else None,
        "days": [{"day": day, "pilots": each[0], "preempted": each[1]} for day, each in sorted(by_day.items())],
        "breakers": [{"at": at, "open": is_open, "reason": sight.words(reason)} for at, is_open, reason in breakers],
        "meetings": [
            {
                "main_job": meeting.main_job, "user": meeting.user, "asked_at": meeting.asked_at,
                "started_at": meeting.started_at, "delay_s": meeting.delay_s, "nodes": meeting.nodes,
                "preempted": meeting.preempted,
            }
            for meeting in reversed(listed)
        ],
    }  # fmt: skip
