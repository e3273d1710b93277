"""Colour images with random crops and flips, BatchNorm, weight decay, and a cosine schedule.

After kuangliu/pytorch-cifar, main.py (https://github.com/kuangliu/pytorch-cifar). Licence of the original: MIT.
"""

from __future__ import annotations

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from malletrain import elastic


class Augmented(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Digits in three colours. `RandomCrop(8, padding=1)` and a random flip, as transforms do it in `__getitem__`."""

    def __init__(self, images: TensorDataset, *, random: bool) -> None:
        self._images, self._random = images, random

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        pixels, label = self._images[index]
        image = torch.cat([pixels, 1 - pixels, pixels * pixels])
        if self._random:
            top, left = torch.randint(0, 3, (2,)).tolist()
            image = functional.pad(image, (1, 1, 1, 1))[:, top : top + 8, left : left + 8]
            if torch.rand(()) < 0.5:
                image = image.flip(2)
        return image, label


def main() -> None:
    options = options_of(__doc__)
    train, test = digits()
    net = elastic.sync_batchnorm(nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 10),
    ))  # fmt: skip
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs)
    s = elastic.Session(net, optimizer, Augmented(train, random=True), batch_size=options.batch_size)
    s.track(scheduler=scheduler)
    s.state["best"] = 0.0

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (net(batch[0]).argmax(1) == batch[1]).sum()}

    for epoch in s.epochs(options.epochs):
        for inputs, targets in s.batches():
            optimizer.zero_grad()
            criterion(net(inputs), targets).backward()
            optimizer.step()
        accuracy = s.evaluate(score, Augmented(test, random=False))["accuracy"]
        s.state["best"] = max(s.state["best"], accuracy)
        if s.is_main:
            print(f"epoch {epoch + 1}: {accuracy:.3f}, best {s.state['best']:.3f}", flush=True)
        scheduler.step()
    s.finish({"accuracy": s.state["best"]})


if __name__ == "__main__":
    main()
