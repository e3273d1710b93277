"""The one place that uses what torch does not promise to keep: modes that see each operation of a forward pass.

`torch.utils._python_dispatch` is what torch's own FakeTensor and FLOP counter are made of, and its module is private.
With a torch that lacks it, `AVAILABLE` is False and `BatchWatch` does not look.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

__all__ = ["AVAILABLE", "TorchDispatchMode", "is_alone", "is_innermost", "without_modes"]

try:
    from torch._C import _len_torch_dispatch_stack
    from torch.utils._python_dispatch import (
        TorchDispatchMode,
        _disable_current_modes,
        _get_current_dispatch_mode,
    )
except ImportError:  # pragma: no cover - no torch that we support
    AVAILABLE = False
    TorchDispatchMode = object  # type: ignore[assignment, misc]
else:
    AVAILABLE = True


def without_modes() -> AbstractContextManager[Any]:
    """A context manager in which no mode sees operations."""
    away: AbstractContextManager[Any] = _disable_current_modes() if AVAILABLE else nullcontext()
    return away


def is_alone() -> bool:
    """Whether at most one mode is active."""
    return not AVAILABLE or _len_torch_dispatch_stack() <= 1


def is_innermost(mode: Any) -> bool:
    """Whether a mode is the one that was entered last."""
    return AVAILABLE and _get_current_dispatch_mode() is mode
