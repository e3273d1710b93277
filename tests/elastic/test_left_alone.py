"""What a session leaves as it is in a training process: compiled code, memory, processes, torch's functions. A
session alone is the plain loop, and the warm-up before a worker joins leaves no trace."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from malletrain import elastic
from malletrain.elastic.data.prefetch import SampleLoader
from malletrain.elastic.data.sampler import Sampler
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.launch.worker_start import warm_up
from tests.elastic.coordinator import outside_slurm
from tests.script_check.test_check import UNSEEDED


def classifier() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class Own(nn.Sequential):
    """A module that torch compiles in place: its forward is none of torch's own."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x)  # type: ignore[no-untyped-call]


def samples(count: int = 640) -> TensorDataset:
    return TensorDataset(torch.randn(count, 6, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 3)


def train(model: nn.Module, steps: int, loss_of: Any = functional.cross_entropy) -> None:
    """So many steps of a session, and its end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    s = elastic.Session(model, optimizer, samples(8 * steps), batch_size=8)
    for _ in s.epochs(1):
        for x, y in s.batches():
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
    s.finish()
    assert s.steps_done == steps


@pytest.mark.parametrize("what", ["loss", "model"])
def test_what_is_compiled_stays_compiled(what: str) -> None:
    executed = []

    def backend(graph: Any, inputs: Any) -> Any:
        def call(*given: Any) -> Any:
            executed.append(1)
            return graph.forward(*given)

        return call

    def loss_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(out, y)

    torch._dynamo.reset()
    model = Own(classifier())
    if what == "loss":
        loss_of = torch.compile(loss_of, backend=backend)
    else:
        model.compile(backend=backend)
    train(model, 100, loss_of)
    assert len(executed) == 100


class Block(nn.Sequential):
    """Layers whose outputs are dropped, and computed again in backward."""

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(super().forward, x, use_reentrant=False)


def test_checkpointed_activations_are_dropped() -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def loss_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        alive.append(sum(each() is not None for each in made))
        made.clear()
        return functional.cross_entropy(out, y)

    model = nn.Sequential(*(Block(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4))) for _ in range(6)))
    for layer in model.modules():
        if isinstance(layer, nn.Tanh):
            layer.register_forward_hook(lambda _, given, out: made.append(weakref.ref(out)))
    loss_of(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
    (plain,) = alive
    made.clear()
    train(model, 10, loss_of)
    assert max(alive) <= plain


def test_no_process_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse() -> int:
        asked.append(1)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    train(classifier(), 80)
    assert asked == []


class Rooted(nn.Module):
    """The loss is finite, and so is most of what is behind it: the gradient of a root at 0 is not."""

    def __init__(self, inner: nn.Module, bad: int) -> None:
        super().__init__()
        self.inner = inner
        self.roots = nn.Parameter((torch.arange(100_000) != bad).float())
        self.last = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.inner(x)) + 1e-6 * self.roots.sqrt().sum()


@pytest.mark.parametrize("bad", [0, 99_999])
def test_a_gradient_that_is_no_number_is_not_committed(bad: int) -> None:
    model = Rooted(classifier(), bad)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    with pytest.raises(ElasticError, match=r"step 0: .*alone .*finite .*, first .* roots"):
        train(model, 1)
    assert all(torch.equal(each, before[name]) for name, each in model.named_parameters())


def test_a_loop_that_is_left_leaves_torch_as_it_was() -> None:
    def now() -> tuple[Any, ...]:
        dispatched = torch._C._len_torch_dispatch_stack()
        return torch.autograd.backward, torch.Tensor.backward, torch.autograd.grad, dispatched

    def train_other() -> None:  # that the session does not have: it may be trained before and afterwards
        other(torch.ones(1, 6)).sum().backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()

    before, other, plain = now(), classifier(), classifier()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    model, loader = elastic.ddp(plain, optimizer, DataLoader(samples(), batch_size=32, shuffle=True))
    train_other()
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        assert now() == before
        break
    assert now() == before
    train_other()


def test_a_session_imports_nothing_of_the_compiler(tmp_path: Path) -> None:
    """The others would wait for that. (An optimizer does as it is made, before them.)"""
    compiler = '{name for name in __import__("sys").modules if name.startswith("torch._dynamo")}\n'
    text = UNSEEDED.replace("s = elastic", f"before = {compiler}s = elastic") + f"assert before == {compiler}"
    subprocess.run([sys.executable, "-c", text], env=outside_slurm(), cwd=tmp_path, check=True)


BUSY, BLOCKED = "[rows.sum() for _ in iter(int, 1)]", "threading.Event().wait()"


@pytest.mark.parametrize(("stuck", "end", "status"), [(BUSY, "", 0), (BUSY, "sys.exit(3)", 3), (BLOCKED, "1 / 0", 1)])
def test_a_thread_that_does_not_end_leaves_the_process_its_status(
    stuck: str, end: str, status: int, tmp_path: Path
) -> None:
    """One that comes back from torch as the interpreter ends would abort the process."""
    thread = "import sys, threading\nfrom malletrain.elastic.comm.background import BackgroundThread\n"
    text = f"{UNSEEDED}{thread}rows = torch.ones(2_000_000)\nBackgroundThread(lambda: {stuck}, 'stuck')\n{end}\n"
    done = subprocess.run([sys.executable, "-c", text], env=outside_slurm(), cwd=tmp_path, timeout=60)
    assert done.returncode == status


IMPORTS = """
import gc, sys
import malletrain.elastic as elastic
if sys.argv[1] == "off":
    gc.disable()
seen = []
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "malletrain.elastic.errors":
            seen.append(gc.isenabled())
sys.meta_path.insert(0, Finder())
elastic.ElasticError
print(seen, gc.isenabled())
"""


@pytest.mark.parametrize(("before", "after"), [("on", True), ("off", False)])
def test_no_garbage_is_collected_while_the_runtime_imports(before: str, after: bool) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS, before], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"[False] {after}"


class Branches(nn.Module):
    """Alternates between two layers and never uses the third."""

    def __init__(self) -> None:
        super().__init__()
        self.odd, self.even, self.never = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)
        self.turn = 0

    def forward(self, x: torch.Tensor) -> Any:
        return (self.odd if self.turn % 2 else self.even)(x)


def made() -> tuple[Branches, torch.optim.Optimizer, torch.amp.GradScaler]:
    torch.manual_seed(0)
    model = Branches()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.amp.GradScaler("cpu")


@pytest.mark.parametrize("accumulate", [False, True], ids=["whole", "accumulated"])
def test_a_session_alone_is_the_plain_loop(accumulate: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(24, 6, generator=generator), torch.randint(0, 3, (24,), generator=generator))

    def train(
        made: tuple[Branches, torch.optim.Optimizer, torch.amp.GradScaler],
        x: torch.Tensor,
        y: torch.Tensor,
        apart: AbstractContextManager[object],
    ) -> None:
        """A step by a batch, or by its halves: of what this worker has, as it may be tried with fewer samples."""
        model, optimizer, scaler = made

        def backward(part: slice) -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x[part]), y[part]) * (len(x[part]) / len(x))
            scaler.scale(loss).backward()

        optimizer.zero_grad()
        half = len(x) // 2 if accumulate else 0
        if accumulate:
            with apart:
                backward(slice(half))
        backward(slice(half, None))
        scaler.step(optimizer)
        scaler.update()

    plain, ours = made(), made()
    for epoch in range(3):
        plain[0].turn = epoch
        for x, y in DataLoader(data, batch_size=8):
            train(plain, x, y, nullcontext())
    options = elastic.Options(noise_scale=True)
    s = elastic.Session(*ours[:2], data, batch_size=8, shuffle=False, options=options)
    s.track(scaler=ours[2])
    for epoch in s.epochs(3):
        ours[0].turn = epoch
        for x, y in s.batches():
            with s.step() as step:
                train(ours, x, y, step.accumulate())
    assert ours[0].never.weight.grad is None
    torch.testing.assert_close(ours[0].state_dict(), plain[0].state_dict())
    assert ours[2].state_dict() == plain[2].state_dict()


def rehearse(model: nn.Module, length: int = 64, batch: int = 32) -> None:
    data = TensorDataset(torch.randn(length, 4), torch.zeros(length))
    sampler = Sampler(length, batch, seed=0, shuffle=True, drop_last=False)
    warm_up(model, SampleLoader(data, 0, None), sampler, None)


def test_an_eager_model_is_called_once_and_keeps_no_trace() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seed = torch.initial_seed()
    rehearse(model)
    assert sizes == [8]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.initial_seed() == seed


def test_a_compiled_model_sees_sizes_that_make_its_graphs_general() -> None:
    seen: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        seen.append(1)
        return graph.forward

    model = torch.compile(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), backend=backend)
    assert isinstance(model, nn.Module)
    rehearse(model)
    compiled = len(seen)
    assert compiled >= 2
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in (2, 3, 7, 9, 16, 31, 32):
            model(torch.randn(size, 4)).sum().backward()
    assert len(seen) == compiled, "no share is compiled for on the path"


def test_a_tiny_data_set_is_enough() -> None:
    model = torch.compile(nn.Linear(4, 2), backend="eager")
    assert isinstance(model, nn.Module)
    rehearse(model, length=1, batch=1)


def test_an_observer_has_no_size_again_afterwards() -> None:
    quantised = pytest.importorskip("torch.ao.quantization")
    observer = quantised.PerChannelMinMaxObserver()
    rehearse(nn.Sequential(observer, nn.Linear(4, 2)))
    assert not observer.min_val.numel()
