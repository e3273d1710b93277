"""What a session costs a step: processor time over loops without one, in blocks that alternate in one process.

    python -m scripts.bench.elastic.step_cost [--rounds 9] [--steps 100]

Printed, for steps of about 1 and 5 ms of a model of 42 tensors: the ratio of the medians to the loop over a
`DataLoader` that the session is given, and to a loop over rows of a tensor, which loads nothing; the seconds by which
the first step is longer; and how many calls of functions of malletrain a step makes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import malletrain
from malletrain import elastic

LAYERS = 21


def build(wide: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = [nn.Linear(wide, wide) for _ in range(LAYERS)]
    model = nn.Sequential(*(each for layer in layers for each in (layer, nn.ReLU())))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        optimizer.zero_grad()
        model(batch[0]).square().mean().backward()
        optimizer.step()

    return step


def loader_of(data: torch.Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(data), batch_size=64, shuffle=True)


def over_rows(data: torch.Tensor, wide: int) -> Iterator[None]:
    step = step_of(*build(wide))
    while True:
        for rows in torch.randperm(len(data)).split(64):
            step([data[rows]])
            yield


def over_loader(data: torch.Tensor, wide: int) -> Iterator[None]:
    step = step_of(*build(wide))
    loader = loader_of(data)
    while True:
        for batch in loader:
            step(batch)
            yield


def session(data: torch.Tensor, wide: int) -> Iterator[None]:
    model, optimizer = build(wide)
    step = step_of(model, optimizer)
    s = elastic.Session(model, optimizer, loader_of(data))
    for _ in s.epochs(10**6):
        for batch in s.batches():
            with s.step():
                step(batch)
            yield


def seconds(steps: Iterator[None], count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        next(steps)
    return (time.process_time() - began) / count


def calls(steps: Iterator[None]) -> int:
    """Of functions of malletrain in one step."""
    home, found = malletrain.__path__[0], [0]

    def count(frame: Any, event: str, _: Any) -> None:
        found[0] += event == "call" and frame.f_code.co_filename.startswith(home)

    sys.setprofile(count)
    next(steps)
    sys.setprofile(None)
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for wide in (16, 192):
        data = torch.randn(64 * options.steps, wide)
        loops = [make(data, wide) for make in (over_loader, over_rows, session)]
        first = [seconds(each, 1) for each in loops]
        times = [[seconds(each, options.steps) for each in loops] for _ in range(options.rounds)]
        loader, rows, ours = (statistics.median(each) for each in zip(*times, strict=True))
        print(
            f"steps of {1000 * loader:.2f} ms: {ours / loader:.3f} times the processor time of the loop over the "
            f"loader, {ours / rows:.3f} times that over rows ({1000 * rows:.2f} ms), first step "
            f"{first[2] - first[0]:+.3f} s, {calls(loops[2])} calls"
        )


if __name__ == "__main__":
    main()
