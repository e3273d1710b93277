"""Copies of a model's buffers as a step begins, with which a step that is aborted is undone.

A buffer that nothing writes (a mask, positions) is copied once. Writes show in its version counter; a write that
bypasses it (through `.data`) is noticed in one of the first steps, and the buffer is copied at every step from then
on.
"""

from __future__ import annotations

import torch

#: Steps of which each compares the buffers that seem unwritten, and after which the model is searched anew.
COMPARED_STEPS, STEPS_BETWEEN_WALKS = 8, 50


class BufferCopies:
    """See the module.

    Args:
        model: whose buffers are copied.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._steps = 0
        self._tables: list[dict[str, torch.Tensor | None]] = []
        #: By the buffer's id: the buffer, its version when it was copied (None: not known), and the copy.
        self._kept: dict[int, tuple[torch.Tensor, int | None, torch.Tensor]] = {}
        #: Where each of them was.
        self._places: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]] = []
        self._untold: set[int] = set()  #: of the buffers whose version does not tell

    def take(self) -> None:
        """Copy what has changed since the last call. Call it as a step begins."""
        early = self._steps < COMPARED_STEPS
        if early or self._steps % STEPS_BETWEEN_WALKS == 0:
            self._tables = [module._buffers for module in self._model.modules()]
        self._steps += 1
        kept, self._kept = self._kept, {}
        self._places = [
            (table, name, each) for table in self._tables if table for name, each in table.items() if each is not None
        ]
        if not self._places:
            return
        into, changed = [], []
        with torch.no_grad():
            for _, _, buffer in self._places:
                key, version = id(buffer), _version(buffer)
                before, at, copy = kept.get(key, (None, None, None))
                if copy is None or before is not buffer or copy.shape != buffer.shape or copy.dtype != buffer.dtype:
                    copy = buffer.detach().clone()
                elif version is None or at != version or key in self._untold:
                    into.append(copy)
                    changed.append(buffer.detach())
                elif early and not torch.equal(copy, buffer):
                    self._untold.add(key)
                    into.append(copy)
                    changed.append(buffer.detach())
                self._kept[key] = buffer, version, copy
            if into:
                torch._foreach_copy_(into, changed)

    def restore(self) -> None:
        """Set the buffers to what they were at the last `take`."""
        for table, name, buffer in self._places:
            table[name] = buffer  # a module may have another one by now: self.count = self.count + 1
        for buffer, _, copy in self._kept.values():
            with torch.inference_mode(buffer.is_inference()), torch.no_grad():
                buffer.copy_(copy)


def _version(buffer: torch.Tensor) -> int | None:
    """None for a tensor made in inference mode."""
    return None if buffer.is_inference() else buffer._version
