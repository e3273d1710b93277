"""Windows of a job that are kept: of the phase that it is in."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.domain.job import ThroughputSample
from malletrain.learn.samples import (
    DRIFT_WINDOWS,
    MAX_BATCH_RATIO,
    MAX_WINDOWS,
    MAX_WINDOWS_PER_SIZE,
    MIN_DRIFT_LOG_RATIO,
    KeptWindows,
)


def window(at: float, rate: float, batch: int = 64, nodes: int = 2) -> ThroughputSample:
    return ThroughputSample(at, nodes, 10.0 * batch, 10.0 * batch / rate, 10)


@given(
    before=st.integers(DRIFT_WINDOWS, 20),
    after=st.integers(DRIFT_WINDOWS, 20),
    factor=st.sampled_from([0.3, 0.8, 1.3, 4]),
)
def test_what_came_before_a_change_is_dropped(before: int, after: int, factor: float) -> None:
    kept, began = KeptWindows(), []
    for at in range(before + after):
        sample = window(at, 100.0 * (factor if at >= before else 1.0))
        kept.keep(sample)
        began.append(kept.forget_earlier_phase(sample))
    seen = [at for at in began if at is not None]
    assert seen and set(seen) == {float(before)}, "it begins with its first window"
    assert [each.at for each in kept] == list(range(before, before + after))


def test_another_batch_is_no_other_phase() -> None:
    kept = KeptWindows()
    for at in range(40):
        sample = window(at, 100.0 if at < 20 else 300.0, batch=64 if at < 20 else 256)
        kept.keep(sample)
        assert kept.forget_earlier_phase(sample) is None
    assert len(list(kept)) == 40


#: Some windows in a row at about one rate: how many, of what batches, sizes, classes and numbers of steps.
runs = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.sampled_from([50.0, 100.0, 110.0, 115.0, 200.0]),
        st.lists(st.sampled_from([0.9, 1.4, 9.6, 10.4, 60, 64, 66, 100, 110]), min_size=1, max_size=3),
        st.lists(st.sampled_from([1, 2]), min_size=1, max_size=2),
        st.sampled_from(["", "a100"]),
        st.lists(st.sampled_from([0, 1, 2, 10]), min_size=1, max_size=2),
    ),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(
    runs=runs, seed=st.integers(0, 2**32), noise=st.sampled_from([0.0, 0.02, 0.08]), sizes=st.sampled_from([1, 20])
)
def test_looking_at_what_is_new_finds_what_looking_at_all_windows_would(
    runs: list[tuple[int, float, list[float], list[int], str, list[int]]], seed: int, noise: float, sizes: int
) -> None:
    random = np.random.default_rng(seed)
    ours, plain = KeptWindows(), deque[ThroughputSample](maxlen=MAX_WINDOWS)
    at = 0
    for count, rate, batches, nodes, node_class, steps in runs:
        for _ in range(count):
            n = int(random.choice(nodes)) * int(random.integers(1, sizes + 1))
            samples = float(random.choice(batches)) * 10
            seconds = samples / (rate * float(np.exp(noise * random.standard_normal())))
            sample = ThroughputSample(float(at), n, samples, seconds, int(random.choice(steps)), node_class)
            ours.keep(sample)
            keep_plainly(plain, sample)
            assert list(ours) == list(plain)
            assert ours.forget_earlier_phase(sample) == forget_plainly(plain)
            assert list(ours) == list(plain)
            at += 1


def keep_plainly(samples: deque[ThroughputSample], sample: ThroughputSample) -> None:
    same = [i for i, other in enumerate(samples) if kind(other) == kind(sample)]
    if len(same) >= MAX_WINDOWS_PER_SIZE:
        del samples[same[0]]
    samples.append(sample)


def kind(sample: ThroughputSample) -> tuple[int, int, str]:
    return sample.nodes, round(sample.samples / sample.steps) if sample.steps > 0 else 0, sample.node_class


def forget_plainly(samples: deque[ThroughputSample]) -> float | None:
    last = samples[-1]
    alike = [each for each in samples if (each.nodes, each.node_class) == (last.nodes, last.node_class)]
    alike = [each for each in alike if has_batch_of(each, last)]
    if len(alike) < 2 * DRIFT_WINDOWS:
        return None
    rates = np.log([each.samples for each in alike]) - np.log([each.seconds for each in alike])
    rows = np.lib.stride_tricks.sliding_window_view(rates, DRIFT_WINDOWS)
    off = rows[DRIFT_WINDOWS:] - np.median(rows[:-DRIFT_WINDOWS], axis=1)[:, None]
    far = (off.min(axis=1) > MIN_DRIFT_LOG_RATIO) | (off.max(axis=1) < -MIN_DRIFT_LOG_RATIO)
    if not far.any():
        return None
    latest = int(np.flatnonzero(far)[-1])
    earlier = np.flatnonzero(~far[:latest])
    first = alike[DRIFT_WINDOWS + (int(earlier[-1]) + 1 if len(earlier) else 0)]
    while samples[0] is not first:
        samples.popleft()
    return first.at


def has_batch_of(one: ThroughputSample, other: ThroughputSample) -> bool:
    first, second = one.samples * max(other.steps, 1), other.samples * max(one.steps, 1)
    return max(first, second) <= MAX_BATCH_RATIO * min(first, second)
