"""A convolutional network with dropout, Adadelta, and a rate that falls by epoch.

After pytorch/examples, mnist/main.py (https://github.com/pytorch/examples). Licence of the original: BSD-3-Clause.
Dropout draws random numbers in the model; `virtual_shards=4` makes them the same on any number of workers.
"""

from __future__ import annotations

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.nn import functional

from malletrain import elastic


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(256, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = self.dropout1(functional.max_pool2d(x, 2)).flatten(1)
        return functional.log_softmax(self.fc2(self.dropout2(functional.relu(self.fc1(x)))), dim=1)


def main() -> None:
    options = options_of(__doc__)
    train, test = digits()
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    s = elastic.Session(model, optimizer, train, batch_size=options.batch_size, virtual_shards=4, drop_last=True)
    s.track(scheduler=scheduler)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        output = model(batch[0])
        return {
            "loss": functional.nll_loss(output, batch[1], reduction="sum"),
            "accuracy": (output.argmax(1) == batch[1]).sum(),
        }

    figures: dict[str, float] = {}
    for epoch in s.epochs(options.epochs):
        for batch in s.batches():
            optimizer.zero_grad()
            for data, target in batch:
                functional.nll_loss(model(data), target).backward()
            optimizer.step()
        scheduler.step()
        figures = s.evaluate(score, test)
        if s.is_main:
            print(f"epoch {epoch + 1}: {figures}", flush=True)
    s.finish(figures)


if __name__ == "__main__":
    main()
