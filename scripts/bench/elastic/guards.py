"""What the guards cost: a digest of a large model, and steps with and without them in the same process.

    python -m scripts.bench.elastic.guards [--rounds 9] [--steps 128]

Printed: the seconds of one digest of 124 million parameters, the seconds after which the next is due, and the share
of time that is; then the ratio of a step's time with `check="error"` to that with `check="off"`, in blocks that
alternate, each an epoch, for a step of about 10 ms and for one as short as steps get. The digest itself is not in
these: one worker makes none.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

from malletrain import elastic
from malletrain.elastic.guards.digest import MAX_TIME_SHARE, digest
from malletrain.elastic.guards.objections import Check

GPT2 = [(50257, 768), (1024, 768), *12 * [(768, 2304), (768, 768), (768, 3072), (3072, 768)]]


def digest_seconds(rounds: int) -> tuple[int, list[float]]:
    """Parameters, and the seconds of each digest."""
    tensors = [(str(number), torch.randn(shape)) for number, shape in enumerate(GPT2)]
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        digest(tensors)
        seconds.append(time.perf_counter() - began)
    return sum(tensor.numel() for _, tensor in tensors), seconds[1:]


def trainer(wide: int, steps: int, check: Check) -> tuple[elastic.Session, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(64, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = 64 * steps
    data = torch.utils.data.TensorDataset(torch.randn(samples, 64), torch.randint(0, 10, (samples,)))
    return elastic.Session(model, optimizer, data, batch_size=64, check=check), optimizer


def block(session: elastic.Session, optimizer: torch.optim.Optimizer, steps: int, epoch: int) -> float:
    """Seconds a step of one epoch, which has so many."""
    began = time.perf_counter()
    for _ in session.epochs(epoch + 1):
        for x, y in session.batches():
            with session.step():
                optimizer.zero_grad()
                nn.functional.cross_entropy(session.model(x), y).backward()
                optimizer.step()
    return (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=128, help="of an epoch; a block is one (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    parameters, seconds = digest_seconds(options.rounds)
    once = statistics.median(seconds)
    print(
        f"digest of {parameters / 1e6:.1f} M parameters: {once:.3f} s ({min(seconds):.3f} to {max(seconds):.3f}), "
        f"due every {once / MAX_TIME_SHARE:.0f} s: {100 * MAX_TIME_SHARE:.1f} % of the time"
    )
    for wide in (1400, 16):
        checked, off = trainer(wide, options.steps, "error"), trainer(wide, options.steps, "off")
        ratios, times = [], []
        for number in range(2 * options.rounds):
            pair = [checked, off] if number % 2 else [off, checked]
            took = {id(one): block(*one, options.steps, number) for one in pair}
            if number:
                ratios.append(took[id(checked)] / took[id(off)])
                times.append(took[id(off)])
        low, high = statistics.quantiles(ratios, n=20)[0], statistics.quantiles(ratios, n=20)[-1]
        print(
            f"steps of {1000 * statistics.median(times):.2f} ms: ratio with guards to without "
            f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
        )


if __name__ == "__main__":
    main()
