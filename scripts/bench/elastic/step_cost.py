"""What a session costs a step without any resize: over the plain loop, and against DistributedDataParallel's.

    python -m scripts.bench.elastic.step_cost [--rounds 9] [--steps 100]
    python -m scripts.bench.elastic.step_cost --workers 2 [--rounds 20] [--steps 10] [--width 4166] [--device cuda]

Alone: processor time, in blocks of steps that alternate in one process. Printed, for steps of about 1 and 5 ms of a
model of 42 tensors: the ratio of the medians to the loop over a `DataLoader` that the session is given, and to a loop
over rows of a tensor, which loads nothing; the seconds by which the first step is longer; and how many calls of
functions of malletrain a step makes.

Several workers: processes that were started together train the same model by a session and by DDP, whole steps with
their batches. On a GPU both sum over NCCL, and all workers share the device: the link between them is loopback.
Blocks of steps alternate (DDP, ours, ours, DDP, ...), so that whatever else the machine does hits both alike.
Printed: median step of each, and the ratio ours/DDP, paired by block, with a 95 % bootstrap interval of its median.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import malletrain
from malletrain import elastic
from malletrain.elastic.comm.static_rendezvous import MEETING_FOLDER_VARIABLE
from scripts.bench.elastic.train_large import build as build_large
from scripts.bench.elastic.train_large import data
from scripts.bench.shared import bootstrap, options_of
from scripts.lab.ports import free_port
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


def model_of(options: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = build_large(options.width).to(options.device)
    return model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def training(
    batches: Iterator[Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: str,
    over: Callable[[str], Any],
) -> Iterator[None]:
    """The same steps for both. `over`: called at the end of each."""
    for batch in batches:
        x, y = (part.to(device) for part in batch)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        over("")
        yield


def worker(rank: int, options: argparse.Namespace, directory: str) -> None:
    torch.set_num_threads(1)
    gpu: bool = options.device == "cuda"
    os.environ |= environment_of(rank) if gpu else {}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(options.workers), MEETING_FOLDER_VARIABLE: directory}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port)}
    dist.init_process_group("nccl" if gpu else "gloo")
    ours, rare = model_of(options), elastic.Options(world=elastic.environment_world(os.environ))
    session = elastic.Session(*ours, data(), batch_size=options.batch, options=rare)
    theirs, optimizer = model_of(options)
    loader = DataLoader(data(), options.batch // options.workers, sampler=DistributedSampler(data()))
    over = session._runtime.end_step_for  # what DDP trains next is no part of it
    parallel = nn.parallel.DistributedDataParallel(theirs)
    again = (batch for _ in itertools.count() for batch in loader)
    batches = (batch for _ in session.epochs(10**6) for batch in session.batches())
    loops = training(again, parallel, optimizer, options.device, str), training(batches, *ours, options.device, over)

    def block(mine: bool, steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            next(loops[mine])
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
        Path(directory, "rows").write_text(json.dumps(rows))
    dist.destroy_process_group()


def against_ddp(options: argparse.Namespace) -> None:
    """Print the ratio of our steps to DDP's, of several workers."""
    options.port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        spawn(worker, (options, directory), nprocs=options.workers)
        rows = json.loads(Path(directory, "rows").read_text())
    ratios = [mine / theirs for mine, theirs in rows]
    low, high = bootstrap(ratios, np.median)
    ours, ddp = (statistics.median(each) for each in zip(*rows, strict=True))
    print(
        f"{options.workers} workers on {options.device}: ours {ours:.4f} s, DDP's {ddp:.4f} s, ratio "
        f"{statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}], load {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    parser = options_of(__doc__)
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
