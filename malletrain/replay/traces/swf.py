"""Standard Workload Format: one job a line, 18 fields of numbers, a header of `;` lines.

Source: Chapin et al., "Benchmarks and Standards for the Evaluation of Parallel Job Schedulers", JSSPP 1999;
https://www.cs.huji.ac.il/labs/parallel/workload/swf.html. Only fields 1-5, 8 and 9 are read: number, submit, wait,
run time, allocated and requested processors, requested time; they mean the same in every variant seen.
Extended variants append fields of their own after the 18, also words (node lists, states): these are not read.
"""

from __future__ import annotations

import math
import re
from array import array

import numpy as np

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.source import Lines
from malletrain.replay.traces.trace import JobRecords, column

#: Larger submit times are Unix seconds (2001 and later), whatever the header says.
MIN_UNIX_TIME_S = 1_000_000_000
#: Fields of the format; what follows them in a row is a site's own.
FIELDS = 18
MAX_PROCS = 2_000_000_000

_HEADER = re.compile(r";\s*(UnixStartTime|MaxNodes|MaxProcs)\s*:\s*(-?\d{1,12})", re.IGNORECASE)


def looks_like_swf(line: str) -> bool:
    """Whether a line is an SWF header or a row of numbers wide enough for one job."""
    if line.lstrip().startswith(";"):
        return True
    fields = line.split()[:FIELDS]
    try:
        return len(fields) >= 5 and all(math.isfinite(float(field)) for field in fields)
    except ValueError:
        return False


def read_swf(lines: Lines) -> JobRecords:
    """Reads the log; rows may be in any order. Jobs that never ran are counted as skipped.
    Raises InvalidInput: no job that ran."""
    tally, header = lines.tally, dict[str, int]()
    submit, start, end, limit, procs = array("d"), array("d"), array("d"), array("d"), array("i")
    no_wait = requested = extended = 0
    for line in lines:
        if line.lstrip().startswith(";"):
            match = _HEADER.match(line.lstrip())
            if match:
                key, value = match[1].lower(), int(match[2])
                if header.setdefault(key, value) != value:
                    tally.warn(f"A second {match[1]} in the header (line {lines.number}) was ignored.")
            continue
        fields = line.split()
        if not fields:
            continue
        if len(fields) < 5:
            tally.skip("too few fields", lines.number)
            continue
        try:
            submitted, wait, run, width = float(fields[1]), float(fields[2]), float(fields[3]), float(fields[4])
            if width <= 0 and len(fields) > 7:
                width = float(fields[7])
                requested += width > 0 and run > 0
            asked = float(fields[8]) if len(fields) > 8 else -1.0
        except ValueError:
            tally.skip("not a number", lines.number)
            continue
        reason = _why_not(submitted, wait, run, width)
        if reason:
            tally.skip(reason, lines.number)
            continue
        no_wait += wait == -1
        extended += len(fields) > FIELDS
        submit.append(submitted)
        start.append(submitted + max(wait, 0.0))
        end.append(submitted + max(wait, 0.0) + run)
        procs.append(int(width))
        limit.append(asked if 0 < asked < 1e9 else math.nan)
    if not submit:
        raise InvalidInput(lines.source, "holds no job that ran (SWF fields 4, run time, and 5, processors)")
    if no_wait:
        tally.warn(f"{no_wait:,} jobs have no wait time: their submit time was taken as their start.")
    if requested:
        tally.warn(f"{requested:,} jobs have no allocated processors: the requested ones were taken.")
    if extended:
        tally.warn(f"{extended:,} rows have more than 18 fields (an extended SWF): what follows them is not read.")
    offset = float(header.get("unixstarttime", 0))
    if min(submit) > MIN_UNIX_TIME_S:
        offset = 0.0
    elif offset <= 0:
        tally.warn("The header has no UnixStartTime: times count from the start of the log, shown as 1970.")
    max_nodes, max_procs = header.get("maxnodes", 0), header.get("maxprocs", 0)
    nodes, per_node = _machine(max_nodes, max_procs)
    if max_nodes <= 0 or max_procs <= 0:
        tally.warn(
            "The header lacks MaxNodes or MaxProcs: idle nodes are counted in processors; give --nodes and "
            "replay.procs_per_node."
        )
    if nodes and per_node and max_nodes and max_procs % max_nodes:
        tally.warn(
            f"{max_procs:,} processors on {max_nodes:,} nodes do not divide evenly: taken as {nodes:,} nodes of "
            f"{per_node}. Say it better with --nodes and replay.procs_per_node."
        )
    ends = column(end, np.float64) + offset
    return JobRecords(
        account=tally.account(lines.source, "SWF", lines.number, len(submit)),
        submit=column(submit, np.float64) + offset,
        start=column(start, np.float64) + offset,
        end=ends,
        limit=column(limit, np.float64),
        count=np.zeros(len(submit), np.int32),
        procs=column(procs, np.int32),
        node_count=nodes,
        procs_per_node=per_node,
        last_seen=float(ends.max()),
    )


def _why_not(submitted: float, wait: float, run: float, width: float) -> str:
    """The reason why a row is left out, empty where it is not."""
    if not all(math.isfinite(value) and abs(value) < 1e11 for value in (submitted, wait, run, width)):
        return "not a sound number"
    if submitted < 0:
        return "negative submit time"
    if wait < 0 and wait != -1:
        return "negative wait"
    if run <= 0:
        return "never ran (run time 0 or unknown)"
    if width <= 0:
        return "never ran (no processors)"
    if width > MAX_PROCS:
        return "not a sound number"
    return ""


def _machine(max_nodes: int, max_procs: int) -> tuple[int | None, int | None]:
    """Nodes and processors per node: the whole processors per node, and as many nodes as hold all of them."""
    if max_nodes <= 0:
        return (max_procs, 1) if max_procs > 0 else (None, None)
    per_node = max(1, max_procs // max_nodes)
    return max(max_nodes, -(-max_procs // per_node)), per_node
