"""Tasks of several nodes: what is kept of them as nodes come and go is what counting them anew gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from malletrain.replay.pilot_rules import MultiNodeTasks

NODES, JOBS = 24, 3

_moves = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, JOBS - 1), st.sets(st.integers(0, NODES - 1), min_size=1)),
    max_size=12,
)


@given(moves=_moves)
def test_kept_as_counted_anew(moves: list[tuple[int, int, set[int]]]) -> None:
    tasks, owner = MultiNodeTasks(NODES), np.full(NODES, -1, np.int64)
    for width, job, chosen in moves:
        nodes = np.array(sorted(chosen), dtype=np.int64)
        leaving = nodes[owner[nodes] >= 0]
        tasks.end(leaving, owner[leaving])
        owner[leaving] = -1
        tasks.widen(width, int(np.count_nonzero(owner >= 0)))
        coming = np.setdiff1d(nodes, leaving)
        owner[coming] = job
        tasks.begin(coming, owner[coming])

        held = np.flatnonzero(owner >= 0)
        assert len(tasks) == len(np.unique(tasks.of[held]))
        assert (tasks.of[owner < 0] == -1).all()
        for task in np.unique(tasks.of[held]):
            mine = np.flatnonzero(tasks.of == task)
            assert len(np.unique(owner[mine])) == 1
            if tasks.several:
                np.testing.assert_array_equal(tasks.co_allocated(mine[:1]), mine[1:])
        if tasks.width > 1:
            for job_, may in tasks.allowed(range(JOBS), [1] * JOBS, [NODES] * JOBS).items():
                sums = {0}
                for width_ in np.unique(tasks.of[owner == job_], return_counts=True)[1].tolist():
                    sums |= {total + width_ for total in sums}
                count = int(np.count_nonzero(owner == job_))
                assert {size for size in np.flatnonzero(may).tolist() if size <= count} == sums
