"""An LSTM that reads each image row by row.

After pytorch/examples, mnist_rnn/main.py (https://github.com/pytorch/examples). Licence of the original:
BSD-3-Clause. Other than there, the network has no dropout (mnist.py has it).
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
        self.rnn = nn.LSTM(input_size=8, hidden_size=32, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(32, 24), nn.Linear(24, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows, _ = self.rnn(images.squeeze(1))
        return functional.log_softmax(self.fc2(functional.relu(self.fc1(rows[:, -1]))), dim=1)


def main() -> None:
    options = options_of(__doc__)
    train, test = digits()
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    s = elastic.Session(model, optimizer, train, batch_size=options.batch_size)
    s.track(scheduler=scheduler)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).sum()}

    figures: dict[str, float] = {}
    for epoch in s.epochs(options.epochs):
        for data, target in s.batches():
            optimizer.zero_grad()
            functional.nll_loss(model(data), target).backward()
            optimizer.step()
        scheduler.step()
        figures = s.evaluate(score, test)
        if s.is_main:
            print(f"epoch {epoch + 1}: {figures}", flush=True)
    s.finish(figures)


if __name__ == "__main__":
    main()
