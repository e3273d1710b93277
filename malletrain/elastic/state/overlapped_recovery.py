"""The training state, given away while the script goes on.

From one step to the next gradients, large tensors change in the optimizer's step alone, and that comes after the sums
of a round which every newcomer has its part in. So they can be read where they lie until then, if the script keeps
to it; whether it does is looked at. What is small, and the model's buffers, which forward changes, are copied.
"""

from __future__ import annotations

import torch

from malletrain.elastic.state.training_state import TrainingState

#: Smaller tensors are copied: that costs nothing.
COPIED_BYTES = 1024 * 1024

#: Elements of a tensor that are compared, beside its version.
LOOKED_AT = 64


class OverlappedSnapshot:
    """A state as it was when this was made.

    A change of a lent tensor shows in PyTorch's count of its changes in place; one made behind its back, by `.data`,
    in elements spread over the tensor.

    Args:
        state: of this member, which holds it.

    Attributes:
        skeleton, tensors: what `transfer.give` takes.
    """

    def __init__(self, state: TrainingState) -> None:
        self.skeleton, live = state.capture()
        buffers = {buffer.data_ptr() for buffer in state.model.buffers()}
        self.tensors: list[torch.Tensor] = []
        self._watched: list[tuple[torch.Tensor, int, torch.Tensor]] = []
        for tensor in live:
            if tensor.numel() * tensor.element_size() < COPIED_BYTES or tensor.data_ptr() in buffers:
                self.tensors.append(tensor.clone())
            else:
                self.tensors.append(tensor)
                self._watched.append((tensor, tensor._version, _some(tensor)))

    def changed(self) -> bool:
        """Whether a tensor is not any more what it was."""
        return any(
            tensor._version != version or not torch.equal(_some(tensor), some)
            for tensor, version, some in self._watched
        )


def _some(tensor: torch.Tensor) -> torch.Tensor:
    """Elements from all over a tensor, in a copy."""
    places = torch.linspace(0, tensor.numel() - 1, LOOKED_AT, dtype=torch.float64, device=tensor.device).long()
    return tensor[torch.unravel_index(places, tensor.shape)].clone()
