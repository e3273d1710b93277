"""An elastic training job that uses hardly any processor: it waits for a time that each sample is said to take.

For tests, chaos and benches of Slurm's side, where real training on a small machine would disturb what is measured.
Its result tells whether each step was done once and right: the weights at its end. Started alone, without Slurm and a
daemon, it is the static run that the others are compared with.
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
    """Train; the result has some of the final weights, and the number of optimizer steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample-s", type=float, default=0.005, help="seconds of one sample on one node")
    parser.add_argument("--epochs", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stall-beyond", type=int, default=1_000_000, help="on more nodes than this it trains worse")
    parser.add_argument("--out", type=Path, help="file for the result, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    features = torch.randn(options.samples, 16)
    data = torch.utils.data.TensorDataset(features, torch.tanh(features).sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = elastic.Session(model, optimizer, data, batch_size=64)
    for _ in session.epochs(options.epochs):
        for inputs, targets in session.batches():
            with session.step():
                optimizer.zero_grad()
                time.sleep(options.sample_s * len(inputs))  # stands for the computation
                if session.size > options.stall_beyond:
                    time.sleep(options.sample_s * 64)
                nn.functional.mse_loss(model(inputs), targets).backward()
                optimizer.step()
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    steps = float(next(iter(optimizer.state.values()))["step"])
    result = {"steps": steps, **{f"w{i}": float(each) for i, each in enumerate(weights[::8])}}
    if options.out is not None and session.is_main:
        options.out.write_text(json.dumps(result))
    session.finish(result)


if __name__ == "__main__":
    main()
