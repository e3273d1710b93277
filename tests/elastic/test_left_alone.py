"""What a session leaves as it is in a training process: compiled code, memory, processes, torch's functions, and the
script's own book-keeping."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from malletrain import elastic
from malletrain.elastic.errors import ElasticError
from tests.elastic.coordinator import outside_slurm


def classifier() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class Own(nn.Module):
    """A module that torch compiles in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = classifier()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out


def samples(count: int = 640) -> TensorDataset:
    return TensorDataset(torch.randn(count, 6, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 3)


def session(model: nn.Module, **more: Any) -> tuple[elastic.Session, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return elastic.Session(model, optimizer, samples(), batch_size=8, **more), optimizer


@pytest.mark.parametrize("what", ["loss", "model"])
def test_what_is_compiled_stays_compiled(what: str) -> None:
    executed = []

    def backend(graph: Any, inputs: Any) -> Any:
        def call(*given: Any) -> Any:
            executed.append(1)
            return graph.forward(*given)

        return call

    torch._dynamo.reset()
    model = Own()

    def loss_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(out, y)

    if what == "loss":
        loss_of = torch.compile(loss_of, backend=backend)
    else:
        model.compile(backend=backend)
    s, optimizer = session(model)
    for _ in s.epochs(2):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                loss_of(model(x), y).backward()
                optimizer.step()
            if s.steps_done == 100:
                break
        if s.steps_done == 100:
            break
    s.finish()
    assert len(executed) == 100


class Block(nn.Module):
    """Layers whose outputs are dropped, and computed again in backward."""

    made: list[weakref.ref[torch.Tensor]] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
            self.made.append(weakref.ref(x))
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.inside, x, use_reentrant=False)
        return out


def alive() -> int:
    return sum(each() is not None for each in Block.made)


def test_checkpointed_activations_are_dropped() -> None:
    def most(passes: Any) -> int:
        found = []
        for model, x, y in passes:
            Block.made.clear()
            out = model(x)
            found.append(alive())
            functional.cross_entropy(out, y).backward()
        return max(found)

    def plain() -> Any:
        model = nn.Sequential(*(Block() for _ in range(6)))
        for number in range(10):
            yield model, torch.randn(8, 6), torch.arange(8) % 3 + number * 0

    def under_a_session() -> Any:
        model = nn.Sequential(*(Block() for _ in range(6)))
        s, optimizer = session(model)
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                yield model, x, y
                optimizer.step()
            if s.steps_done == 10:
                return

    assert most(under_a_session()) <= most(plain())


def test_no_process_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse() -> int:
        asked.append(1)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    model = classifier()
    s, optimizer = session(model)
    for _ in s.epochs(1):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    s.finish()
    assert (s.steps_done, asked) == (80, [])


class Rooted(nn.Module):
    """The loss is finite, and so is most of what is behind it: the gradient of a root at 0 is not."""

    def __init__(self, inner: nn.Module, bad: int) -> None:
        super().__init__()
        self.inner = inner
        self.roots = nn.Parameter(torch.ones(100_000))
        self.last = nn.Linear(3, 3)
        with torch.no_grad():
            self.roots[bad] = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.inner(x)) + 1e-6 * self.roots.sqrt().sum()
        return out


@pytest.mark.parametrize("bad", [0, 99_999])
def test_a_gradient_that_is_no_number_is_not_committed(bad: int) -> None:
    model = Rooted(classifier(), bad)
    s, optimizer = session(model)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    with pytest.raises(ElasticError, match=r"step 0: the gradients of alone are not finite .*, first that of roots"):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    assert s.steps_done == 0
    assert all(torch.equal(each, before[name]) for name, each in model.named_parameters())


def test_a_loop_that_is_left_leaves_torch_as_it_was() -> None:
    before = torch.autograd.backward, torch.Tensor.backward, torch.autograd.grad
    plain = classifier()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    model, loader = elastic.ddp(plain, optimizer, DataLoader(samples(), batch_size=32, shuffle=True))
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        assert (torch.autograd.backward, torch.Tensor.backward, torch.autograd.grad) == before
        assert torch._C._len_torch_dispatch_stack() == 0
        if number == 2:
            break
    assert (torch.autograd.backward, torch.Tensor.backward, torch.autograd.grad) == before
    other = classifier()  # that the session does not have
    other(x).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()


STARTS = """
import sys, torch
from malletrain import elastic
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
before = {name for name in sys.modules if name.startswith("torch._dynamo")}
s = elastic.Session(model, optimizer, torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8)
for _ in s.epochs(1):
    for (x,) in s.batches():
        with s.step():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
s.finish()
print({name for name in sys.modules if name.startswith("torch._dynamo")} == before)
"""


def test_a_session_imports_nothing_of_the_compiler(tmp_path: Path) -> None:
    """The others would wait for that. (An optimizer does as it is made, before them.)"""
    found = subprocess.run(
        [sys.executable, "-c", STARTS], env=outside_slurm(), cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert found.stdout.strip() == "True", found.stderr
