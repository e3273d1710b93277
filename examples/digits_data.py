"""Scikit-learn's 1,797 handwritten digits (8 x 8 pixels, from the UCI repository)."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, TensorDataset


def digits(*, image: bool, dtype: torch.dtype = torch.float32) -> tuple[TensorDataset, TensorDataset]:
    """Training set (four fifths) and test set (one fifth), always with the same split."""
    raw = load_digits()
    pixels = torch.tensor(raw.data, dtype=dtype) / 16
    if image:
        pixels = pixels.reshape(-1, 1, 8, 8)
    labels = torch.tensor(raw.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    train, test = order[360:], order[:360]
    return TensorDataset(pixels[train], labels[train]), TensorDataset(pixels[test], labels[test])


class Shifted(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Shifts each image at random by up to one pixel. It uses torch's random numbers as any data set does: the
    session seeds them for each sample, so that a sample does not depend on which worker loads it."""

    def __init__(self, images: TensorDataset) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        pixels, label = self._images[index]
        down, right = (int(step) for step in torch.randint(-1, 2, (2,)))
        return torch.roll(pixels, (down, right), dims=(1, 2)), label
