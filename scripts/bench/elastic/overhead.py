"""What the runtime costs without any resize: its steps against DistributedDataParallel's, in the same processes.

    python -m scripts.bench.elastic.overhead [--workers 2] [--blocks 20] [--steps 10] [--width 4166] [--device cuda]

Both have the environment that a pilot's launcher gives. On a GPU, both sum over NCCL, and all workers share the
device: the link between them is loopback. Blocks of steps alternate (DDP, ours, ours, DDP, ...), so that whatever
else the machine does hits both alike. Printed: median step of each, and the ratio ours/DDP, paired by block, with a
95 % bootstrap confidence interval of its median.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import secrets
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.carrier import find_carrier
from malletrain.elastic.comm.device_group import PairedGroup
from malletrain.elastic.comm.local_rank import LocalRank
from malletrain.elastic.comm.peer_store import StoreServer
from malletrain.elastic.comm.step_commit import StepCommitter, TrainingWorld
from malletrain.elastic.comm.world_group import make_world_group
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.invariants.agreement import Agreement, RoundKind, Sources
from malletrain.elastic.invariants.digest import digest
from malletrain.elastic.launch.launcher import HUGE_PAGE_ENVIRONMENT
from malletrain.elastic.state.training_state import Position
from scripts.bench.elastic.train_large import build
from tests.gpu.one_gpu import environment_of


class Calm:
    """Nothing happens in this world."""

    def check(self, generation: int) -> None:
        pass

    def fault(self, generation: int, how: str, detail: str) -> None:
        raise RuntimeError(f"{how}: {detail}")

    def ready_for(self) -> int:
        return 0

    def is_ending(self) -> bool:
        return False


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
    sources = Sources(lambda: 0, lambda: {"lr": 1e-4}, dict, lambda: digest(model.named_parameters()))
    agreement = Agreement(committer, Position(), sources)
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
    theirs, ours = build(options.width).to(options.device), build(options.width).to(options.device)
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
                reducer.arm(each, options.batch, lambda outcome: None)
            optimizer.zero_grad()
            nn.functional.cross_entropy((ours if mine else parallel)(x), y).backward()
            optimizer.step()
        if gpu:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    for mine in (False, True):
        block(mine, 3)
    rows = []
    for number in range(options.blocks):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=4166)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    os.environ.update({**HUGE_PAGE_ENVIRONMENT, **os.environ})
    _server, meeting = serve_meeting()
    with tempfile.TemporaryDirectory() as directory:
        spawn(worker, (options, meeting, directory), nprocs=options.workers)
        rows = json.loads(Path(directory, "rows").read_text())
    ratios = [mine / theirs for mine, theirs in rows]
    shuffled = sorted(statistics.median(random.Random(seed).choices(ratios, k=len(ratios))) for seed in range(2000))
    print(
        json.dumps(
            {
                "workers": options.workers,
                "device": options.device,
                "ours_s": round(statistics.median(r[0] for r in rows), 4),
                "ddp_s": round(statistics.median(r[1] for r in rows), 4),
                "ratio": round(statistics.median(ratios), 4),
                "ratio_95": [round(shuffled[50], 4), round(shuffled[1949], 4)],
                "load": os.getloadavg()[0],
            }
        )
    )


if __name__ == "__main__":
    main()
