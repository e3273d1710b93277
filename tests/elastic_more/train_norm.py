"""BatchNorm over the whole batch, convolutions, weights by tokens if asked; in float64 so that equality shows."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from malletrain import elastic


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--slow-until", default="")
    parser.add_argument("--sum", action="store_true")
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--samples", type=int, default=1797)
    parser.add_argument("--wait-for", type=int, default=0, help="begin with so many workers")
    options = parser.parse_args()
    torch.manual_seed(0)
    home = Path(os.environ["MALLETRAIN_TEST_DIR"])
    me = f"{os.environ.get('SLURM_ARRAY_TASK_ID', 'x')}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    digits = load_digits()
    images = torch.tensor(digits.data).reshape(-1, 1, 8, 8) / 16
    parts = [images, torch.tensor(digits.target), torch.arange(len(digits.target))]
    data = TensorDataset(*(part[: options.samples] for part in parts))
    model: nn.Module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16),
        nn.BatchNorm1d(16, affine=False, momentum=None), nn.ReLU(), nn.Linear(16, 10),
    ).double()  # fmt: skip
    if "SLURM_JOB_ID" in os.environ:
        model = elastic.sync_batchnorm(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    s = elastic.Session(model, optimizer, data, batch_size=options.batch, reduction="sum" if options.sum else "mean")
    (home / f"equality-{me}").write_text(s.info.equality)
    reduction = "sum" if options.sum else "mean"
    (home / f"here-{me}").touch()
    while len(list(home.glob("here-*"))) < options.wait_for:
        time.sleep(0.01)
    with (home / f"diary-{me}.jsonl").open("a", buffering=1) as diary:
        for epoch in s.epochs(options.epochs):
            for x, y, index in s.batches():
                with s.step():
                    optimizer.zero_grad()
                    if options.step_seconds and not (options.slow_until and Path(options.slow_until).exists()):
                        # The end does not come before the test lets it, however long the test's other parts take.
                        late = epoch >= options.epochs // 2
                        time.sleep(max(options.step_seconds, 1.0) if late else options.step_seconds)
                    loss = nn.functional.cross_entropy(model(x), y, reduction=reduction)
                    (loss / options.batch if options.sum else loss).backward()
                    optimizer.step()
                    line = {"step": s.steps_done, "epoch": epoch, "size": s.size, "indices": index.tolist()}
                    diary.write(json.dumps({**line, "at": time.time()}) + "\n")
    if s.is_main:
        torch.save(model.state_dict(), home / "final.pt")
    s.finish({"samples": s.info.samples_done})


main()
