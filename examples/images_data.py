"""Images from a folder: CIFAR-10 in its original format, or `train` and `val` with one folder a class (as
ImageNet)."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

Images = Dataset[tuple[torch.Tensor, ...]]


def images(folder: str, size: int = 64) -> tuple[Images, Images, int, int]:
    """Training set, test set, number of channels, number of classes.

    `folder` holds `data_batch_1` ... `test_batch` (CIFAR-10, https://www.cs.toronto.edu/~kriz/cifar.html, python
    version, unpacked; loading pickles runs code, so trust its origin), or `train/CLASS/*.jpg` and `val/CLASS/*.jpg`,
    which torchvision reads and scales to `size`.
    """
    path = Path(folder)
    if (path / "data_batch_1").is_file():
        train = _cifar(sorted(path.glob("data_batch_*")))
        return train, _cifar([path / "test_batch"]), 3, 10
    if not (path / "train").is_dir():
        raise SystemExit(
            f"{folder} holds neither CIFAR-10's batches nor train/ and val/ with a folder for each class"
        )
    try:
        from torchvision import datasets, transforms
    except ModuleNotFoundError:
        raise SystemExit("folders of images need torchvision: pip install torchvision") from None
    scale = transforms.Compose([transforms.Resize(size), transforms.CenterCrop(size), transforms.ToTensor()])
    found = [datasets.ImageFolder(path / part, scale) for part in ("train", "val")]
    return found[0], found[1], 3, len(found[0].classes)


def _cifar(files: list[Path]) -> TensorDataset:
    pixels, labels = [], []
    for file in files:
        with file.open("rb") as stream:
            batch = pickle.load(stream, encoding="bytes")  # noqa: S301 - the format of CIFAR-10
        pixels.append(np.asarray(batch[b"data"], dtype=np.float32).reshape(-1, 3, 32, 32) / 255)
        labels.append(np.asarray(batch[b"labels"], dtype=np.int64))
    return TensorDataset(torch.from_numpy(np.concatenate(pixels)), torch.from_numpy(np.concatenate(labels)))
