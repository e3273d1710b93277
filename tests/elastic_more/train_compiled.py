"""A compiled model; from the moment that this worker has entered its world, compiling anew is an error."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from malletrain import elastic


def main() -> None:
    torch.manual_seed(0)
    home = Path(os.environ["MALLETRAIN_TEST_DIR"])
    me = os.environ.get("SLURM_ARRAY_TASK_ID", "x")
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data) / 16, torch.tensor(digits.target))
    model: nn.Module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()
    if "SLURM_JOB_ID" in os.environ:
        compiled = torch.compile(model, backend=sys.argv[1])
        assert isinstance(compiled, nn.Module)
        model = compiled
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    s = elastic.Session(model, optimizer, data, batch_size=50)
    (home / f"ready-{me}").touch()
    while "SLURM_JOB_ID" in os.environ and not (home / f"start-{me}").exists():
        time.sleep(0.01)
    epochs = s.epochs(4)
    torch._dynamo.config.error_on_recompile = True
    with (home / f"diary-{me}.jsonl").open("a", buffering=1) as diary:
        for epoch in epochs:
            for x, y in s.batches():
                with s.step():
                    if "SLURM_JOB_ID" in os.environ and not (home / "go").exists():
                        # Alone, it waits for the others to compile, which takes half a minute on a busy machine.
                        time.sleep(1.0 if s.size == 1 and (home / "start-1").exists() else 0.1)
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    diary.write(
                        json.dumps({"step": s.steps_done, "epoch": epoch, "size": s.size, "n": len(y)}) + "\n"
                    )
    if s.is_main:
        torch.save(getattr(model, "_orig_mod", model).state_dict(), home / "final.pt")
    s.finish()


main()
