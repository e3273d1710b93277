"""The same training by plain PyTorch: DistributedDataParallel, a checkpoint every so many steps and on SIGTERM.

Takes torchrun's environment, so torchrun and a plain relaunch both run it unchanged.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from scripts.bench.elastic.train_large import build, data


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=4166)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args()
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = build(options.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    saved, step = options.directory / "state.pt", 0
    if saved.exists():
        content = torch.load(saved, weights_only=True)
        step = content["step"]
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
    parallel = nn.parallel.DistributedDataParallel(model)
    samples = data()
    each = options.batch // size
    with (options.directory / f"commits-{os.getpid()}").open("a", buffering=1) as diary:
        while True:
            chosen = [(step * options.batch + rank * each + n) % len(samples) for n in range(each)]
            x, y = samples.tensors[0][chosen], samples.tensors[1][chosen]
            optimizer.zero_grad()
            nn.functional.cross_entropy(parallel(x), y).backward()
            optimizer.step()
            step += 1
            diary.write(f"{time.time():.4f} {step} {size}\n")
            ending = torch.tensor([float(bool(told))])
            dist.all_reduce(ending)
            if rank == 0 and (step % options.save_every == 0 or ending > 0):
                draft = saved.with_suffix(".draft")
                torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, draft)
                draft.replace(saved)
            if ending > 0:
                dist.barrier()
                sys.stdout.flush()
                os._exit(143)  # not done: an agent that sees 0 takes the job for finished


if __name__ == "__main__":
    main()
