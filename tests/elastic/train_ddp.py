"""A loop over a DataLoader by `elastic.ddp`, with AdamW, BatchNorm and a scheduler by step.

Each run of the loop's body writes a line, so that a test sees which ones were repeated.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from malletrain import elastic

HOME = Path(os.environ["MALLETRAIN_TEST_DIR"])
ME = os.environ.get("SLURM_ARRAY_TASK_ID") or os.environ.get("RANK", "x")
BATCH = 64

torch.manual_seed(0)
digits = load_digits()
train = TensorDataset(torch.tensor(digits.data[:640]).double() / 16, torch.tensor(digits.target[:640]))
model = nn.Sequential(nn.Linear(64, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 10)).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)


def tick(steps: int) -> None:
    with (HOME / f"bodies-{ME}").open("a") as file:
        file.write(f"{steps}\n")
    if "MALLETRAIN_URL" in os.environ and not (HOME / "go").exists():
        time.sleep(0.1)


def usual() -> None:
    given = DataLoader(train, batch_size=BATCH, shuffle=True)
    parallel, loader = elastic.ddp(elastic.sync_batchnorm(model), optimizer, given)
    s = loader.session
    s.track(scheduler=scheduler)
    s.state["seen"] = 0
    assert len(loader) == 10 and parallel.module is s._runtime.model
    for epoch in loader.epochs(3):
        for x, y in loader:
            before = s.steps_done
            optimizer.zero_grad()
            functional.cross_entropy(parallel(x), y).backward()
            nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            s.state["seen"] += 1
            tick(before)
        assert s.agree(torch.ones(2), "sum").tolist() == [s.size, s.size] and s.agree(2.0) == 2.0
        assert s.state["seen"] == s.steps_done == 10 * (epoch + 1), (s.state["seen"], s.steps_done)
    if s.is_main:
        torch.save(parallel.module.state_dict(), HOME / "final.pt")
    s.finish()


usual()
