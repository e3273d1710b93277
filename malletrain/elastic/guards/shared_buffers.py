"""Buffers of a model that all workers must have alike: codebooks, centres, queues, counts.

Statistics of normalisation layers and of quantisation's observers follow a worker's own samples by right, and buffers
that are not saved with the model are caches: these are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

_OWN_BY_RIGHT = (nn.modules.batchnorm._NormBase,)


@dataclass(frozen=True, slots=True)
class SharedBuffer:
    """One buffer: its path, the module that holds it, and how it was as the session began."""

    path: str
    module: nn.Module
    name: str
    first: torch.Tensor
    version: int

    def value(self) -> torch.Tensor:
        """The buffer as it is; zeros if it has another shape or type by now."""
        now = self.module._buffers.get(self.name)
        if now is None or now.shape != self.first.shape or now.dtype != self.first.dtype:
            return torch.zeros_like(self.first)
        return now

    def is_written(self) -> bool:
        """Whether it was changed since the session began."""
        now = self.module._buffers.get(self.name)
        return now is not self.first or (not now.is_inference() and now._version != self.version)


def saved_buffers(model: nn.Module) -> Iterator[torch.Tensor]:
    """The buffers of a model that are saved with it, and given to workers that join."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield buffer


def shared_buffers(model: nn.Module) -> Iterator[SharedBuffer]:
    """The buffers of a model that are compared between workers."""
    for path, module in model.named_modules():
        if isinstance(module, _OWN_BY_RIGHT) or type(module).__module__.startswith("torch.ao."):
            continue
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.numel() and name not in module._non_persistent_buffers_set:
                version = 0 if buffer.is_inference() else buffer._version
                yield SharedBuffer(f"{path}.{name}".lstrip("."), module, name, buffer, version)
