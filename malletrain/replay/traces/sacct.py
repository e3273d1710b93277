"""`sacct -P`: Slurm's own record of jobs, of any release, with node lists."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.source import Lines
from malletrain.replay.traces.table import Table, header_of
from malletrain.replay.traces.trace import MAX_NODES, JobRecords, column
from malletrain.replay.traces.words import TimeParser, expand, is_no_time

#: States in which a job still runs when sacct is asked, so that its end is not known yet.
STILL_RUNNING = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT"})
NEVER_STARTED = frozenset({"PENDING", "REVOKED"})

#: A job, an array task, a waiting range of an array, or a part of a heterogeneous job; a dot begins a step.
_JOB_ID = re.compile(r"\d+(?:_(?:\d+|\[[^\]]*\]?))?(?:\+\d+)?$")
_NODE_TRES = re.compile(r"(?:^|,)node=(\d{1,9})(?:,|$)")


def is_sacct_header(line: str) -> bool:
    parsed = header_of(line)
    return parsed is not None and "jobid" in parsed[1]


class _Records:
    """Collects records column by column; a job's record that comes twice (logs by day, put together) counts once."""

    def __init__(self, lines: Lines) -> None:
        self.lines, self.tally = lines, lines.tally
        self.submit, self.start, self.end, self.limit = (array("d") for _ in range(4))
        self.count, self.node, self.first = array("i"), array("i"), array("q", [0])
        self.number: dict[str, int] = {}
        self.seen: dict[tuple[str, float], int] = {}
        self.last_seen = -math.inf
        self.without_list = 0

    def add(
        self, job: tuple[str, float], submit: float, end: float, limit: float, names: Sequence[str], count: int
    ) -> None:
        """One allocation of the job of that id, from that start to `end` (inf: still running). `limit`: seconds that
        it might have run; `count`: how many nodes, where no `names` say it."""
        known = self.seen.setdefault(job, len(self.start))
        if known < len(self.start):
            # Of two records of one allocation the later has its end.
            ends = [each for each in (self.end[known], end) if math.isfinite(each)]
            self.end[known] = max(ends, default=math.inf)
            self.tally.skip("repeats a job", self.lines.number)
            return
        for name in names:
            index = self.number.setdefault(name, len(self.number))
            if index >= MAX_NODES:
                raise InvalidInput(self.lines.where, f"more than {MAX_NODES:,} distinct nodes")
            self.node.append(index)
        self.first.append(len(self.node))
        self.without_list += not names
        self.submit.append(submit)
        self.start.append(job[1])
        self.end.append(end)
        self.count.append(len(names) or count)
        self.limit.append(limit)

    def saw(self, *moments: float | None) -> None:
        for moment in moments:
            if moment is not None and moment > self.last_seen:
                self.last_seen = moment

    def finish(self) -> JobRecords:
        source, tally = self.lines.source, self.tally
        if not self.start:
            cause = "unset SLURM_TIME_FORMAT; " if "unreadable time" in tally.count else ""
            raise InvalidInput(
                source,
                f"holds no job that ran (skipped: {tally.summary()}); {cause}"
                "`malletrain replay --how` prints the sacct command to run",
            )
        if self.number and self.without_list:
            tally.warn(f"{self.without_list:,} jobs that ran have no node list: their nodes count as idle.")
        return JobRecords(
            account=tally.account(source, "sacct", self.lines.number, len(self.start)),
            submit=column(self.submit, np.float64),
            start=column(self.start, np.float64),
            end=column(self.end, np.float64),
            limit=column(self.limit, np.float64),
            count=column(self.count, np.int32),
            procs=np.zeros(len(self.start), np.int32),
            nodes=tuple(self.number),
            first=column(self.first, np.int64),
            node=column(self.node, np.int32),
            last_seen=max(self.last_seen, float(self.start[-1])),
        )


def read_sacct(lines: Lines, time_of: TimeParser, ignore: frozenset[str] = frozenset()) -> JobRecords:
    """Reads `sacct -P` (or -p, or --delimiter). Steps are passed over; requeued and resized jobs (`sacct -D`) have
    one record for each allocation, each with its own nodes. Jobs of the partitions `ignore` count as idle time.
    Raises InvalidInput: the header lacks a column that is needed, or no job ran."""
    records = _Records(lines)
    for row in Table(lines, ("jobid", "start", "end")):
        reason = _add(records, row, time_of, ignore)
        if reason:
            lines.tally.skip(reason, lines.number)
    return records.finish()


def _add(records: _Records, row: Mapping[str, str], time_of: TimeParser, ignore: frozenset[str]) -> str:
    """Adds one row; or says why it is left out."""
    job, state = row["jobid"], row["state"]
    if "." in job:
        return "a step"
    if not _JOB_ID.match(job):
        return "no job id"
    records.tally.of_cluster(row["cluster"], records.lines.where)
    if row["partition"] and row["partition"] in ignore:
        return "of an ignored partition"
    word = state.partition(" ")[0].upper().rstrip("+")  # `CANCELLED by 1000`
    start, end, submit = time_of(row["start"]), time_of(row["end"]), time_of(row["submit"])
    records.saw(submit, start, end)
    if start is None:
        return "never started" if is_no_time(row["start"]) else "unreadable time"
    if word in NEVER_STARTED:
        return "never started"
    if end is None and not is_no_time(row["end"]):
        return "unreadable time"
    if end is None or (word in STILL_RUNNING and end <= start):
        elapsed = row["elapsedraw"]
        lasted = float(elapsed) if elapsed.isdecimal() else None
        end = math.inf
        if word in STILL_RUNNING or not state or lasted is None:
            records.saw(start + (lasted or 0.0))
        else:
            end = start + lasted
    if end <= start:
        return "ends before it starts" if end < start else "ran for 0 s"
    names = expand(row["nodelist"])
    if names is None:
        return "unreadable node list"
    minutes = row["timelimitraw"]  # or a word, such as UNLIMITED
    limit = 60.0 * int(minutes) if minutes.isascii() and minutes.isdecimal() and len(minutes) < 12 else math.nan
    allocation = row["jobidraw"] or job, start
    records.add(allocation, start if submit is None else submit, end, limit, names, _node_count(row))
    return ""


def _node_count(row: Mapping[str, str]) -> int:
    """How many nodes a job held, from whichever column says so; 1 where none does."""
    match = _NODE_TRES.search(row["alloctres"])
    for text in (row["allocnodes"], row["nnodes"], match[1] if match else "", row["reqnodes"]):
        if text.isascii() and text.isdecimal() and 0 < int(text) <= MAX_NODES:
            return int(text)
    return 1
