"""A communicator on the CPU that behaves as NCCL does, for machines without a GPU.

Operations are queued and complete asynchronously, in order. A lost peer raises nothing: operations hang until they
are aborted. After an abort they look complete, with partial sums. Making one, and its first sum, can be slow or hang.

Floating-point tensors stand for those of a device: the sums of gradients take this way, control vectors do not.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from malletrain.elastic.comm.carrier import DeviceCarrier, _translated
from malletrain.elastic.comm.gloo_group import GlooGroup
from malletrain.elastic.comm.group import Group
from malletrain.elastic.errors import PeerLost

_dist: Any = torch.distributed


class Completion:
    """The end of an operation. STANDIN_FAILS=N: the device is lost as soon as N have begun, at this process."""

    made = 0

    def __init__(self) -> None:
        Completion.made += 1
        self._done = threading.Event()

    def __call__(self) -> bool:
        if Completion.made >= int(os.environ.get("STANDIN_FAILS", "0")) > 0:
            raise _translated(RuntimeError("CUDA error: unspecified launch failure"), torch.device("cuda:0"))
        return self._done.is_set()

    def set(self) -> None:
        self._done.set()


class StandInCollectives:
    """See the module. `group` sums; `delay_s` passes before each operation is complete."""

    def __init__(self, group: Group, delay_s: float = 0.0) -> None:
        self._group = group
        self._delay_s = delay_s
        self._aborted = threading.Event()
        self._queue = queue.SimpleQueue[tuple[torch.Tensor, Completion]]()
        threading.Thread(target=self._run, name="stand-in-stream", daemon=True).start()

    def all_reduce(self, tensor: torch.Tensor) -> Completion:
        done = Completion()
        self._queue.put((tensor, done))
        return done

    def abort(self) -> None:
        self._aborted.set()
        time.sleep(0.05)  # returns later than the operations end, as NCCL's
        self._group.abandon()

    def _run(self) -> None:
        while True:
            try:
                tensor, done = self._queue.get(timeout=0.5)
            except queue.Empty:
                if self._aborted.is_set():
                    return
                continue
            try:
                work = self._group.all_reduce(tensor)
                while not work.wait(0.005) and not self._aborted.is_set():
                    pass
            except PeerLost:
                self._aborted.wait()  # nothing is said of it
            self._aborted.wait(self._delay_s)
            if self._aborted.is_set():
                tensor.copy_(tensor // 2 if not tensor.is_floating_point() else tensor * 0.5)
            done.set()


def gloo_over(store: Any, rank: int, size: int, timeout: timedelta) -> GlooGroup:
    options = _dist.ProcessGroupGloo._Options()
    options._devices = [_dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    try:
        group = _dist.ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as error:
        raise PeerLost(str(error)) from error
    group._set_default_timeout(timedelta(hours=2))
    return GlooGroup(group, rank, size)


def connect(store: Any, rank: int, size: int, timeout: timedelta) -> StandInCollectives:
    """As `connect_nccl`. STANDIN_HANGS=RANK: the first attempt of that rank does not end."""
    if os.environ.pop("STANDIN_HANGS", "") == str(rank):
        threading.Event().wait()
    collectives = StandInCollectives(gloo_over(store, rank, size, timeout))
    first = collectives.all_reduce(torch.ones(1))
    end = time.monotonic() + timeout.total_seconds()
    while not first():
        if time.monotonic() > end:
            threading.Thread(target=collectives.abort, daemon=True).start()
            raise PeerLost("the first sum was not complete in time")
        time.sleep(0.0005)
    return collectives


def carrier(connect_limit: timedelta = timedelta(seconds=20)) -> DeviceCarrier:
    return DeviceCarrier(lambda tensor: tensor.is_floating_point(), connect, load, connect_limit)


def load() -> None:
    """As `load_nccl`."""
    threading.Thread(target=connect(_dist.HashStore(), 0, 1, timedelta(seconds=30)).abort, daemon=True).start()
