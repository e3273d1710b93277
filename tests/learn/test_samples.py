"""Windows of a job that are kept: of the phase that it is in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, MutableSequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.job import ThroughputSample
from malletrain.learn.samples import DRIFT_WINDOWS, forget_earlier_phase, keep_sample

Kept = MutableSequence[ThroughputSample]


def window(at: float, rate: float, batch: int = 64, nodes: int = 2) -> ThroughputSample:
    return ThroughputSample(at, nodes, 10.0 * batch, 10.0 * batch / rate, 10)


@pytest.mark.parametrize("make", [list, lambda: deque(maxlen=512)], ids=["list", "deque"])
@given(
    before=st.integers(DRIFT_WINDOWS, 20),
    after=st.integers(DRIFT_WINDOWS, 20),
    factor=st.sampled_from([0.3, 0.8, 1.3, 4]),
)
def test_what_came_before_a_change_is_dropped(
    make: Callable[[], Kept], before: int, after: int, factor: float
) -> None:
    kept, began = make(), []
    for at in range(before + after):
        keep_sample(kept, window(at, 100.0 * (factor if at >= before else 1.0)))
        began.append(forget_earlier_phase(kept))
    seen = [at for at in began if at is not None]
    assert seen and set(seen) == {float(before)}, "it begins with its first window"
    assert kept[0].at == before and len(kept) == after


def test_another_batch_is_no_other_phase() -> None:
    kept: Kept = deque(maxlen=512)
    for at in range(40):
        keep_sample(kept, window(at, 100.0 if at < 20 else 300.0, batch=64 if at < 20 else 256))
        assert forget_earlier_phase(kept) is None
    assert len(kept) == 40
