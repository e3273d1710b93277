"""The timeout for stalled peers, and buffers after a step that was given up."""

from __future__ import annotations

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


def test_after_an_abort_other_buffers_are_used() -> None:
    """Operations in progress may still write to those of the round that was given up."""

    def act(group: Group) -> list[bool]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        committer = StepCommitter(Calm())
        committer.world = TrainingWorld(1, ("a", "b"), group)
        reducer = GradientReducer(list(model.named_parameters()), committer, mean=True)

        def step() -> list[torch.Tensor]:
            model.zero_grad()
            reducer.arm(1, 2, lambda outcome: None)
            model(torch.ones(1, 4) * (group.rank + 1)).sum().backward()
            return list(reducer._sent)

        first, used = step(), step()
        reducer.reset_after_abort()
        again = step()
        torch.testing.assert_close(model.weight.grad, torch.full((2, 4), 1.5))
        kept = [left is right for left, right in zip(first, used, strict=True)]
        return [all(kept), any(left is right for left, right in zip(used, again, strict=True))]

    for found in run(2, act):
        assert found == [True, False]
