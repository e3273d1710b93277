"""The training state as it is copied while the next step is made.

Between two steps, parameters and optimizer state change in the optimizer's step only. So large tensors are copied
from where they lie, if the script leaves them alone until then; `changes` detects whether it does. Small tensors and
the model's buffers, which forward changes, are copied at once.
"""

from __future__ import annotations

import torch

from malletrain.elastic.state.training_state import TrainingState

#: Smaller tensors are copied.
MIN_SHARED_BYTES = 1024 * 1024

#: Elements of a tensor that are compared in addition to its version counter.
SAMPLED_ELEMENTS = 64


class LiveSnapshot:
    """A snapshot of the training state that shares memory with the live state.

    A change of a shared tensor shows in its version counter, and a change that bypasses it (through `.data`) in
    elements sampled over the tensor.

    Args:
        state: the state of this member.

    Attributes:
        skeleton, tensors: as `TrainingState.capture` returns them.
    """

    def __init__(self, state: TrainingState) -> None:
        self.skeleton, live = state.capture()
        buffers = {buffer.data_ptr() for buffer in state.model.buffers()}
        self.tensors: list[torch.Tensor] = []
        self._watched: list[tuple[torch.Tensor, int, torch.Tensor]] = []
        for tensor in live:
            if tensor.numel() * tensor.element_size() < MIN_SHARED_BYTES or tensor.data_ptr() in buffers:
                self.tensors.append(tensor.clone())
            else:
                self.tensors.append(tensor)
                self._watched.append((tensor, tensor._version, sampled_elements(tensor)))

    def changes(self) -> tuple[bool, torch.Tensor | None]:
        """Whether a shared tensor has changed since the snapshot was made, without waiting for a device: whether a
        version counter says so, and a row, where the tensors lie, that is 0 where the sampled elements do not."""
        counted = any(tensor._version != version for tensor, version, _ in self._watched)
        rows = [(sampled_elements(tensor) != sample).any() for tensor, _, sample in self._watched]
        return counted, torch.stack([row.to(rows[0].device) for row in rows]).float() if rows else None


def sampled_elements(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of `SAMPLED_ELEMENTS` elements spread evenly over a tensor."""
    indices = torch.linspace(
        0, tensor.numel() - 1, SAMPLED_ELEMENTS, dtype=torch.float64, device=tensor.device
    ).long()
    return tensor[torch.unravel_index(indices, tensor.shape)].clone()
