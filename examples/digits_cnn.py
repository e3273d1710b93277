"""A small convolutional network on digits, with random augmentation and a learning-rate schedule."""

from __future__ import annotations

import argparse

import torch
from digits_data import Shifted, digits
from torch import nn

from malletrain import elastic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a step, over all workers")
    parser.add_argument("--channels", type=int, default=16)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    train, test = digits(image=True)
    wide = options.channels
    model = nn.Sequential(
        nn.Conv2d(1, wide, 3, padding=1),
        nn.GroupNorm(4, wide),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(wide, 2 * wide, 3, padding=1),
        nn.GroupNorm(4, 2 * wide),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * wide * 16, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    s = elastic.Session(model, optimizer, Shifted(train), batch_size=options.batch_size)
    s.track(scheduler=scheduler)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).sum()}

    figures: dict[str, float] = {}
    for epoch in s.epochs(options.epochs):
        for pixels, labels in s.batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pixels), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        scheduler.step()
        if epoch % 5 == 4 or epoch == options.epochs - 1:
            figures = s.evaluate(score, test)
            s.report(**figures)
            if s.is_main:
                print(f"epoch {epoch + 1}: {figures} on {s.size} nodes", flush=True)
    s.finish(figures)


if __name__ == "__main__":
    main()
