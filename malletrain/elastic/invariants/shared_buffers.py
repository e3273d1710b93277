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

    def value(self) -> torch.Tensor:
        """The buffer as it is; zeros if it has another shape or type by now."""
        now = self.module._buffers.get(self.name)
        if now is None or now.shape != self.first.shape or now.dtype != self.first.dtype:
            return torch.zeros_like(self.first)
        return now


def shared_buffers(model: nn.Module) -> Iterator[SharedBuffer]:
    """The buffers of a model that are compared between workers."""
    for path, module in model.named_modules():
        if isinstance(module, _OWN_BY_RIGHT) or type(module).__module__.startswith("torch.ao."):
            continue
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.numel() and name not in module._non_persistent_buffers_set:
                yield SharedBuffer(f"{path}.{name}".lstrip("."), module, name, buffer)
