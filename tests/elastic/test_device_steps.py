"""What a step asks of a device: nothing is read in the middle of it, buckets are filled at once, and only buffers
that change are copied. Tensors in host memory stand for a device's (`device_stand_in`)."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from malletrain import elastic
from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.step_commit import StepCommitter, TrainingWorld
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients import finiteness
from malletrain.elastic.gradients.finiteness import LateRead, all_finite
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.state.buffer_copies import FIRST_STEPS, BufferCopies
from tests.elastic.stores import Calm, run
from tests.elastic.test_device_group import worlds

#: By these a program would wait for a device.
READERS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A context manager with the places of the reads within it. What comes by `LateRead` is not counted: nothing
    waits for that."""
    places: list[str] = []
    sanctioned: list[None] = []
    values = LateRead.values

    def late(self: LateRead) -> list[float]:
        sanctioned.append(None)
        try:
            return values(self)
        finally:
            sanctioned.pop()

    def noted(read: Callable[..., Any]) -> Callable[..., Any]:
        def reader(tensor: torch.Tensor, *args: Any, **more: Any) -> Any:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and not sanctioned:
                places.append("".join(traceback.format_stack(limit=4)[:-1]))
            return read(tensor, *args, **more)

        return reader

    with monkeypatch.context() as patch:
        patch.setattr(LateRead, "values", late)
        for name in READERS:
            patch.setattr(torch.Tensor, name, noted(getattr(torch.Tensor, name)))
        for name in ("equal", "allclose"):
            patch.setattr(torch, name, noted(getattr(torch, name)))
        yield places


@pytest.fixture
def as_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finiteness, "runs_ahead", lambda device: True)


def trained(group: Group, bad_ranks: Collection[int] = ()) -> dict[str, Any]:
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
        reducer.arm(group.rank + 1, sum(range(1, group.size + 1)))
        loss = model(torch.linspace(-1, 1, 4).expand(group.rank + 1, 4) * (group.rank + step + 1)).square().mean()
        if step == 2 and group.rank in bad_ranks:
            loss = loss * math.nan
        try:
            loss.backward()
        except ElasticError as error:
            return {"error": str(error), "committed": committer.rounds_done}
    return {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }


@pytest.mark.usefixtures("as_a_device")
@pytest.mark.parametrize("size", [2, 3])
def test_a_step_reads_nothing_of_a_device_before_its_sums_are_complete(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    with counted(monkeypatch) as places:
        found: list[Any] = worlds(size, trained)
    assert all(set(each) == set(found[0]) and "error" not in each for each in found), found
    assert not places, places[0]


@pytest.mark.usefixtures("as_a_device")
def test_a_verdict_of_a_device_names_the_rank_and_nobody_commits() -> None:
    """Verdicts of several members are counted."""
    for bad, says in (
        ({1}, "gradients of w1"),
        ({1, 2}, "gradients of 2 of 3 workers"),
    ):
        for found in worlds(3, lambda group, bad=bad: trained(group, bad)):  # type: ignore[misc]
            assert isinstance(found, dict) and says in found["error"] and found["committed"] == 2, found


def test_the_device_way_and_the_hosts_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    host = run(2, trained)
    monkeypatch.setattr(finiteness, "runs_ahead", lambda device: True)
    for here, there in zip(host, run(2, trained), strict=True):
        assert isinstance(here, dict) and isinstance(there, dict)
        assert all(torch.equal(here[name], there[name]) for name in here)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_every_element_of_a_gradient_is_looked_at_and_none_is_changed(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    row = torch.tensor([[largest, -largest, 1e-7, 0.0]] * 3, dtype=dtype)
    for gradients in ([row, row.t().clone(), torch.zeros(0, dtype=dtype)], [row.clone().requires_grad_()]):
        before = [each.clone() for each in gradients]
        assert all_finite(gradients)
        assert all(torch.equal(each, was) for each, was in zip(gradients, before, strict=True))
    for bad in (math.nan, math.inf, -math.inf):
        spoilt = row.clone()
        spoilt[2, 3] = bad
        assert not all_finite([row, spoilt])


# --- a worker that trains alone -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("as_a_device")
@pytest.mark.parametrize("steps", [20, 4], ids=["a step later", "before the state is used"])
def test_alone_a_bad_step_is_noticed(steps: int) -> None:
    model, made = nn.Linear(3, 2), 0
    committer = StepCommitter(Calm())
    committer.world = TrainingWorld(0, ("alone",))
    reducer = GradientReducer(
        list(model.named_parameters()), committer, mean=True, step=lambda: committer.rounds_done
    )
    with pytest.raises(ElasticError, match=r"step 3: .*alone .*finite"):
        for number in range(steps):
            model.zero_grad()
            reducer.arm(1, 1)
            (model(torch.ones(3)).sum() * (math.nan if number == 3 else 1.0)).backward()
            made += 1
        reducer.settle()
    assert made == 4
    reducer.settle()


@pytest.mark.usefixtures("as_a_device")
def test_a_session_saves_no_state_with_a_bad_step_in_it() -> None:
    model = nn.Linear(3, 1)
    s = elastic.Session(model, torch.optim.SGD(model.parameters(), 0.1), [torch.ones(3)] * 4, batch_size=4)
    for _ in s.epochs(1):
        for x in s.batches():
            (model(x).mean() * math.nan).backward()
    with pytest.raises(ElasticError, match=r"step 0: .*alone .*finite"):
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
            with counted(monkeypatch) as places, s.step():
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
    says = r"weight .*float32 on cpu .*Session .*float64 on cpu"
    batches = s.batches()
    batch = next(batches)
    with pytest.raises(ElasticError, match=says), s.step():
        model(batch.double()).mean().backward()
    s.finish()
