"""The training script that is measured: fully connected layers on random data, SGD with momentum, a diary of commits.

train_large.py WIDTH STOP DEVICE    until the file STOP is there; width 4166 makes 207 MB of state
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from malletrain import elastic


def build(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(1024, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1024)
    )  # fmt: skip


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(
        torch.randn(4096, 1024, generator=generator), torch.randint(0, 1024, (4096,), generator=generator)
    )


def main(width: int, stop: Path, device: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build(width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    s = elastic.Session(model, optimizer, data(), batch_size=64)
    me = f"{os.environ['SLURM_ARRAY_TASK_ID']}.{os.environ['SLURM_RESTART_COUNT']}"
    with (Path(os.environ["MALLETRAIN_TEST_DIR"]) / f"commits-{me}").open("a", buffering=1) as diary:
        for _ in s.epochs(10**6):
            for batch in s.batches():
                with s.step():
                    x, y = (part.to(device, non_blocking=True) for part in batch)
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    diary.write(f"{time.time():.4f} {s.steps_done} {s.size}\n")
                if stop.exists():
                    return


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
