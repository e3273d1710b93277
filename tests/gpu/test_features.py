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

FEATURES = ["plain", "fused", "clipped", "scaled", "autocast", "float8", "recomputed", "compiled", "graphs"]

#: Relative error that a feature's kernels leave between two runs of the same loop.
BOUND = {"autocast": 2e-2, "scaled": 2e-2, "compiled": 1e-4, "graphs": 1e-4}


class Float8Product(torch.autograd.Function):
    """x times w transposed in 8 bits, each tensor scaled by its own largest element; gradients in e5m2."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        (x8, of_x), (w8, of_w) = _float8(x, torch.float8_e4m3fn), _float8(w, torch.float8_e4m3fn)
        ctx.save_for_backward(x8, of_x, w8, of_w)
        if x.is_cuda and torch.cuda.get_device_capability() >= (8, 9):
            product: torch.Tensor = torch._scaled_mm(x8, w8.t(), of_x, of_w, out_dtype=torch.bfloat16).float()
            return product
        return (x8.float() * of_x) @ (w8.float() * of_w).t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x8, of_x, w8, of_w = ctx.saved_tensors
        g8, of_g = _float8(gradients[0], torch.float8_e5m2)
        g = g8.float() * of_g
        return g @ (w8.float() * of_w), g.t() @ (x8.float() * of_x)


def _float8(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor in 8 bits, and its scale."""
    scale = (x.detach().abs().max() / torch.finfo(dtype).max).clamp_min(1e-12).float()
    return (x / scale).to(dtype), scale


class Float8Linear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = Float8Product.apply(input, self.weight)  # type: ignore[no-untyped-call]
        return product + self.bias


class Net(nn.Module):
    """`recomputed`: activations are made again in backward."""

    def __init__(self, recomputed: bool, float8: bool = False) -> None:
        super().__init__()
        self.first, self.last = (Float8Linear if float8 else nn.Linear)(32, 64), nn.Linear(64, 4)
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
    net = Net(feature == "recomputed", feature == "float8").to(DEVICE)
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
