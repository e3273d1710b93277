"""Batches that are loaded before they are asked for, by processes of their own.

What is loaded is a guess: that the world stays as it is and every step is committed. When the next share is another
one, what was loaded for the old plan is dropped, and its samples are read again by whoever has them now; so each
sample still counts once. Random numbers of augmentation depend on (seed, epoch, sample): a batch is the same whoever
loads it, and when.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from typing import Any

import torch
import torch.multiprocessing

from malletrain.elastic.data.sample_loader import SampleLoader
from malletrain.elastic.errors import ElasticError

#: Each loading process is at most so many batches ahead.
DEPTH = 2

#: What to load: an epoch, and the indices of its samples.
LoadRequest = tuple[int, tuple[int, ...]]

_PR_SET_PDEATHSIG = 1  # prctl(2)

_loader: SampleLoader | None = None  #: in a loading process


class Prefetcher:
    """Loads orders ahead. Make it before the process has connections: the loading processes are forked, as those of
    PyTorch's DataLoader are, and would hold them open.

    Args:
        loader: reads the samples.
        processes: how many load.
    """

    def __init__(self, loader: SampleLoader, processes: int) -> None:
        if processes < 1:
            raise ElasticError(f"loaders must be at least 1, not {processes}")
        #: How many batches to ask for beforehand.
        self.ahead = processes * DEPTH
        #: Orders that were loaded, or begun, for a plan that did not come.
        self.dropped = 0
        self._loading: dict[LoadRequest, Future[Any]] = {}
        fork = multiprocessing.get_context("fork")
        self._pool = ProcessPoolExecutor(processes, fork, initializer=_begin, initargs=(loader, os.getpid()))
        self._pool.submit(int).result()  # all are forked with the first call

    def load(self, orders: Sequence[LoadRequest], coming: Sequence[LoadRequest]) -> list[Any]:
        """The batches of some orders. `coming`: those that follow if nothing changes, soonest first.

        Raises:
            ElasticError: a loading process ended by itself.
            Exception: whatever the data set raised.
        """
        wanted = dict.fromkeys([*orders, *coming])
        for other in [each for each in self._loading if each not in wanted]:
            self._loading.pop(other).cancel()
            self.dropped += 1
        try:
            for each in wanted:
                if each not in self._loading:
                    self._loading[each] = self._pool.submit(_load, each)
            return [self._loading.pop(order).result() for order in orders]
        except BrokenExecutor as error:
            raise ElasticError(f"a process that loads batches is gone (out of memory?): {error}") from error


def _begin(loader: SampleLoader, parent: int) -> None:
    """In a loading process: it ends with the one that trains, however that ends."""
    global _loader
    _loader = loader
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)


def _load(order: LoadRequest) -> Any:
    if _loader is None:
        raise ElasticError("a loading process without a loader")
    return _loader.load(*order)
