"""The warm-up before a worker joins: compiles what training needs, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from malletrain.elastic.data.prefetch import SampleLoader
from malletrain.elastic.data.sampler import Sampler
from malletrain.elastic.launch.worker_start import warm_up


class Counted(nn.Module):
    """Records the batch sizes it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(2)
        self.sizes: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        out: torch.Tensor = self.norm(self.layer(x)) if len(x) > 1 else self.layer(x)
        return out


def rehearse(model: nn.Module, length: int = 64, batch: int = 32) -> None:
    data = TensorDataset(torch.randn(length, 4), torch.zeros(length))
    sampler = Sampler(length, batch, seed=0, shuffle=True, drop_last=False)
    warm_up(model, SampleLoader(data, 0, None), sampler, None)


def test_an_eager_model_is_called_once_and_keeps_no_trace() -> None:
    model = Counted()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seed = torch.initial_seed()
    rehearse(model)
    assert model.sizes == [8]
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
