"""A script with no changed line: plain torch.distributed, saves on SIGTERM, loads what it finds."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

torch.set_num_threads(1)
home = Path(os.environ["MALLETRAIN_TEST_DIR"])
told: list[int] = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
saved = home / "count.pt"
count = int(torch.load(saved)) if saved.exists() else 0
while count < 400:
    one = torch.tensor([1.0, float(bool(told))])
    dist.all_reduce(one)
    count += 1
    Path(os.environ["MALLETRAIN_READY"]).touch()
    with (home / "counts").open("a") as stream:
        stream.write(f"{count} {rank} {int(one[0])}\n")
    if one[1] > 0:
        if rank == 0:
            time.sleep(float(os.environ.get("MALLETRAIN_TEST_SAVE_S", "0")))
            torch.save(torch.tensor(count), saved)
        sys.exit(143)
    if not (home / "go").exists():
        time.sleep(0.05 if count < 100 else 1.0)  # so that the end is far off, however slow the machine is
