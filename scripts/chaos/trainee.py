"""A training job whose result tells whether each step was done once and right: the weights at its end.

Started alone, without Slurm and a daemon, it is the static run that the others are compared with.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

from malletrain import elastic


def main() -> None:
    """Train; the result has the final weights, and the number of optimizer steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--sample-s", type=float, default=0.002, help="seconds of one sample on one node")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file for the result, too")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(asked.seed)
    features = torch.randn(1024, 16)
    data = torch.utils.data.TensorDataset(features, torch.tanh(features).sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = elastic.Session(model, optimizer, data, batch_size=64)
    for _ in session.epochs(asked.epochs):
        for inputs, targets in session.batches():
            with session.step():
                optimizer.zero_grad()
                time.sleep(asked.sample_s * len(inputs))  # stands for the computation
                nn.functional.mse_loss(model(inputs), targets).backward()
                optimizer.step()
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    steps = float(next(iter(optimizer.state.values()))["step"])
    result = {"steps": steps, **{f"w{i}": float(each) for i, each in enumerate(weights[::8])}}
    if asked.out is not None and session.is_main:
        asked.out.write_text(json.dumps(result))
    session.finish(result)


if __name__ == "__main__":
    main()
