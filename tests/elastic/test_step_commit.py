"""The timeout for stalled peers, and buffers after a step that was given up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.step_commit import StepCommitter, TrainingWorld
from malletrain.elastic.gradients.reducer import GradientReducer
from tests.elastic.calm import Calm
from tests.elastic.test_transfer import run


@given(st.floats(0.01, 100.0))
def test_a_frozen_peer_is_removed_in_time(step: float) -> None:
    """Waiting begins up to a step after it froze, and it has two seconds to check in."""
    committer = StepCommitter(Calm())
    committer.record_step_time(step)
    assert step + committer.stall_timeout_s() + 2.0 <= max(5.0, 10 * step) + 1e-9
    assert committer.stall_timeout_s() >= 2.5


@pytest.mark.parametrize("asked_for", [False, True], ids=["all in the same round", "someone lags"])
def test_after_an_abort_buffers_of_unneeded_sums_are_reused(asked_for: bool) -> None:
    """Sums that a member may still ask for stay as they are."""

    def act(group: Group) -> list[bool]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        committer = StepCommitter(Calm())
        committer.world = TrainingWorld(1, ("a", "b"), group)
        reducer = GradientReducer(list(model.named_parameters()), committer, mean=True)

        def step() -> list[int]:
            model.zero_grad()
            reducer.arm(1, 2, lambda outcome: None)
            model(torch.ones(1, 4) * (group.rank + 1)).sum().backward()
            return [flat.data_ptr() for flat in committer.last_sums[: len(reducer._buckets)]]

        step()
        used = step()
        kept = [tensor.clone() for tensor in committer.last_sums]
        last = committer.last_sums
        reducer.reset_after_abort()
        if not asked_for:
            committer.last_sums = []
        again = step()
        torch.testing.assert_close(model.weight.grad, torch.full((2, 4), 1.5))
        untouched = all(torch.equal(left, right) for left, right in zip(last, kept, strict=True))
        return [again == used, untouched or not asked_for]

    for found in run(2, act):
        assert found == [not asked_for, True]
