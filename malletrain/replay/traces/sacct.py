"""`sacct -P`: Slurm's own record of jobs, of any release, with node lists."""

from __future__ import annotations

import math
import re
from array import array
from dataclasses import dataclass, field

import numpy as np

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.source import Lines
from malletrain.replay.traces.table import Table, header_of
from malletrain.replay.traces.trace import MAX_NODES, JobRecords, Tally, column
from malletrain.replay.traces.words import TimeParser, duration, expand, is_no_time

WANTED = ("jobid", "jobidraw", "state", "submit", "start", "end", "nodelist", "allocnodes", "nnodes", "alloctres",
          "reqnodes", "elapsedraw", "elapsed", "partition", "eligible", "planned", "reserved", "timelimitraw",
          "timelimit", "cluster")  # fmt: skip
REQUIRED = ("jobid", "start", "end")

#: States in which a job still runs when sacct is asked, so that its end is not known yet.
STILL_RUNNING = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT"})
NEVER_STARTED = frozenset({"PENDING", "REVOKED"})

#: A job, an array task, a waiting range of an array, or a part of a heterogeneous job; a dot begins a step.
_JOB_ID = re.compile(r"\d+(?:_(?:\d+|\[[^\]]*\]?))?(?:\+\d+)?$")
_TIME_LIKE = re.compile(r"\d{4}-\d\d-\d\dT|\d{9,11}$")
_NODE_TRES = re.compile(r"(?:^|,)node=(\d{1,9})(?:,|$)")


def is_sacct_header(line: str) -> bool:
    parsed = header_of(line)
    return parsed is not None and "jobid" in parsed[1]


@dataclass
class Records:
    """Collects records column by column; a job's record that comes twice (logs by day, put together) counts once."""

    tally: Tally
    submit: array[float] = field(default_factory=lambda: array("d"))
    start: array[float] = field(default_factory=lambda: array("d"))
    end: array[float] = field(default_factory=lambda: array("d"))
    count: array[int] = field(default_factory=lambda: array("i"))
    limit: array[float] = field(default_factory=lambda: array("d"))
    first: array[int] = field(default_factory=lambda: array("q"))
    node: array[int] = field(default_factory=lambda: array("i"))
    number: dict[str, int] = field(default_factory=dict)
    seen: dict[tuple[str, float], int] = field(default_factory=dict)
    last_seen: float = -math.inf
    without_list: int = 0

    def add(
        self, job: str, submit: float | None, start: float, end: float, nodes: tuple[str, ...], count: int, line: int,
        source: str, limit: float = math.nan,
    ) -> None:  # fmt: skip
        """One allocation of a job: from `start` to `end` (inf: still running); `limit` its time limit in seconds."""
        known = self.seen.setdefault((job, start), len(self.start))
        if known < len(self.start):
            # Of two records of one allocation the later has its end.
            self.end[known] = (
                min(self.end[known], end)
                if math.isinf(self.end[known])
                else max(self.end[known], end if math.isfinite(end) else self.end[known])
            )
            self.tally.skip("repeats a job", line)
            return
        for name in nodes:
            index = self.number.setdefault(name, len(self.number))
            if index >= MAX_NODES:
                raise InvalidInput(f"{source}:{line}", f"more than {MAX_NODES:,} distinct nodes")
            self.node.append(index)
        self.first.append(len(self.node))
        self.without_list += not nodes
        self.submit.append(start if submit is None else submit)
        self.start.append(start)
        self.end.append(end)
        self.count.append(len(nodes) or count)
        self.limit.append(limit)

    def saw(self, *moments: float | None) -> None:
        for moment in moments:
            if moment is not None and moment > self.last_seen:
                self.last_seen = moment

    def finish(self, source: str, kind: str, lines: int) -> JobRecords:
        if not self.start:
            cause = "unset SLURM_TIME_FORMAT; " if "unreadable time" in self.tally.count else ""
            raise InvalidInput(
                source,
                f"holds no job that ran (skipped: {self.tally.summary()}); {cause}"
                "`malletrain replay --how` prints the sacct command to run",
            )
        has_lists = len(self.number) > 0
        if has_lists and self.without_list:
            self.tally.warn(f"{self.without_list:,} jobs that ran have no node list: their nodes count as idle.")
        end = column(self.end, np.float64)
        return JobRecords(
            account=self.tally.account(source, kind, lines, len(self.start)),
            submit=column(self.submit, np.float64), start=column(self.start, np.float64), end=end,
            count=column(self.count, np.int32), procs=np.zeros(len(self.start), np.int32),
            nodes=tuple(self.number),
            first=np.concatenate([np.zeros(1, np.int64), column(self.first, np.int64)]),
            node=column(self.node, np.int32), node_count=None, procs_per_node=1,
            last_seen=max(self.last_seen, float(self.start[-1])),
            limit=column(self.limit, np.float64),
        )  # fmt: skip


def read_sacct(lines: Lines, tally: Tally, time_of: TimeParser, ignore: frozenset[str] = frozenset()) -> JobRecords:
    """Reads `sacct -P` (or -p, or --delimiter). Steps are passed over; requeued and resized jobs (`sacct -D`) have
    one record for each allocation, each with its own nodes. Jobs of the partitions `ignore` count as idle time.

    Raises:
        InvalidInput: the header lacks a column that is needed, or no job ran.
    """
    records = Records(tally)
    for fields in Table(lines, tally, WANTED, REQUIRED, _plausible):
        (job, raw, state, submitted, started, ended, node_list, alloc_nodes, n_nodes, tres, req_nodes, elapsed_s,
         elapsed, partition, eligible, planned, reserved, limit_minutes, limit, cluster) = (
            text.strip() for text in fields
        )  # fmt: skip
        if "." in job:
            tally.skip("a step", lines.number)
            continue
        if not _JOB_ID.match(job):
            tally.skip("no job id", lines.number)
            continue
        tally.of_cluster(cluster, f"{lines.source}:{lines.number}")
        if partition and partition in ignore:
            tally.skip("of an ignored partition", lines.number)
            continue
        word = state.partition(" ")[0].upper().rstrip("+")  # `CANCELLED by 1000`
        start, end, submit = time_of(started), time_of(ended), time_of(submitted)
        records.saw(submit, start, end)
        if start is None:
            unreadable = not is_no_time(started)
            tally.skip("unreadable time" if unreadable else "never started", lines.number)
            continue
        if word in NEVER_STARTED:
            tally.skip("never started", lines.number)
            continue
        if end is None or (word in STILL_RUNNING and end <= start):
            if ended and not is_no_time(ended) and end is None:
                tally.skip("unreadable time", lines.number)
                continue
            length = float(elapsed_s) if elapsed_s.isdecimal() else duration(elapsed)
            if word in STILL_RUNNING or not state or length is None:
                end = math.inf
                records.saw(start + (length or 0.0))
            else:
                end = start + length
        if submit is None:
            # The wait has stood as Reserved, and from Slurm 21.08 on as Planned; eligible jobs were submitted.
            waited = duration(planned or reserved)
            submit = time_of(eligible) if waited is None else start - waited
        if end < start:
            tally.skip("ends before it starts", lines.number)
            continue
        if end == start:
            tally.skip("ran for 0 s", lines.number)
            continue
        nodes = expand(node_list)
        if nodes is None:
            tally.skip("unreadable node list", lines.number)
            continue
        records.add(
            raw or job, submit, start, end, nodes, _node_count(alloc_nodes, n_nodes, tres, req_nodes),
            lines.number, lines.source, _limit(limit_minutes, limit),
        )  # fmt: skip
    return records.finish(lines.source, "sacct", lines.number)


def _plausible(record: list[str]) -> bool:
    """Whether fields may stand in their columns: distinguishes the readings of a row with too many delimiters."""
    job, _, state, submitted, started, ended, *_ = (text.strip() for text in record)
    return (
        job[:1].isdigit()
        and (not state or (state.partition(" ")[0].rstrip("+").isupper()))
        and all(_TIME_LIKE.match(text) or is_no_time(text) for text in (submitted, started, ended))
    )


def _limit(minutes: str, text: str) -> float:
    """A time limit in seconds; nan where there is none (`UNLIMITED`, `Partition_Limit`)."""
    if minutes.isascii() and minutes.isdecimal() and len(minutes) < 12:
        return 60.0 * int(minutes)
    seconds = duration(text)
    return math.nan if seconds is None else seconds


def _node_count(alloc_nodes: str, n_nodes: str, tres: str, req_nodes: str) -> int:
    """How many nodes a job held, from whichever column says so; 1 where none does."""
    match = _NODE_TRES.search(tres)
    for text in (alloc_nodes, n_nodes, match[1] if match else "", req_nodes):
        if text.isascii() and text.isdecimal() and 0 < int(text) <= MAX_NODES:
            return int(text)
    return 1
