"""A loop over a DataLoader by `elastic.ddp`, with AdamW, BatchNorm and a scheduler by step. `train_ddp.py HABIT`.

Each run of the loop's body writes a line, so that a test sees which ones were repeated.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, Sampler, TensorDataset

from malletrain import elastic
from malletrain.elastic.adapters.ddp import ElasticLoader

HOME = Path(os.environ.get("MALLETRAIN_TEST_DIR", "."))
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


def step(loader: ElasticLoader) -> None:
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def made(**settings: Any) -> ElasticLoader:
    return elastic.ddp(model, optimizer, DataLoader(train, batch_size=BATCH), **settings)[1]


def real_group() -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{HOME}/meet", rank=0, world_size=1)
    made()


def distributed_sampler() -> None:
    sampler: Sampler[int] = DistributedSampler(train, num_replicas=2, rank=0)
    elastic.ddp(model, optimizer, DataLoader(train, batch_size=BATCH, sampler=sampler))


def epochs_by_range() -> None:
    loader = made()
    for _ in range(2):
        step(loader)


def evaluates_within() -> None:
    loader = made()
    for _ in loader.epochs(1):
        for x, y in loader:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            loader.session.evaluate(lambda batch: {"n": len(batch)})


def reduces_within() -> None:
    loader = made()
    for _ in loader.epochs(1):
        for x, y in loader:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            loader.session.agree(loss.item())


def accumulates_over_batches() -> None:
    parallel, loader = elastic.ddp(model, optimizer, DataLoader(train, batch_size=BATCH))
    for _ in loader.epochs(1):
        for x, y in loader:
            with parallel.no_sync():
                functional.cross_entropy(parallel(x), y).backward()


def leaves_a_batch() -> None:
    loader = made()
    for _ in loader.epochs(2):
        for _ in loader:
            break


def second_backward() -> None:
    loader = made()
    for _ in loader.epochs(1):
        for x, y in loader:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            functional.cross_entropy(model(x), y).backward()


def torch_sync_batchnorm() -> None:
    elastic.ddp(nn.SyncBatchNorm.convert_sync_batchnorm(model), optimizer, DataLoader(train, batch_size=BATCH))


def shards() -> None:
    made(virtual_shards=4)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
