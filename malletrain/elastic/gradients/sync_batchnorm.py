"""BatchNorm over the whole batch, however it is divided among members: `model = elastic.sync_batchnorm(model)`.

PyTorch's SyncBatchNorm needs the default process group and equal shares. This one sums over the session's world: in
forward, each member's count, sum and sum of squares; in backward, the two sums that the input's gradient needs (Ioffe
and Szegedy 2015, section 3), weighted as the members' gradients will be. Running statistics are updated at the end of
the step from statistics summed beside the gradients: a step that is void leaves them as they were.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import GradientReducer


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm1d, 2d or 3d with the statistics of the whole batch. Made by `sync_batchnorm`."""

    group: SyncBatchNormLayers | None = None
    #: This member's count, sums and sums of squares in each call since the last sums of the step in progress.
    rows: list[torch.Tensor] = []  # noqa: RUF012 - replaced by `begin`, never changed

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ElasticError(f"BatchNorm expects at least two dimensions, not {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        group = self.group
        if group is not None and group.in_step and self.training:
            group.check_call(self, input)
        if group is None or not group.together or not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        out: torch.Tensor = _Normalise.apply(input, self.weight, self.bias, self, group)  # type: ignore[no-untyped-call]
        return out


def sync_batchnorm(model: nn.Module) -> nn.Module:
    """Replace every BatchNorm layer of a model by one over the whole batch; returns the model. Parameters and buffers
    stay the same objects. Call it before `Session`."""
    if isinstance(model, nn.modules.batchnorm._BatchNorm) and not isinstance(model, SyncBatchNorm):
        layer = SyncBatchNorm(model.num_features, model.eps, model.momentum, affine=False, track_running_stats=False)
        layer.affine, layer.track_running_stats = model.affine, model.track_running_stats
        layer._parameters, layer._buffers = model._parameters, model._buffers
        layer.training = model.training
        return layer
    for name, child in model.named_children():
        setattr(model, name, sync_batchnorm(child))
    return model


class SyncBatchNormLayers:
    """The SyncBatchNorm layers of one session, in the model's order."""

    def __init__(self, layers: list[SyncBatchNorm], committer: StepCommitter, reducer: GradientReducer) -> None:
        self._layers = layers
        self._committer = committer
        self._reducer = reducer
        self._called: set[int] = set()
        for layer in layers:
            layer.group = self
        reducer.add_extras(1, self._contribute, self._apply)

    @property
    def in_step(self) -> bool:
        return self._reducer.is_armed or self._reducer.is_closed

    @property
    def together(self) -> bool:
        """Whether this is a step of several members; else a layer is a plain BatchNorm."""
        return self.in_step and self._committer.world.size > 1

    @property
    def factor(self) -> float:
        """The weight of this member's gradients."""
        return self._reducer.factor_of(self._reducer.weight)

    def begin(self) -> None:
        """Begin a step."""
        self._called = set()
        for layer in self._layers:
            layer.rows = []

    def check_call(self, layer: SyncBatchNorm, input: torch.Tensor) -> None:
        """Raise `ElasticError` if the layer's statistics would not be those of a whole batch."""
        if self._reducer.is_closed:
            raise ElasticError(
                "a SyncBatchNorm layer was called after the last backward() of a step: put the model into eval mode, "
                "or call it before"
            )
        if id(layer) in self._called and input.shape[0] < self._reducer.samples:
            raise ElasticError(
                "a SyncBatchNorm layer was called twice in a step, for parts of the batch (accumulation): its "
                "statistics would be of two batches; use virtual_shards instead"
            )
        self._called.add(id(layer))

    def sum(self, table: torch.Tensor) -> torch.Tensor:
        """Sum over members, in place."""
        return self._reducer.sum_in_step(table) if self.together else table

    def _contribute(self) -> list[torch.Tensor]:
        rows = [row.to("cpu") for layer in self._layers for row in layer.rows]
        return [torch.cat(rows) if rows else torch.zeros(1, dtype=torch.float64)]

    def _apply(self, sums: list[torch.Tensor]) -> None:
        rest = sums[0]
        for layer in self._layers:
            for own in layer.rows:
                row, rest = rest[: len(own)], rest[len(own) :]
                if float(row[0]):
                    _update_running(layer, row)
            layer.rows = []


def _update_running(layer: SyncBatchNorm, row: torch.Tensor) -> None:
    """Update running statistics from those of the batch, as BatchNorm does."""
    if layer.running_mean is None or layer.running_var is None or layer.num_batches_tracked is None:
        return
    count, mean, square = _moments(row)
    variance = (square - mean * mean) * (count / max(count - 1.0, 1.0))
    with torch.no_grad():
        layer.num_batches_tracked += 1
        part = 1.0 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
        for running, now in ((layer.running_mean, mean), (layer.running_var, variance)):
            running.lerp_(now.to(running), part)


def _moments(row: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Count, and mean and mean square of each channel."""
    count = float(row[0])
    sums, squares = row[1:].chunk(2)
    return count, sums / count, squares / count


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(var + eps) * weight + bias, with mean and variance of all members' samples."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: Any, bias: Any, layer: SyncBatchNorm, group: SyncBatchNormLayers
    ) -> Any:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        dims, shape = _dims_and_shape(wide)
        counts = wide.numel() // wide.shape[1] if group.factor else 0
        local = wide.mean(dims, dtype=torch.float64)
        # Relative to this member's own mean, so that a large mean does not cancel the variance out.
        spread = ((wide - local.to(wide.dtype).view(shape)) ** 2).sum(dims, dtype=torch.float64)
        row = torch.cat([local.new_tensor([counts]), counts * local, spread * (counts > 0) + counts * local * local])
        layer.rows.append(row.detach())
        count, mean, square = _moments(group.sum(row.detach().to("cpu", copy=True)))
        inverse = ((square - mean * mean).clamp_min(0.0) + layer.eps).rsqrt().to(wide)
        normal = (wide - mean.to(wide).view(shape)) * inverse.view(shape)
        ctx.save_for_backward(normal, inverse, weight)
        ctx.group, ctx.count, ctx.factor = group, count, group.factor
        out = normal if weight is None else normal * weight.view(shape) + bias.view(shape)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        normal, inverse, weight = ctx.saved_tensors
        gradient = gradients[0].to(normal.dtype)
        dims, shape = _dims_and_shape(normal)
        of_bias = gradient.sum(dims)
        of_weight = (gradient * normal).sum(dims)
        by_weight = torch.stack([of_bias, of_weight]).double() * ctx.factor
        sums = ctx.group.sum(by_weight.to("cpu", copy=True)).to(normal)
        scale = inverse if weight is None else inverse * weight
        if ctx.factor:
            mean = sums / (ctx.count * ctx.factor)
            inside = gradient - mean[0].view(shape) - normal * mean[1].view(shape)
            of_input = inside * scale.view(shape)
        else:
            of_input = torch.zeros_like(gradient)
        own = (None, None) if weight is None else (of_weight, of_bias)
        return (of_input.to(gradients[0].dtype), *own, None, None)


def _dims_and_shape(x: torch.Tensor) -> tuple[list[int], tuple[int, ...]]:
    """All dimensions but that of channels, and the shape that broadcasts one value a channel."""
    return [0, *range(2, x.dim())], (1, -1, *([1] * (x.dim() - 2)))
