"""Even filling: how policies that say only how far each job may grow share the nodes."""

from __future__ import annotations

import numpy as np

from malletrain.sizing.values import Ints, ValueTable


def max_min_rows(table: ValueTable, nodes: int, last: Ints) -> Ints:
    """Rows of an even split in which job i goes no further than row `last[i]`.

    In rounds: each job steps up to its next permitted size, the smallest sizes first, then the lowest id, while it
    fits. Jobs whose first step does not fit stay at zero.
    """
    allowed = ((np.arange(len(table.size)) <= last[table.row_job]) & (table.size > 0)).nonzero()[0]
    order = allowed[np.argsort(table.size[allowed], kind="stable")]  # rows stand by job already
    at, held, spare = table.start[:-1].tolist(), [0] * len(table.ids), nodes
    steps = zip(order.tolist(), table.row_job[order].tolist(), table.size[order].tolist(), strict=True)
    for row, job, size in steps:
        if spare <= 0:
            break
        if at[job] == row - 1 and size - held[job] <= spare:
            spare -= size - held[job]
            at[job], held[job] = row, size
    return np.array(at, dtype=np.int64)
