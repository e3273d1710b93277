"""Node events: a CSV of `time,node,state`, as `scontrol`-polling scripts and BFTrainer's data have it."""

from __future__ import annotations

from array import array
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any

import numpy as np

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.source import Lines, opened
from malletrain.replay.traces.table import Table
from malletrain.replay.traces.trace import BUSY, DOWN, IDLE, MAX_NODES, NodeChanges, column
from malletrain.replay.traces.words import TimeParser, expand, is_no_time, time_parser

#: Words for a node's state, Slurm's own included. PLANNED is idle now, kept for a planned start.
_WORDS = {
    IDLE: "idle free planned 1",
    BUSY: "busy alloc allocated mix mixed comp completing resv reserved 0",
    DOWN: "down drain drained drng draining maint fail unknown powered_down off",
}
STATE_WORDS = {word: state for state, words in _WORDS.items() for word in words.split()}

#: What such a trace is called (`Account.kind`).
EVENTS = "node events"
EVENT_COLUMNS = ("time", "node", "state")


def is_events_header(line: str) -> bool:
    return set(EVENT_COLUMNS) <= {word.strip().lower() for word in line.lstrip("\ufeff").split(",")}


class _Changes:
    """Collects changes of nodes, in any order."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.number: dict[str, int] = {}
        self.times, self.nodes, self.states = array("d"), array("i"), array("b")

    def add(self, name: str, at: float, state: int) -> None:
        index = self.number.setdefault(name, len(self.number))
        if index >= MAX_NODES:
            raise InvalidInput(self.lines.where, f"more than {MAX_NODES:,} distinct nodes")
        self.nodes.append(index)
        self.times.append(at)
        self.states.append(state)

    def in_order(self, kind: str) -> NodeChanges:
        """All of them, by time."""
        time, tally = column(self.times, np.float64), self.lines.tally
        order: Any = slice(None)
        if (np.diff(time) < 0).any():
            order = np.argsort(time, kind="stable")
            if kind == EVENTS:
                tally.warn("The events are not in order of time; they were sorted.")
        return NodeChanges(
            tally.account(self.lines.source, kind, self.lines.number, len(time)),
            tuple(self.number),
            time[order],
            column(self.nodes, np.int32)[order],
            column(self.states, np.int8)[order],
        )


def read_events(lines: Lines, time_of: TimeParser) -> NodeChanges:
    """Reads the CSV; the header names the columns, in any order, others are ignored.
    Raises InvalidInput: no event at all, or more nodes than a machine has."""
    changes, skip = _Changes(lines), lines.tally.skip
    for row in Table(lines, EVENT_COLUMNS):
        state = STATE_WORDS.get(row["state"].lower().rstrip("*~#!%$@^+-"))
        at, name = time_of(row["time"]), row["node"]
        if state is None:
            skip("unknown state", lines.number)
        elif at is None:
            skip("unreadable time", lines.number)
        elif not name:
            skip("no node name", lines.number)
        else:
            changes.add(name, at, state)
    if not changes.times:
        raise InvalidInput(
            lines.source, "holds no node event; expected lines such as 2021-02-10T00:08:52,a01n01,idle"
        )
    return changes.in_order(EVENTS)


def read_outages(path: Path, zone: tzinfo = UTC) -> NodeChanges:
    """Each row with a node is one outage: DOWN from its start, IDLE from its end (Unknown: still going on).
    Raises InvalidInput: a column is missing."""
    time_of = time_parser(zone)
    with opened(path) as stream:
        lines = Lines(stream, str(path))
        changes = _Changes(lines)
        for row in Table(lines, ("nodename", "timestart")):
            lines.tally.of_cluster(row["cluster"], lines.where)
            start, end = time_of(row["timestart"]), time_of(row["timeend"])
            names = expand(row["nodename"])
            if names is None or start is None or (end is None and not is_no_time(row["timeend"])):
                lines.tally.skip("unreadable", lines.number)
                continue
            for name in names:  # none: an event of the whole cluster, such as a change of its size
                changes.add(name, start, DOWN)
                if end is not None and end > start:
                    changes.add(name, end, IDLE)
    if not lines.number:
        raise InvalidInput(str(path), "is empty; expected the output of `sacctmgr -P show event`")
    return changes.in_order("outages")
