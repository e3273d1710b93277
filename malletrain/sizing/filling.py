"""Even filling: how policies that say only how far each job may grow share the nodes."""

from __future__ import annotations

import numpy as np

from malletrain.sizing.values import Ints, ValueTable


def fill_evenly(table: ValueTable, nodes: int, last: Ints) -> Ints:
    """Rows of an even split in which job i goes no further than row `last[i]`.

    In rounds: each job steps up to its next permitted size, the smallest sizes first, then the lowest id, while it
    fits. Jobs whose first step does not fit stay at zero.
    """
    at = table.start[:-1].copy()
    spare = nodes
    allowed = np.flatnonzero((np.arange(len(table.size)) <= last[table.row_job]) & (table.size > 0))
    for row in allowed[np.lexsort((table.row_job[allowed], table.size[allowed]))].tolist():
        job = table.row_job[row]
        more = int(table.size[row] - table.size[at[job]])
        if at[job] == row - 1 and more <= spare:
            at[job] = row
            spare -= more
    return at
