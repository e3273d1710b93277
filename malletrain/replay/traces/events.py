"""Node events: a CSV of `time,node,state`, as `scontrol`-polling scripts and BFTrainer's data have it."""

from __future__ import annotations

from array import array
from datetime import UTC, tzinfo
from pathlib import Path

import numpy as np

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.source import Lines, opened
from malletrain.replay.traces.table import Table
from malletrain.replay.traces.trace import BUSY, DOWN, IDLE, MAX_NODES, NodeChanges, Tally, column
from malletrain.replay.traces.words import TimeParser, expand, is_no_time

#: Words for a node's state, Slurm's own included. PLANNED is idle now, kept for a planned start.
STATE_WORDS = {
    "idle": IDLE, "free": IDLE, "planned": IDLE, "1": IDLE,
    "busy": BUSY, "alloc": BUSY, "allocated": BUSY, "mix": BUSY, "mixed": BUSY, "comp": BUSY, "completing": BUSY,
    "resv": BUSY, "reserved": BUSY, "0": BUSY,
    "down": DOWN, "drain": DOWN, "drained": DOWN, "drng": DOWN, "draining": DOWN, "maint": DOWN, "fail": DOWN,
    "unknown": DOWN, "powered_down": DOWN, "off": DOWN,
}  # fmt: skip


EVENT_COLUMNS = ("time", "node", "state")


def is_events_header(line: str) -> bool:
    return set(EVENT_COLUMNS) <= {word.strip().lower() for word in line.lstrip("\ufeff").split(",")}


def read_events(lines: Lines, tally: Tally, time_of: TimeParser) -> NodeChanges:
    """Reads the CSV; the header names the columns, in any order, others are ignored.

    Raises:
        InvalidInput: no event at all, or more nodes than a machine has.
    """
    number: dict[str, int] = {}
    times, nodes, states = array("d"), array("i"), array("b")
    for moment, node_name, word in Table(lines, tally, EVENT_COLUMNS, EVENT_COLUMNS):
        state = STATE_WORDS.get(word.strip().lower().rstrip("*~#!%$@^+-"))
        at, name = time_of(moment), node_name.strip()
        if state is None:
            tally.skip("unknown state", lines.number)
        elif at is None:
            tally.skip("unreadable time", lines.number)
        elif not name:
            tally.skip("no node name", lines.number)
        else:
            index = number.get(name)
            if index is None:
                index = number[name] = len(number)
                if index >= MAX_NODES:
                    raise InvalidInput(f"{lines.source}:{lines.number}", f"more than {MAX_NODES:,} distinct nodes")
            times.append(at)
            nodes.append(index)
            states.append(state)
    if not times:
        raise InvalidInput(
            lines.source, "holds no node event; expected lines such as 2021-02-10T00:08:52,a01n01,idle"
        )
    time, node, state_column = column(times, np.float64), column(nodes, np.int32), column(states, np.int8)
    if (np.diff(time) < 0).any():
        tally.warn("The events are not in order of time; they were sorted.")
        order = np.argsort(time, kind="stable")
        time, node, state_column = time[order], node[order], state_column[order]
    account = tally.account(lines.source, "node events", lines.number, len(time))
    return NodeChanges(account, tuple(number), time, node, state_column)


def read_outages(path: Path, zone: tzinfo = UTC) -> NodeChanges:
    """Each row with a node is one outage: DOWN from its start, IDLE from its end (Unknown: still going on).

    Raises:
        InvalidInput: a column is missing.
    """
    tally, time_of = Tally(), TimeParser(zone)
    number: dict[str, int] = {}
    nodes, times, states = array("i"), array("d"), array("b")
    with opened(path) as stream:
        lines = Lines(stream, str(path), tally)
        wanted = ("nodename", "timestart", "timeend", "cluster")
        for node_list, started, ended, cluster in Table(lines, tally, wanted, ("nodename", "timestart")):
            tally.of_cluster(cluster.strip(), f"{path}:{lines.number}")
            start, end = time_of(started), time_of(ended)
            names = expand(node_list)
            if names is None or start is None or (end is None and not is_no_time(ended)):
                tally.skip("unreadable", lines.number)
                continue
            for name in names:  # none: an event of the whole cluster, such as a change of its size
                index = number.setdefault(name, len(number))
                nodes.append(index)
                times.append(start)
                states.append(DOWN)
                if end is not None and end > start:
                    nodes.append(index)
                    times.append(end)
                    states.append(IDLE)
    if not lines.number:
        raise InvalidInput(str(path), "is empty; expected the output of `sacctmgr -P show event`")
    order = np.argsort(column(times, np.float64), kind="stable")
    return NodeChanges(
        tally.account(str(path), "outages", lines.number, len(times)), tuple(number),
        column(times, np.float64)[order], column(nodes, np.int32)[order], column(states, np.int8)[order],
    )  # fmt: skip
