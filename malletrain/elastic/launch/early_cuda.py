"""Makes the CUDA context of this process's GPU while Python imports torch and what else the script needs.

A context takes some tenths of a second, and much more on nodes of many GPUs; Python's imports leave the driver idle
meanwhile. What is made here is the device's primary context, which torch uses as well. Standard library only.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from malletrain.elastic.comm import local_rank
from malletrain.elastic.errors import ElasticError

#: Environment variable: 0 leaves the context to torch. For scripts that fork processes which use the GPU, or set
#: CUDA_VISIBLE_DEVICES themselves after they have imported malletrain.
EARLY_VARIABLE = "MALLETRAIN_EARLY_CUDA"

#: CUDA's driver, which is installed with the kernel module and not with torch.
DRIVER = "libcuda.so.1"


class EarlyContext:
    """The context of one GPU in the making.

    Args:
        place: which of the GPUs that this process sees; None: the only one.
        load: loads the driver.

    Attributes:
        seconds: that making it took; None while it is not there, or where none is made.
    """

    def __init__(self, place: int | None, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._place, self._load = place, load
        self.seconds: float | None = None
        self.thread = threading.Thread(target=self._make, name="malletrain-cuda", daemon=True)
        self.thread.start()

    def _make(self) -> None:
        began = time.monotonic()
        try:
            driver = self._load(DRIVER)
        except OSError:
            return  # a machine without a GPU
        count, device, context = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_void_p()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return
        if self._place is None and count.value != 1:
            return
        # Slurm may have bound each process to a GPU of its own.
        place = 0 if self._place is None or count.value == 1 else self._place
        if place >= count.value or driver.cuDeviceGet(ctypes.byref(device), place):
            return
        if not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            self.seconds = time.monotonic() - began


_made: EarlyContext | None = None


def begin(environ: Mapping[str, str], load: Callable[[str], Any] = ctypes.CDLL) -> EarlyContext | None:
    """Begin to make the context, once; returns at once. None where the script decides on its GPU itself: it has
    several and no local rank, is a loader's process, or `MALLETRAIN_EARLY_CUDA=0`."""
    global _made
    multiprocessing = sys.modules.get("multiprocessing")
    if environ.get(EARLY_VARIABLE) == "0" or (multiprocessing and multiprocessing.parent_process() is not None):
        return None
    if _made is None:
        try:
            here = local_rank.find_local_rank(environ)
        except ElasticError:
            return None  # Session says what is wrong
        _made = EarlyContext(here.rank if here.size > 1 else None, load)
    return _made


def seconds() -> float | None:
    """Seconds that the context took; None where it is not made, or not yet."""
    return None if _made is None else _made.seconds
