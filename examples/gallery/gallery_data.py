"""What the loops of the gallery share: options, and data that every machine has.

Training is in float64, so that a difference from a static run is one of the loop and not of rounding.
"""

from __future__ import annotations

import argparse
from pydoc_data.topics import topics  # some 700 KB of English in every Python

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, TensorDataset

CHARACTERS = 128


def options_of(about: str | None, *, batch_size: int = 64) -> argparse.Namespace:
    """The options of a loop (`epochs`, `batch_size`), after it has set seed, threads and default type."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=batch_size, help="samples of a step, over all workers")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    return parser.parse_args()


def digits(*, samples: int = 1437) -> tuple[TensorDataset, TensorDataset]:
    """Training set and test set of scikit-learn's handwritten digits: images of shape (1, 8, 8) in [0, 1]; labels.

    Args:
        samples: of the training set.
    """
    raw = load_digits()
    pixels = torch.tensor(raw.data, dtype=torch.get_default_dtype()).reshape(-1, 1, 8, 8) / 16
    labels = torch.tensor(raw.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    train, test = order[360 : 360 + samples], order[:360]
    return TensorDataset(pixels[train], labels[train]), TensorDataset(pixels[test], labels[test])


def characters(*, pieces: int, context: int) -> torch.Tensor:
    """English text as numbers below `CHARACTERS`, of shape (pieces, context + 1)."""
    text = "".join(topics.values()).encode("ascii", "replace")[: pieces * (context + 1)]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().reshape(pieces, context + 1)


class WithNoise(Dataset[tuple[torch.Tensor, ...]]):
    """The samples of a data set, each with normal random numbers as its last part.

    The session seeds them by epoch and sample: they do not depend on which worker loads the sample.
    """

    def __init__(self, samples: TensorDataset, *shape: int) -> None:
        self._samples, self._shape = samples, shape

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return (*self._samples[index], torch.randn(self._shape))


class Tasks(Dataset[tuple[torch.Tensor, ...]]):
    """Tasks for meta-learning: images of `WAYS` digits, whose labels are new in each task.

    Args:
        samples: images with labels.
        tasks: of an epoch.

    A task has images and labels of its support set, then those of its query set, `SHOTS` of each digit.
    """

    WAYS, SHOTS = 4, 3

    def __init__(self, samples: TensorDataset, *, tasks: int = 320) -> None:
        self._images, labels = samples.tensors
        self._places = [torch.nonzero(labels == digit).squeeze(1) for digit in range(10)]
        self._tasks = tasks

    def __len__(self) -> int:
        return self._tasks

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        chosen = [self._places[digit] for digit in torch.randperm(10)[: self.WAYS].tolist()]
        picked = torch.stack([places[torch.randperm(len(places))[: 2 * self.SHOTS]] for places in chosen])
        labels = torch.arange(self.WAYS).repeat_interleave(self.SHOTS)
        support, query = picked[:, : self.SHOTS].flatten(), picked[:, self.SHOTS :].flatten()
        return self._images[support], labels, self._images[query], labels
