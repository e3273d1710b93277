"""Memory of training beyond DistributedDataParallel's, in sets of gradients.

    python -m scripts.bench.gpu.memory [--workers 2] [--width 4166] [--steps 5] [--device cuda]

The same model and AdamW train twice, each time in processes of their own: once with the runtime's reducer, once in
DDP. On a GPU all workers share the device and sum over NCCL, and what counts is the peak that PyTorch's allocator
gave out in one process; on a CPU it is the peak of the process's memory. Printed: both, and their difference divided
by the bytes of the gradients.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.launch.launcher import HUGE_PAGE_ENVIRONMENT
from scripts.bench.elastic.overhead import begin, meet_for_ddp, reducer_of, serve_meeting
from scripts.bench.elastic.train_large import build


def worker(rank: int, options: argparse.Namespace, meeting: Meeting, directory: str, ours: bool) -> None:
    gpu = begin(rank, options.device)
    model = build(options.width).to(options.device)
    trained: nn.Module = model
    reducer = None
    if ours:
        reducer = reducer_of(rank, options.workers, meeting, model)
    else:
        meet_for_ddp(rank, options.workers, directory, gpu=gpu)
        trained = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    x, y = torch.randn(8, 1024, device=options.device), torch.randint(0, 1024, (8,), device=options.device)
    for _ in range(options.steps):
        if reducer is not None:
            reducer.arm(len(x), len(x) * options.workers, lambda outcome: None)
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(x), y).backward()
        optimizer.step()
    peak = torch.cuda.max_memory_allocated() if gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Path(directory, f"peak-{rank}").write_text(str(peak))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def peak_bytes(options: argparse.Namespace, *, ours: bool) -> float:
    """The median over the workers."""
    _server, meeting = serve_meeting()
    with tempfile.TemporaryDirectory() as directory:
        spawn(worker, (options, meeting, directory, ours), nprocs=options.workers)
        return statistics.median(int(path.read_text()) for path in Path(directory).glob("peak-*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--width", type=int, default=4166)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    os.environ.update({**HUGE_PAGE_ENVIRONMENT, **os.environ})
    gradients = sum(4 * parameter.numel() for parameter in build(options.width).parameters())
    ours, theirs = peak_bytes(options, ours=True), peak_bytes(options, ours=False)
    print(
        json.dumps(
            {
                "workers": options.workers,
                "device": options.device,
                "gradients_mb": round(gradients / 1e6, 1),
                "ours_mb": round(ours / 1e6, 1),
                "ddp_mb": round(theirs / 1e6, 1),
                "sets_of_gradients_beyond_ddp": round((ours - theirs) / gradients, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
