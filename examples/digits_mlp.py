"""A small fully connected network on digits. Run it with `python examples/digits_mlp.py`, or submit it with
mtbatch."""

from __future__ import annotations

import argparse

import torch
from digits_data import digits
from torch import nn

from malletrain import elastic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a step, over all workers")
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    train, test = digits(image=False)
    model = nn.Sequential(nn.Linear(64, options.width), nn.ReLU(), nn.Linear(options.width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    s = elastic.Session(model, optimizer, train, batch_size=options.batch_size)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        out = model(batch[0])
        return {
            "accuracy": (out.argmax(1) == batch[1]).sum(),
            "loss": nn.functional.cross_entropy(out, batch[1], reduction="sum"),
        }

    figures: dict[str, float] = {}
    for epoch in s.epochs(options.epochs):
        for pixels, labels in s.batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pixels), labels).backward()
            optimizer.step()
        if epoch % 10 == 9 or epoch == options.epochs - 1:
            figures = s.evaluate(score, test)
            s.report(**figures)
            if s.is_main:
                print(f"epoch {epoch + 1}: {figures} on {s.size} nodes", flush=True)
    s.finish(figures)


if __name__ == "__main__":
    main()
