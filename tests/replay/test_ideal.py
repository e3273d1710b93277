"""The zero-cost ideal against every possible choice of sizes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.replay.scoring.ideal import Ideal
from malletrain.replay.sizer import speedups
from malletrain.replay.workload import TrainingJob
from tests.replay.small import workloads


@given(jobs=workloads(), nodes=st.integers(0, 9))
def test_no_choice_is_better_and_one_is_as_good(jobs: list[TrainingJob], nodes: int) -> None:
    gains = [speedups(each, each.job.max_nodes) for each in jobs]
    best = max(
        sum(float(gains[j][k]) for j, k in enumerate(sizes))
        for sizes in product(*(range(len(gain)) for gain in gains))
        if sum(sizes) <= nodes
    )
    ideal = Ideal(jobs, gains, 9)
    live = tuple(range(len(jobs)))
    assert ideal.at(live, nodes) == pytest.approx(best, rel=1e-9)
    # The two ways, single and tabulated, agree.
    assert float(ideal._table(live)[nodes]) == pytest.approx(best, rel=1e-9)
