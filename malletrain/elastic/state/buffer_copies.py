"""Copies of a model's buffers as a step begins, with which a step that is aborted is undone.

All are copied at every step: a write through `.data`, as of many code books, shows in no version counter.
"""

from __future__ import annotations

import torch

#: The model is searched for modules at each of its first steps, and now and then after these.
FIRST_STEPS, STEPS_BETWEEN_WALKS = 8, 50


class BufferCopies:
    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._steps = 0
        self._tables: list[dict[str, torch.Tensor | None]] = []
        #: Where each buffer was; and by its id the buffer, and the copy.
        self._places: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]] = []
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def take(self) -> None:
        """Copy the buffers. Call it as a step begins."""
        if self._steps < FIRST_STEPS or self._steps % STEPS_BETWEEN_WALKS == 0:
            self._tables = [module._buffers for module in self._model.modules()]
        self._steps += 1
        self._places = [
            (table, name, each) for table in self._tables if table for name, each in table.items() if each is not None
        ]
        kept, self._kept = self._kept, {}
        into, buffers = [], []
        for _, _, buffer in self._places:
            before, copy = kept.get(id(buffer), (None, None))
            if copy is None or before is not buffer or copy.shape != buffer.shape or copy.dtype != buffer.dtype:
                copy = buffer.detach().clone()
            else:
                into.append(copy)
                buffers.append(buffer.detach())
            self._kept[id(buffer)] = buffer, copy
        if into:
            torch._foreach_copy_(into, buffers)

    def of(self, buffer: torch.Tensor) -> torch.Tensor:
        """The copy of a buffer that the last `take` has found."""
        return self._kept[id(buffer)][1]

    def restore(self) -> None:
        """Set the buffers to what they were at the last `take`."""
        for table, name, buffer in self._places:
            table[name] = buffer  # a module may have another one by now: self.count = self.count + 1
        for buffer, copy in self._kept.values():
            with torch.inference_mode(buffer.is_inference()), torch.no_grad():
                buffer.copy_(copy)
