"""What a session does before it joins a world, and as it ends: reads its environment, connects to the daemon, checks
and warms up the model, handles SIGTERM."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import torch
from torch.utils._pytree import tree_leaves

from malletrain.elastic import LAUNCHER, WELCOME_FD
from malletrain.elastic.comm.addresses import own_host
from malletrain.elastic.comm.node_group import LocalRank, find_local_rank
from malletrain.elastic.comm.peer_store import StoreServer
from malletrain.elastic.data.prefetch import SampleLoader
from malletrain.elastic.data.random_seeds import kept_random_state
from malletrain.elastic.data.sampler import Sampler
from malletrain.elastic.data.streams import StreamReader, StreamSampler
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.launch import own_check
from malletrain.elastic.launch.array_resubmit import ArrayResubmitter
from malletrain.elastic.link.daemon_link import Link, LinkHandler
from malletrain.elastic.link.local_group import Follower, LocalLeader, meeting_name
from malletrain.wire import messages
from malletrain.wire.daemon_url import first_url
from malletrain.wire.worker_client import PilotIdentity, WorkerClient

log = logging.getLogger("malletrain.elastic")


@dataclass(slots=True)
class PilotContext:
    """What a process in a pilot needs to take part in its job. Local rank 0 alone has a store that it serves, and, if
    there are other processes on its node, a `local_leader`; `meeting` is the socket name at which they meet."""

    client: WorkerClient
    host: str
    resubmitter: ArrayResubmitter
    local_rank: LocalRank
    meeting: str
    store: StoreServer | None
    local_leader: LocalLeader | None

    @property
    def worker(self) -> str:
        return self.client.worker

    def open(self, answers: LinkHandler) -> Link | Follower:
        """Connect to the daemon, or to the local leader if another process of this node is that."""
        if not self.local_rank.is_leader:
            follower = Follower(self.meeting, self.local_rank, answers)
            follower.start()
            return follower
        link = Link(self.client, answers)
        if self.client.welcome is None:
            self.client.hello()
        link.start()
        if self.local_leader is not None:
            self.local_leader.lead(link)
        return link

    def report(self, message: messages.Message) -> None:
        """Send a message without a link, from the first process of the node. Raises `WireError`: it is not
        delivered."""
        if self.local_rank.is_leader:
            if self.client.welcome is None:
                self.client.hello()
            self.client.report([message])

    def wait_warm(self) -> str:
        """Wait until all processes of this node are warm; returns the address of this node's store."""
        if self.local_leader is not None:
            self.local_leader.wait_warm()
        return self.store.address if self.store is not None else ""


def find_pilot_context(environ: Mapping[str, str]) -> PilotContext | None:
    """Read the environment of a pilot; None outside any pilot. Raises `WireError`: the environment is that of a
    pilot, but not valid."""
    url = environ.get("MALLETRAIN_URL")
    if not url or "MALLETRAIN_JOB" not in environ:
        return None
    identity = PilotIdentity.of(environ)
    host = own_host(urlsplit(first_url(url)).hostname, environ.get("MALLETRAIN_ADDRESS"))
    client = WorkerClient(url, identity, welcome=read_welcome(environ))
    local_rank, meeting = find_local_rank(environ), meeting_name(environ)
    if local_rank.is_leader:
        own_check.say(environ, own_check.this_script(torch.__version__))
    return PilotContext(
        client,
        host,
        ArrayResubmitter(url, identity.job, environ),
        local_rank,
        meeting,
        StoreServer(host) if local_rank.is_leader else None,
        LocalLeader(meeting, local_rank) if local_rank.is_leader and local_rank.size > 1 else None,
    )


def read_welcome(environ: Mapping[str, str]) -> messages.Welcome | None:
    """Read the welcome that the launcher received from the descriptor it left open; None without a launcher. May be
    read by several processes."""
    number = environ.get(WELCOME_FD)
    if number is None or not number.isdecimal():
        return None
    try:
        text = os.pread(int(number), 64 * 1024, 0)
        return messages.parse(messages.Welcome, json.loads(text))
    except (OSError, ValueError, messages.MessageError) as error:
        log.info("the launcher's welcome cannot be read (%s): saying hello again", error)
        return None


def as_module(
    model: torch.nn.Module | Sequence[torch.nn.Module] | Mapping[str, torch.nn.Module],
) -> torch.nn.Module:
    """What `Session(model)` was given as one module. Raises `ElasticError` if it holds anything but modules."""
    if isinstance(model, torch.nn.Module):
        return model
    parts = list(model.values()) if isinstance(model, Mapping) else list(model)
    for part in parts:
        if not isinstance(part, torch.nn.Module):
            raise ElasticError(f"a model must be a torch.nn.Module, not {type(part).__name__}")
    return torch.nn.ModuleDict(dict(model)) if isinstance(model, Mapping) else torch.nn.ModuleList(parts)


def as_optimizers(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | Mapping[str, torch.optim.Optimizer],
) -> list[torch.optim.Optimizer]:
    """What `Session(optimizer)` was given as a list. Raises `ElasticError`: it is empty, or holds anything but
    optimizers, or LBFGS with more than one iteration a step."""
    if isinstance(optimizer, Mapping):
        each = list(optimizer.values())
    else:
        each = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    if not each:
        raise ElasticError("Session needs an optimizer")
    for one in each:
        if not hasattr(one, "param_groups"):
            raise ElasticError(f"an optimizer must be a torch.optim.Optimizer, not {type(one).__name__}")
        group = one.param_groups[0]
        # (One iteration looks at gradients alone, and not at this worker's loss.)
        if isinstance(one, torch.optim.LBFGS) and (group["max_iter"] != 1 or group["line_search_fn"] is not None):
            raise ElasticError(
                "LBFGS calls backward as often as it likes within a step, and sums of gradients belong to one "
                "backward pass: say LBFGS(..., max_iter=1), without line_search_fn, which makes one iteration a step"
            )
    return each


def check_model(model: torch.nn.Module) -> None:
    """Raise `ElasticError` if a model is wrapped for data parallelism, sharded, or has nothing to train."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
        raise ElasticError(
            f"give Session the plain model, not one in {type(model).__name__}: it does that part itself"
        )
    kinds = {type(each).__name__ for each in [*model.modules(), *model.parameters()]}  # torch's are slow to import
    if kinds & {"FullyShardedDataParallel", "DTensor"}:
        raise ElasticError(
            "the model is sharded (FSDP, fully_shard), and a node that leaves would take its part with it: give "
            "Session the plain model, or submit with --elastic=restart"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ElasticError("the model has no parameter that requires a gradient")


def warm_up(
    model: torch.nn.Module,
    loader: SampleLoader | StreamReader,
    sampler: Sampler | StreamSampler,
    rehearse: Callable[[Any], Any] | None,
) -> None:
    """Load a batch and run the model forward and backward, so that the first step is as fast as any. Gradients,
    buffers and random state are as before afterwards. A compiled model runs with several batch sizes, so that it is
    compiled here for every share that may come. `rehearse`: called with the batch instead of the model; returns
    tensors to run backward from. Without it, a model that cannot be called with the batch's first part is skipped.
    """
    rng = torch.get_rng_state()
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    indices = sampler.share(0, 0, 0, 1).indices
    try:
        for size in _sizes(model, sampler.batch_size):
            with kept_random_state():
                batch = loader.load(0, indices[:size])
            out = rehearse(batch) if rehearse is not None else _call(model, batch)
            leaves = (leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor) and leaf.requires_grad)
            total = sum(leaf.float().sum() for leaf in leaves if leaf.is_floating_point())
            if isinstance(total, torch.Tensor):
                total.backward()
    except Exception as error:
        if rehearse is not None:
            raise
        log.info("no rehearsal, the model cannot be called with the batch's first part: %s", error)
    finally:
        for parameter in model.parameters():
            parameter.grad = None
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.resize_(before.shape).copy_(before)  # an observer's has no size before its first batch
        torch.set_rng_state(rng)


def _sizes(model: torch.nn.Module, batch_size: int) -> list[int]:
    """The batch sizes to run. torch.compile makes a graph for the first size, at the second one a graph for any size,
    and another for a single sample, which layers such as BatchNorm may refuse: that one comes last."""
    # Compiled modules are recognised by name: importing the compiler takes seconds.
    compiled = any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
    first = max(1, batch_size // 4)
    return [max(2, first), max(2, first) + 1, 1] if compiled else [first]


def _call(model: torch.nn.Module, batch: Any) -> Any:
    device = next(model.parameters()).device

    def move(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    if isinstance(batch, Mapping):
        return model(**{key: move(value) for key, value in batch.items()})
    return model(move(batch[0] if isinstance(batch, list | tuple) else batch))


def on_terminate(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """Call `handler` on SIGTERM. Does nothing outside the main thread, where Python cannot set handlers."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def end_script(environ: Mapping[str, str]) -> None:
    """End the batch script, so that the commands after this worker do not run. Call it when the worker has left.

    Does nothing outside `elastic.launch`, which gives the script a process group of its own.
    """
    if WELCOME_FD not in environ:
        return
    group = _script_of(environ.get(LAUNCHER, "")) or os.getpgrp()
    if group != os.getpid():
        on_terminate(signal.SIG_IGN)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM)


def _script_of(launcher: str) -> int | None:
    """The process group of the script, which is the launcher's only child (proc(5), children). Under torchrun and
    srun it is not the group of this process."""
    try:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        for child in children:
            if f"{LAUNCHER}={launcher}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                return int(child)
    except OSError:
        pass  # the launcher is on another node or in another PID namespace
    return None
