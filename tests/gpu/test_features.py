"""What scripts use on a GPU, in a session and in a plain loop: the same parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from malletrain import elastic
from tests.gpu.one_gpu import DEVICE, WHY_NOT

pytestmark = [pytest.mark.alone, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")]

FEATURES = ["plain", "fused", "clipped", "scaled", "autocast", "recomputed", "compiled", "graphs"]

#: Relative error that a feature's kernels leave between two runs of the same loop.
BOUND = {"autocast": 2e-2, "scaled": 2e-2, "compiled": 1e-4, "graphs": 1e-4}


class Net(nn.Module):
    """`recomputed`: activations are made again in backward."""

    def __init__(self, recomputed: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 4)
        self.recomputed = recomputed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.recomputed:
            inner: torch.Tensor = checkpoint(self.first, x, use_reentrant=False)
        else:
            inner = self.first(x)
        return torch.as_tensor(self.last(inner.relu()))


def rows() -> torch.Tensor:
    return torch.randn(64, 32, generator=torch.Generator().manual_seed(3))


def train(
    feature: str, batches: Callable[[Net, Any, Any], Iterable[tuple[torch.Tensor, AbstractContextManager[Any]]]]
) -> Net:
    torch.manual_seed(0)
    net = Net(feature == "recomputed").to(DEVICE)
    model: nn.Module = net
    if feature in ("compiled", "graphs"):
        model = torch.compile(net, mode="reduce-overhead" if feature == "graphs" else None)  # type: ignore[assignment]
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, fused=feature == "fused")
    scaler = torch.amp.GradScaler(DEVICE, enabled=feature == "scaled", init_scale=1024.0)
    half = feature in ("autocast", "scaled")
    for x, step in batches(net, optimizer, scaler):
        with step:
            optimizer.zero_grad()
            dtype = torch.float16 if feature == "scaled" else torch.bfloat16
            with torch.autocast(DEVICE, dtype=dtype, enabled=half):
                loss = model(x.to(DEVICE)).square().mean()
            scaler.scale(loss).backward()
            if feature == "clipped":
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
    return net


def in_session(net: Net, optimizer: Any, scaler: Any) -> Iterable[tuple[torch.Tensor, AbstractContextManager[Any]]]:
    s = elastic.Session(net, optimizer, rows(), batch_size=8, shuffle=False)
    s.track(scaler=scaler)
    for _ in s.epochs(4):
        for x in s.batches():
            yield x, s.step()
    s.finish()


def by_hand(net: Net, optimizer: Any, scaler: Any) -> Iterable[tuple[torch.Tensor, AbstractContextManager[Any]]]:
    for _ in range(4):
        for x in rows().split(8):
            yield x, nullcontext()


@pytest.mark.parametrize("feature", FEATURES)
def test_a_session_trains_as_a_plain_loop_does(feature: str) -> None:
    if DEVICE == "cpu" and feature in ("compiled", "graphs"):
        pytest.skip("takes a minute there, and shows nothing of CUDA graphs")
    expected, found = train(feature, by_hand), train(feature, in_session)
    for mine, plain in zip(found.parameters(), expected.parameters(), strict=True):
        bound = BOUND.get(feature, 1e-6)
        torch.testing.assert_close(mine, plain, rtol=bound, atol=bound * float(plain.abs().max()))
