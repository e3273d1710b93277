"""Contrastive learning: two views of an image are to be more alike than views of other images of the batch.

After sthalles/SimCLR, simclr.py (https://github.com/sthalles/SimCLR). Licence of the original: MIT.
The loss compares samples of a batch: it does not add up over workers. `virtual_shards=4` compares within quarters of
the batch, the same ones on any number of workers. (`additive_loss=False` alone would say that the result depends on
the workers.)
"""

from __future__ import annotations

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from malletrain import elastic

TEMPERATURE = 0.2


class Views(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Two random views of each image: moved by up to a pixel, with noise."""

    def __init__(self, images: TensorDataset) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = self._images[index][0]
        first, second = (
            pixels.roll(tuple(torch.randint(-1, 2, (2,)).tolist()), (1, 2)) + 0.1 * torch.randn_like(pixels)
            for _ in range(2)
        )
        return first, second


def info_nce(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    features = functional.normalize(torch.cat([first, second]), dim=1)
    likeness = features @ features.T / TEMPERATURE
    likeness = likeness.masked_fill(torch.eye(len(features), dtype=torch.bool), float("-inf"))
    return functional.cross_entropy(likeness, torch.arange(len(features)).roll(len(first)))


def main() -> None:
    options = options_of(__doc__)
    train, _ = digits()
    encoder = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 16),
    )  # fmt: skip
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs)
    s = elastic.Session(encoder, optimizer, Views(train), batch_size=options.batch_size, drop_last=True,
                        virtual_shards=4, options=elastic.Options(additive_loss=False))  # fmt: skip
    s.track(scheduler=scheduler)
    for epoch in s.epochs(options.epochs):
        for batch in s.batches():
            optimizer.zero_grad()
            for first, second in batch:
                loss = info_nce(encoder(first), encoder(second))
                loss.backward()
            optimizer.step()
        scheduler.step()
        if s.is_main:
            print(f"epoch {epoch + 1}: {loss.item():.3f}", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
