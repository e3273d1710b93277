"""`sacctmgr -P show event`: when nodes were down or drained, so that they are not called idle."""

from __future__ import annotations

from array import array
from datetime import UTC, tzinfo
from pathlib import Path

import numpy as np

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.nodelist import expand
from malletrain.replay.traces.source import Lines, opened
from malletrain.replay.traces.table import Table
from malletrain.replay.traces.times import TimeParser, is_no_time
from malletrain.replay.traces.trace import DOWN, IDLE, NodeChanges, Tally, column


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
