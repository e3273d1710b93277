"""A step made before and after a world grows, where no check could decide how the script trains."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from malletrain.domain.event import EventKind
from malletrain.elastic.comm.step_commit import StepCommitter, StepOutcome
from malletrain.elastic.errors import StepTried
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.gradients.size_trial import SizeTrial
from malletrain.loop.membership.next_world import JobTerms
from tests.elastic.calm import Calm
from tests.elastic.coordinator import running
from tests.elastic.digits import SCRIPT, Static, assert_equal, assert_every_sample_once, diary
from tests.waiting import wait_until

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
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)


def test_one_that_differs_keeps_its_size(tmp_path: Path) -> None:
    found = grow(tmp_path, 1, "--by-share")
    assert (found["verdict"], found["nodes"]) == ("different", 2)
    assert found["text"].startswith("the gradient of ")


def grow(directory: Path, first: int, *more: str) -> dict[str, Any]:
    """A job grows by one worker, to its end; what was found of its script."""
    options = ["--epochs", EPOCHS, "--step-seconds", "0.1", "--slow-until", str(directory / "go"), *more]
    with running(directory, JobTerms(undecided=True, checked="0123")) as (daemon, pod):
        for task in range(first):
            pod.spawn(daemon.url, task, [SCRIPT, *options])
        daemon.wait_world(range(first))
        pod.spawn(daemon.url, first, [SCRIPT, *options])
        daemon.wait_world(range(first + 1))
        wait_until(lambda: bool(daemon.seen(EventKind.SCRIPT_CHECKED)), 60, "the step is compared")
        (directory / "go").touch()
        assert [pod.wait(task) for task in range(first + 1)] == [0] * (first + 1)
        assert not daemon.seen(EventKind.WORKER_LOST)
        found = daemon.told(EventKind.SCRIPT_CHECKED)
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
    reducer.arm(4, 4, committed.append)
    assert reducer.trial.begins(committer.world.generation, 1)
    tried = pytest.raises(StepTried) if must_be_finite else contextlib.nullcontext()
    with tried:
        model(torch.ones(4, 2)).mean().backward()
    assert len(committed) == (0 if must_be_finite else 1)
    assert (reducer.trial.held is not None) is must_be_finite
