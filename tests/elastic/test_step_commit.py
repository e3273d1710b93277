"""What a step sums: a loss of several means, each over its own count of the whole batch, is that of one worker; who
stalls is given up in time, and buffers after that are others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from malletrain.elastic.comm.group import Group, SoloGroup
from malletrain.elastic.comm.step_commit import StepCommitter, TrainingWorld
from malletrain.elastic.gradients.batch_gather import BatchGather
from malletrain.elastic.gradients.reducer import GradientReducer
from tests.elastic.calm import Calm
from tests.elastic.stores import run

SAMPLES = torch.linspace(-1, 2, 12, dtype=torch.float64)
#: How many atoms a sample has: the first ones have none.
ATOMS = torch.tensor([0, 0, 0, 0, 1, 2, 3, 1, 0, 5, 2, 1])

#: Shares of the twelve samples by workers: even ones, uneven ones, and some workers have none (and compute one that
#: does not count).
SHARES = {1: [[12]], 2: [[6, 6], [11, 1], [12, 0]], 3: [[4, 4, 4], [2, 9, 1], [4, 0, 8], [0, 12, 0]]}


def gradient_of(*, mean: bool, shares: list[int] | None = None) -> Callable[[Group], list[torch.Tensor]]:
    def trained(group: Group) -> list[torch.Tensor]:
        parameter = nn.Parameter(torch.tensor([0.3, -0.7], dtype=torch.float64))
        committer = StepCommitter(Calm())
        committer.world = TrainingWorld(1, tuple(f"w{rank}" for rank in range(group.size)), group)
        reducer = GradientReducer([("p", parameter)], committer, mean=mean)
        gathers = BatchGather(committer, reducer, lambda _: None, lambda _: None, mean=mean)
        mine = shares or [len(SAMPLES)]
        begin, many = sum(mine[: group.rank]), mine[group.rank]
        part = slice(begin, begin + many) if many else slice(0, 1)
        reducer.arm(many, len(SAMPLES), lambda outcome: None)
        gathers.begin(many, len(SAMPLES), many)
        energies = (parameter[0] * SAMPLES[part] - 1).square()
        forces = ((parameter[1] + parameter[0]) * SAMPLES[part]).exp() * ATOMS[part]
        (gathers.mean(energies, len(energies)) + 3 * gathers.mean(forces, float(ATOMS[part].sum()))).backward()
        assert parameter.grad is not None
        return [parameter.grad.clone()]

    return trained


def expected() -> torch.Tensor:
    parameter = nn.Parameter(torch.tensor([0.3, -0.7], dtype=torch.float64))
    forces = ((parameter[1] + parameter[0]) * SAMPLES).exp() * ATOMS
    ((parameter[0] * SAMPLES - 1).square().mean() + 3 * forces.sum() / ATOMS.sum()).backward()
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize("mean", [True, False], ids=["means", "sums"])
@pytest.mark.parametrize("shares", [each for some in SHARES.values() for each in some], ids=str)
def test_gradients_are_those_of_the_whole_batch(shares: list[int], mean: bool) -> None:
    trained = gradient_of(mean=mean, shares=shares)
    for found in [trained(SoloGroup())] if len(shares) == 1 else run(len(shares), trained):
        assert isinstance(found, list), found
        torch.testing.assert_close(found[0], expected(), rtol=1e-12, atol=0)


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
