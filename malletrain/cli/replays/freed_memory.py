"""Memory that the C library keeps although it was freed."""

from __future__ import annotations

import ctypes


def release_freed_memory() -> None:
    """Give back to the system what was freed.

    glibc keeps freed pages that lie between arrays that live on, until malloc_trim(3). Does nothing with another C
    library.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
