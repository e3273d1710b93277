"""The same training by torchft: one replica a process, its Manager, DDP and Optimizer, gloo."""

from __future__ import annotations

import argparse
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from scripts.bench.elastic.train_large import build, data


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=4166)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--replica", required=True)
    options = parser.parse_args()
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build(options.width)
    inner = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=options.replica,
        timeout=timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
    )
    parallel = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    samples = data()
    with (options.directory / f"commits-{options.replica}").open("a", buffering=1) as diary:
        while not told:
            optimizer.zero_grad()  # begins a quorum
            size = max(1, manager.num_participants())
            rank = manager.participating_rank() or 0
            step, each = manager.current_step(), options.batch // size
            chosen = [(step * options.batch + rank * each + n) % len(samples) for n in range(each)]
            nn.functional.cross_entropy(parallel(samples.tensors[0][chosen]), samples.tensors[1][chosen]).backward()
            optimizer.step()
            if manager.current_step() > step:
                diary.write(f"{time.time():.4f} {manager.current_step()} {size}\n")
    manager.shutdown(wait=False)
    os._exit(0)


if __name__ == "__main__":
    main()
