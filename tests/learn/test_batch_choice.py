"""Batches chosen by the daemon: from windows to a model of the step, to curves, to what each size should use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.decision import SizingStatus
from malletrain.domain.job import Curve, MalleableJob, ThroughputSample
from malletrain.learn.batch_choice import (
    MAX_EXPLORATION_FACTOR,
    StepTime,
    batch_curves,
    candidate_batches,
    chosen_batches,
    fit_step_time,
)
from malletrain.loop.membership.next_world import JobTerms
from malletrain.sizing.problem import JobDemand, Sizes

TRUTH = StepTime(fixed=0.05, each=0.001, join=0.02, more=0.004, most_each=256.0)
JOB = MalleableJob(1, "j", "u", 1000, "a", 1, 16, 0.0, batch_min=64, batch_max=4096)


def window(nodes: int, batch: float, steps: int = 20) -> ThroughputSample:
    return ThroughputSample(0.0, nodes, batch * steps, TRUTH.seconds(nodes, batch) * steps, steps)


def test_finds_the_model_that_made_the_windows() -> None:
    found = fit_step_time([window(n, b) for n in (1, 2, 4, 8) for b in (64, 256)])
    assert found is not None
    for nodes, batch in ((1, 64), (3, 512), (16, 4096)):
        assert found.seconds(nodes, batch) == pytest.approx(TRUTH.seconds(nodes, batch), rel=1e-6)


def test_one_share_a_node_tells_nothing() -> None:
    assert fit_step_time([window(2, 256)] * 30) is None
    assert fit_step_time([]) is None
    assert batch_curves(JOB, [window(2, 256)] * 30) == ()
    assert batch_curves(replace(JOB, batch_min=None, batch_max=None), [window(n, 256) for n in (1, 4)]) == ()


def test_no_node_is_given_more_than_can_be_known_to_fit() -> None:
    curves = dict(batch_curves(JOB, [window(n, 256) for n in (1, 2, 4)]))
    assert curves[512].throughput(1) > 0 and MAX_EXPLORATION_FACTOR * 256 == 512
    assert curves[1024].throughput(1) == 0.0
    assert curves[1024].throughput(2) > 0.0


@given(low=st.integers(1, 10**6), more=st.integers(0, 10**6))
def test_candidates_are_in_the_range_and_few(low: int, more: int) -> None:
    found = candidate_batches(low, low + more)
    assert found[0] == low and found[-1] == low + more
    assert len(found) <= 22 and list(found) == sorted(set(found))


def demand(noise: float | None) -> JobDemand:
    curves = batch_curves(JOB, [window(n, b) for n in (1, 2, 4, 8) for b in (256, 1024)])
    return JobDemand(1, 1, 1, 16, Curve(((1, 1.0), (16, 9.0))), batches=curves, noise_scale=noise)


def nothing_chosen(size: int, **more: int) -> Sizes:
    return Sizes(SizingStatus.OPTIMAL, 0.0, 0.0, {1: size}, "", batches={1: more["batch"]} if more else {})


def test_more_nodes_get_more_samples_and_noise_permits_it() -> None:
    """Without a noise scale a sample is a sample, and the largest batch that fits is best; a small noise scale says
    that large batches teach nothing more."""
    terms = {
        noise: JobTerms(batches=chosen_batches([demand(noise)], nothing_chosen(4))[1]) for noise in (None, 10.0, 1e9)
    }
    assert terms[None].batch(16) == 4096
    assert terms[10.0].batch(16) <= 128
    assert terms[1e9].batch(16) == 4096
    by_nodes = [terms[None].batch(n) for n in (1, 2, 4, 8, 16)]
    assert by_nodes == sorted(by_nodes) and by_nodes[0] < by_nodes[-1]


def test_the_policys_own_choice_holds_at_its_size() -> None:
    terms = JobTerms(batches=chosen_batches([demand(1e9)], nothing_chosen(4, batch=64))[1])
    assert terms.batch(4) == 64
    assert terms.batch(2) > 64


def test_a_job_whose_batch_is_its_own_gets_none() -> None:
    fixed = JobDemand(1, 1, 1, 16, Curve(((1, 1.0),)))
    assert chosen_batches([fixed], nothing_chosen(4)) == {}
    assert JobTerms().batch(4) == 0
