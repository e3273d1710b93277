"""What a step asks of a device: nothing is read in the middle of it, buckets are filled at once, and only buffers
that change are copied. Tensors in host memory stand for a device's (`device_stand_in`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from malletrain import elastic
from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.step_commit import StepCommitter, TrainingWorld
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients import finiteness
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.state.buffer_copies import FIRST_STEPS, BufferCopies
from tests.elastic import host_reads
from tests.elastic.calm import Calm
from tests.elastic.test_device_group import worlds
from tests.elastic.test_transfer import run


@pytest.fixture
def as_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finiteness, "runs_ahead", lambda device: True)


def trained(group: Group, bad_rank: int = -1) -> dict[str, Any]:
    """Steps of two members; returns what the last of them gave, or the error."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    generator = torch.Generator().manual_seed(0)  # members are threads: the global one is shared
    for parameter in model.parameters():
        parameter.data.normal_(generator=generator)
    committer = StepCommitter(Calm())
    committer.world = TrainingWorld(1, tuple(f"w{rank}" for rank in range(group.size)), group)
    reducer = GradientReducer(list(model.named_parameters()), committer, mean=True)
    for step in range(3):
        model.zero_grad()
        reducer.arm(group.rank + 1, sum(range(1, group.size + 1)), lambda outcome: None)
        loss = model(torch.linspace(-1, 1, 4).expand(group.rank + 1, 4) * (group.rank + step + 1)).square().mean()
        if step == 2 and group.rank == bad_rank:
            loss = loss * math.nan
        try:
            loss.backward()
        except ElasticError as error:
            return {"error": str(error), "committed": committer.rounds_done}
    return {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def of(act: Callable[[Group], object], size: int) -> list[Any]:
    return worlds(size, act)


@pytest.mark.usefixtures("as_a_device")
@pytest.mark.parametrize("size", [2, 3])
def test_a_step_reads_nothing_of_a_device_before_its_sums_are_complete(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    with host_reads.counted(monkeypatch) as places:
        found = of(trained, size)
    assert all(set(each) == set(found[0]) and "error" not in each for each in found), found
    assert not places, places[0]


@pytest.mark.usefixtures("as_a_device")
def test_a_verdict_of_a_device_names_the_rank_and_nobody_commits() -> None:
    for found in of(lambda group: trained(group, bad_rank=1), 3):
        assert "the gradients of w1 are not finite" in found["error"]
        assert found["committed"] == 2


@pytest.mark.usefixtures("as_a_device")
def test_verdicts_of_several_members_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(group: Group) -> object:
        return trained(group, bad_rank=group.rank if group.rank else -1)

    for found in of(act, 3):
        assert "the gradients of 2 of 3 workers are not finite" in found["error"]


def test_the_device_way_and_the_hosts_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    host = run(2, trained)
    monkeypatch.setattr(finiteness, "runs_ahead", lambda device: True)
    for here, there in zip(host, run(2, trained), strict=True):
        assert isinstance(here, dict) and isinstance(there, dict)
        assert all(torch.equal(here[name], there[name]) for name in here)


# --- a worker that trains alone -----------------------------------------------------------------------------------


def alone(bad_at: int, steps: int) -> tuple[str, int, GradientReducer]:
    """What a worker alone raises, after how many steps."""
    model, made = nn.Linear(3, 2), itertools.count()
    committer = StepCommitter(Calm())
    committer.world = TrainingWorld(0, ("alone",))
    reducer = GradientReducer(
        list(model.named_parameters()), committer, mean=True, step=lambda: committer.rounds_done
    )
    for number in range(steps):
        model.zero_grad()
        reducer.arm(1, 1, lambda outcome: None)
        loss = model(torch.ones(3)).sum() * (math.nan if number == bad_at else 1.0)
        try:
            loss.backward()
        except ElasticError as error:
            return str(error), next(made), reducer
        next(made)
    return "", next(made), reducer


@pytest.mark.usefixtures("as_a_device")
def test_alone_a_bad_step_is_noticed_a_step_later() -> None:
    error, made, _ = alone(3, 20)
    assert "step 3: the gradients of alone are not finite" in error
    assert made == 4


@pytest.mark.usefixtures("as_a_device")
def test_alone_a_bad_step_is_noticed_before_the_state_is_used() -> None:
    error, made, reducer = alone(3, 4)
    assert (error, made) == ("", 4)
    with pytest.raises(ElasticError, match="step 3: the gradients of alone are not finite"):
        reducer.settle()
    reducer.settle()


@pytest.mark.usefixtures("as_a_device")
def test_a_session_saves_no_state_with_a_bad_step_in_it() -> None:
    model = nn.Linear(3, 1)
    s = elastic.Session(model, torch.optim.SGD(model.parameters(), 0.1), [torch.ones(3)] * 4, batch_size=4)
    for _ in s.epochs(1):
        for x in s.batches():
            with s.step():
                (model(x).mean() * math.nan).backward()
    with pytest.raises(ElasticError, match="step 0: the gradients of alone are not finite"):
        s._runtime.state.capture()
    s.finish()


@pytest.mark.usefixtures("as_a_device")
def test_a_whole_step_of_a_session_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model.register_buffer("mask", torch.ones(3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    s = elastic.Session(model, optimizer, [torch.ones(3)] * 400, batch_size=4)
    found: list[str] = []
    for _ in s.epochs(1):
        batches = s.batches()
        for number in range(100):
            x = next(batches)
            watched = number > FIRST_STEPS and number % 64 not in (0, 63)
            with host_reads.counted(monkeypatch) as places, s.step():
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
            found += places if watched else []
        assert next(batches, None) is None
    s.finish()
    assert not found, found[0]


# --- buffers ------------------------------------------------------------------------------------------------------


class Buffers(nn.Module):
    mask: torch.Tensor
    mean: torch.Tensor
    codes: torch.Tensor
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("mask", "mean", "codes", "count"):
            self.register_buffer(name, torch.zeros(3))
        with torch.inference_mode():
            self.register_buffer("fixed", torch.zeros(2))

    def change(self) -> None:
        self.mean.add_(1)  # as BatchNorm
        self.codes.data.add_(1)  # as many code books; the version counter does not tell
        self.count = self.count + 1  # another tensor

    def values(self) -> list[list[float]]:
        return [buffer.tolist() for buffer in self.buffers()]


def test_an_aborted_step_leaves_every_buffer_as_it_was() -> None:
    model = Buffers()
    copies = BufferCopies(model)
    for number in range(3 * FIRST_STEPS):
        copies.take()
        before = model.values()
        model.change()
        if number % 3 == 1:
            copies.restore()
            assert model.values() == before, number


# --- models that change --------------------------------------------------------------------------------------------


def test_a_model_that_is_changed_after_session_is_named() -> None:
    """Another device is found in the same way as another type."""
    model = nn.Linear(2, 1, bias=False)
    s = elastic.Session(model, torch.optim.SGD(model.parameters(), 0.1), [torch.ones(2)] * 8, batch_size=4)
    model.double()
    says = "weight was float32 on cpu as Session was made, and is float64 on cpu now: move the model"
    batch = next(s.batches())
    with pytest.raises(ElasticError, match=says), s.step():
        model(batch.double()).mean().backward()
    s.finish()
