"""An elastic training job that uses hardly any processor: it waits for a time that each sample is said to take.

For benches of Slurm's side, where real training on a small machine would disturb what is measured.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from malletrain import elastic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample-s", type=float, default=0.005, help="seconds of one sample on one node")
    parser.add_argument("--epochs", type=int, default=1_000_000)
    parser.add_argument("--stall-beyond", type=int, default=1_000_000, help="on more nodes than this it trains worse")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    features = torch.randn(4096, 16)
    data = torch.utils.data.TensorDataset(features, features.sum(1, keepdim=True))
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
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
    session.finish({})


if __name__ == "__main__":
    main()
