"""What a step sums: a loss of several means, each over its own count of the whole batch, is that of one worker; who
stalls is given up in time, and buffers after that are others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from malletrain.elastic.comm.group import Group, SoloGroup
from malletrain.elastic.comm.step_commit import StepCommitter, StepOutcome, TrainingWorld
from malletrain.elastic.errors import StepRepeated
from malletrain.elastic.gradients.batch_gather import BatchGather
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.gradients.size_trial import SizeTrial
from malletrain.loop.membership.next_world import JobTerms
from tests.elastic.coordinator import running
from tests.elastic.digits import SCRIPT, Static, assert_every_sample_once, diary
from tests.elastic.stores import Calm, run

SAMPLES = torch.linspace(-1, 2, 12, dtype=torch.float64)
#: How many atoms a sample has: the first ones have none.
ATOMS = torch.tensor([0, 0, 0, 0, 1, 2, 3, 1, 0, 5, 2, 1])

#: Shares of the twelve samples by workers: even ones, uneven ones, and some workers have none (and compute one that
#: does not count).
SHARES = {1: [[12]], 2: [[6, 6], [11, 1], [12, 0]], 3: [[4, 4, 4], [2, 9, 1], [4, 0, 8], [0, 12, 0]]}


def gradient_of(shares: list[int], *, mean: bool) -> Callable[[Group], list[torch.Tensor]]:
    def trained(group: Group) -> list[torch.Tensor]:
        parameter = nn.Parameter(torch.tensor([0.3, -0.7], dtype=torch.float64))
        committer = StepCommitter(Calm())
        committer.world = TrainingWorld(1, tuple(f"w{rank}" for rank in range(group.size)), group)
        reducer = GradientReducer([("p", parameter)], committer, mean=mean)
        gathers = BatchGather(committer, reducer, lambda _: None, lambda _: None, sharded=False)
        begin, many = sum(shares[: group.rank]), shares[group.rank]
        part = slice(begin, begin + many) if many else slice(0, 1)
        reducer.arm(many, len(SAMPLES))
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
    trained = gradient_of(shares, mean=mean)
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
            reducer.arm(1, 2)
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


EPOCHS = "4"
WEIGHTS = torch.linspace(-1, 1, 1000)


@pytest.mark.parametrize(("after", "found"), [
    ({"w": WEIGHTS * 1.0001, "b": torch.tensor([0.001])}, ""),
    ({"w": WEIGHTS, "b": torch.tensor([-0.004])}, ""),  # noise: a thousandth of all
    ({"w": WEIGHTS * 2, "b": torch.tensor([0.001])}, "the gradient of w differs by 1 of its norm"),
    ({"w": WEIGHTS, "b": torch.tensor([5.0])}, "the gradient of b differs by 5e+03 of its norm"),
    ({"w": WEIGHTS * torch.nan, "b": torch.tensor([0.001])}, "the gradient of w differs by nan of its norm"),
    ({"w": WEIGHTS}, "b has a gradient at one size only"),
])  # fmt: skip
def test_gradients_differ_beyond_rounding(after: dict[str, torch.Tensor], found: str) -> None:
    heard: list[str] = []
    trial = SizeTrial()
    trial.found = heard.append
    trial.hold(7, 64, {"w": WEIGHTS, "b": torch.tensor([0.001])}.items())
    trial.compare(7, 64, after.items())
    assert heard == [found]
    trial.compare(7, 64, {}.items())
    assert heard == [found], "they are compared once"


def test_another_step_or_batch_is_not_compared() -> None:
    trial = SizeTrial()
    trial.found = lambda text: pytest.fail(text)
    for step, batch in ((8, 64), (7, 32)):
        trial.hold(7, 64, {"w": WEIGHTS}.items())
        trial.compare(step, batch, {"w": -WEIGHTS}.items())


def test_a_step_is_tried_once_for_each_world_that_follows() -> None:
    trial = SizeTrial()
    assert [trial.begins(1, 2), trial.begins(1, 2), trial.begins(2, 4)] == [True, False, True]


@pytest.mark.parametrize("first", [1, 2])
def test_a_script_that_no_check_decided_about_is_tried_as_it_grows(
    tmp_path: Path, static: Static, first: int
) -> None:
    found = grow(tmp_path, first)
    assert found["verdict"] == "undecided"
    assert found["text"] == "gradients of a step before and after its world grew are equal"
    static.assert_like(tmp_path, "--epochs", EPOCHS)


def test_one_that_differs_keeps_its_size(tmp_path: Path) -> None:
    found = grow(tmp_path, 1, "--by-share")
    assert (found["verdict"], found["nodes"]) == ("different", 2)
    assert found["text"].startswith("the gradient of ")


def grow(directory: Path, first: int, *more: str) -> dict[str, Any]:
    """A job grows by one worker, to its end; what was found of its script."""
    options = ["--epochs", EPOCHS, "--step-seconds", "0.1", "--slow-until", str(directory / "go"), *more]
    with running(directory, JobTerms(undecided=True, checked="0123")) as (daemon, pod):
        pod.begin(daemon, range(first), [SCRIPT, *options])
        pod.grow(daemon, (first,), [SCRIPT, *options])
        daemon.wait_seen("script_checked")
        pod.finish(*range(first + 1))
        assert not daemon.seen("worker_lost")
        found = daemon.told("script_checked")
    assert len(found) == 1
    assert_every_sample_once(diary(directory), int(EPOCHS))
    return found[0]


@pytest.mark.parametrize("must_be_finite", [True, False])
def test_a_step_that_may_overflow_is_not_tried(must_be_finite: bool) -> None:
    """With a loss scaler gradients may be infinite at one size and not at another, and neither is wrong."""
    model = torch.nn.Linear(2, 1)
    committer, committed = StepCommitter(Calm()), list[StepOutcome]()
    reducer = GradientReducer(list(model.named_parameters()), committer, mean=True)
    reducer.must_be_finite = must_be_finite
    reducer.arm(4, 4)
    reducer.set_terms(4, 1, committed.append)
    assert reducer.trial.begins(committer.world.generation, 1)
    model(torch.ones(4, 2)).mean().backward()
    assert isinstance(reducer.aborted, StepRepeated) is must_be_finite
    assert model.weight.grad is not None and bool(model.weight.grad.any()) is not must_be_finite
    assert len(committed) == (0 if must_be_finite else 1)
    assert (reducer.trial.held is not None) is must_be_finite
