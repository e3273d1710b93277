"""Two images through one network: do they show the same digit? The second image is drawn at random for each sample.

After pytorch/examples, siamese_network/main.py (https://github.com/pytorch/examples). Licence of the original:
BSD-3-Clause. Its data set draws pairs in `__getitem__`, as this one does.
"""

from __future__ import annotations

import random

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from malletrain import elastic


class Pairs(Dataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    """Each image with another one: of the same digit (target 1) for an even index, else of another digit (0)."""

    def __init__(self, images: TensorDataset) -> None:
        self._pixels, self._labels = images.tensors

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        alike = self._labels == self._labels[index]
        same = index % 2 == 0
        second = random.choice(torch.nonzero(alike if same else ~alike).flatten().tolist())
        return self._pixels[index], self._pixels[second], torch.tensor(float(same))


class SiameseNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 16)
        )
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.cat([self.features(first), self.features(second)], dim=1))
        return out


def main() -> None:
    options = options_of(__doc__)
    train, test = digits()
    model, criterion = SiameseNetwork(), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    s = elastic.Session(model, optimizer, Pairs(train), batch_size=options.batch_size,
                        warm_up=lambda batch: model(batch[0], batch[1]))  # fmt: skip

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": ((model(batch[0], batch[1]) > 0) == (batch[2] > 0.5)).sum()}

    figures: dict[str, float] = {}
    for epoch in s.epochs(options.epochs):
        for first, second, target in s.batches():
            optimizer.zero_grad()
            criterion(model(first, second), target).backward()
            optimizer.step()
        figures = s.evaluate(score, Pairs(test))
        if s.is_main:
            print(f"epoch {epoch + 1}: {figures}", flush=True)
    s.finish(figures)


if __name__ == "__main__":
    main()
