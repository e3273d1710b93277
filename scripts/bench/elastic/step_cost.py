"""What a session costs a step without any resize: over the plain loop, and against DistributedDataParallel's.

    python -m scripts.bench.elastic.step_cost [--rounds 9] [--steps 100]
    python -m scripts.bench.elastic.step_cost --workers 2 [--rounds 20] [--steps 10] [--width 4166] [--device cuda]

Alone: processor time, in blocks of steps that alternate in one process. Printed, for steps of about 1 and 5 ms of a
model of 42 tensors: the ratio of the medians to the loop over a `DataLoader` that the session is given, and to a loop
over rows of a tensor, which loads nothing; the seconds by which the first step is longer; and how many calls of
functions of malletrain a step makes.

Several workers: both have the environment that a pilot's launcher gives. On a GPU both sum over NCCL, and all workers
share the device: the link between them is loopback. Blocks of steps alternate (DDP, ours, ours, DDP, ...), so that
whatever else the machine does hits both alike. Printed: median step of each, and the ratio ours/DDP, paired by block,
with a 95 % bootstrap confidence interval of its median.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.utils.data import DataLoader, TensorDataset

import malletrain
from malletrain import elastic
from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.carrier import find_carrier
from malletrain.elastic.comm.device_group import PairedGroup
from malletrain.elastic.comm.node_group import LocalRank
from malletrain.elastic.comm.peer_store import StoreServer
from malletrain.elastic.comm.step_commit import StepCommitter, TrainingWorld
from malletrain.elastic.comm.world_group import make_world_group
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.invariants.agreement import Agreement, RoundKind
from malletrain.elastic.invariants.digest import digest
from malletrain.elastic.state.training_state import Position
from tests.elastic.stores import Calm
from tests.elastic.train_large import build as build_large
from tests.gpu.one_gpu import environment_of

LAYERS = 21


def build(wide: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = [nn.Linear(wide, wide) for _ in range(LAYERS)]
    model = nn.Sequential(*(each for layer in layers for each in (layer, nn.ReLU())))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        optimizer.zero_grad()
        model(batch[0]).square().mean().backward()
        optimizer.step()

    return step


def loader_of(data: torch.Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(data), batch_size=64, shuffle=True)


def over_rows(data: torch.Tensor, wide: int) -> Iterator[None]:
    step = step_of(*build(wide))
    while True:
        for rows in torch.randperm(len(data)).split(64):
            step([data[rows]])
            yield


def over_loader(data: torch.Tensor, wide: int) -> Iterator[None]:
    step = step_of(*build(wide))
    loader = loader_of(data)
    while True:
        for batch in loader:
            step(batch)
            yield


def session(data: torch.Tensor, wide: int) -> Iterator[None]:
    model, optimizer = build(wide)
    step = step_of(model, optimizer)
    s = elastic.Session(model, optimizer, loader_of(data))
    for _ in s.epochs(10**6):
        for batch in s.batches():
            step(batch)
            s._runtime.end_step_for("")  # what others train next is no part of it
            yield


def seconds(steps: Iterator[None], count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        next(steps)
    return (time.process_time() - began) / count


def calls(steps: Iterator[None]) -> int:
    """Of functions of malletrain in one step."""
    home, found = malletrain.__path__[0], [0]

    def count(frame: Any, event: str, _: Any) -> None:
        found[0] += event == "call" and frame.f_code.co_filename.startswith(home)

    sys.setprofile(count)
    next(steps)
    sys.setprofile(None)
    return found[0]


def against_plain(rounds: int, steps: int) -> None:
    """Print the ratio of a session's steps to those of the plain loop, for small models."""
    torch.set_num_threads(1)
    for wide in (16, 192):
        data = torch.randn(64 * steps, wide)
        loops = [make(data, wide) for make in (over_loader, over_rows, session)]
        first = [seconds(each, 1) for each in loops]
        times = [[seconds(each, steps) for each in loops] for _ in range(rounds)]
        loader, rows, ours = (statistics.median(each) for each in zip(*times, strict=True))
        print(
            f"steps of {1000 * loader:.2f} ms: {ours / loader:.3f} times the processor time of the loop over the "
            f"loader, {ours / rows:.3f} times that over rows ({1000 * rows:.2f} ms), first step "
            f"{first[2] - first[0]:+.3f} s, {calls(loops[2])} calls"
        )


# -- several workers, against DistributedDataParallel


def reducer_of(rank: int, workers: int, meeting: Meeting, model: nn.Module) -> GradientReducer:
    """The gradients' reducer of one member of a world of `workers`; blocks until all have come."""
    committer = StepCommitter(Calm())
    carrier, patience = find_carrier(model, os.environ), timedelta(seconds=60)
    group = make_world_group(meeting, rank, workers, LocalRank(), "127.0.0.1", patience, carrier)
    if isinstance(group, PairedGroup):
        group.connect_now(patience, lambda: None)
    committer.world = TrainingWorld(1, tuple(str(r) for r in range(workers)), group)
    reducer = GradientReducer(list(model.named_parameters()), committer, mean=True)
    # Members compare a row in each step, as in a session.
    values = functools.partial(digest, list(model.named_parameters()))
    agreement = Agreement(committer, Position(), lambda: 0, lambda: {"lr": 1e-4}, values)
    reducer.open_pass = functools.partial(agreement.open, RoundKind.STEP)
    return reducer


def begin(rank: int, device: str) -> bool:
    """Prepare this process as one of several on `device`; whether that is a GPU, which they share."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gpu = device == "cuda"
    if gpu:
        os.environ.update(environment_of(rank))
        torch.cuda.set_device(0)
    return gpu


def meet_for_ddp(rank: int, workers: int, directory: str, *, gpu: bool) -> None:
    """Make DDP's process group, over NCCL on a GPU; the processes meet in a file of `directory`."""
    meet = f"file://{directory}/meet"
    dist.init_process_group("nccl" if gpu else "gloo", init_method=meet, rank=rank, world_size=workers)


def serve_meeting() -> tuple[StoreServer, Meeting]:
    """Where the members of one world meet. The server serves as long as it is referred to."""
    server = StoreServer("127.0.0.1")
    meeting = Meeting(server.address, 1, secrets.token_hex())
    server.trust(meeting)
    return server, meeting


def worker(rank: int, options: argparse.Namespace, meeting: Meeting, directory: str) -> None:
    gpu = begin(rank, options.device)
    meet_for_ddp(rank, options.workers, directory, gpu=gpu)
    theirs, ours = build_large(options.width).to(options.device), build_large(options.width).to(options.device)
    ours.load_state_dict(theirs.state_dict())
    parallel = nn.parallel.DistributedDataParallel(theirs)
    reducer = reducer_of(rank, options.workers, meeting, ours)
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-4, momentum=0.9) for m in (theirs, ours)]
    each = options.batch // options.workers
    x = torch.randn(each, 1024, generator=torch.Generator().manual_seed(rank)).to(options.device)
    y = torch.randint(0, 1024, (each,), generator=torch.Generator().manual_seed(rank)).to(options.device)

    def block(mine: bool, steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            optimizer = optimizers[int(mine)]
            if mine:
                reducer.arm(each, options.batch)
            optimizer.zero_grad()
            nn.functional.cross_entropy((ours if mine else parallel)(x), y).backward()
            optimizer.step()
        if gpu:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    for mine in (False, True):
        block(mine, 3)
    rows = []
    for number in range(options.rounds):
        order = (False, True) if number % 2 else (True, False)
        dist.barrier()
        took = {mine: block(mine, options.steps) for mine in order}
        rows.append((took[True], took[False]))
    if rank == 0:
        for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)
        Path(directory, "rows").write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def against_ddp(options: argparse.Namespace) -> None:
    """Print the ratio of our steps to DDP's, of several workers."""
    _server, meeting = serve_meeting()
    with tempfile.TemporaryDirectory() as directory:
        spawn(worker, (options, meeting, directory), nprocs=options.workers)
        rows = json.loads(Path(directory, "rows").read_text())
    ratios = [mine / theirs for mine, theirs in rows]
    shuffled = sorted(statistics.median(random.Random(seed).choices(ratios, k=len(ratios))) for seed in range(2000))
    ours, ddp = (statistics.median(each) for each in zip(*rows, strict=True))
    print(
        f"{options.workers} workers on {options.device}: ours {ours:.4f} s, DDP's {ddp:.4f} s, ratio "
        f"{statistics.median(ratios):.3f} [{shuffled[50]:.3f}, {shuffled[1949]:.3f}], load {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each")
    parser.add_argument("--steps", type=int, default=100, help="of a block")
    parser.add_argument("--workers", type=int, default=1, help="more than one: against DDP")
    parser.add_argument("--width", type=int, default=4166)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    if options.workers > 1:
        against_ddp(options)
    else:
        against_plain(options.rounds, options.steps)


if __name__ == "__main__":
    main()
