"""Models and images for train_resnet.py and train_resnet_elastic.py.

`--images DIR` reads `DIR/train/CLASS/*.jpeg` and `DIR/val/CLASS/*.jpeg`, as ImageNet is unpacked; without it images
are made up, a pattern for each class with noise over it. Models are torchvision's (`--model resnet50`); `tiny`, a
small residual network, needs no torchvision.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

MADE_UP_CLASSES, MADE_UP_IMAGES = 10, 960


def need_torchvision() -> Any:
    """The package. Raises `SystemExit` if it is missing."""
    try:
        import torchvision
    except ImportError:
        raise SystemExit("images from files and the models resnet18 to resnet152 need torchvision") from None
    return torchvision


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Images and their classes.

    Args:
        folder: of one folder a class; None for images that are made up.
        size: pixels of a side.
        train: whether images are cropped and flipped at random.
    """

    def __init__(self, folder: Path | None, size: int, *, train: bool) -> None:
        self._size, self._train, self._files = size, train, None
        self.classes = MADE_UP_CLASSES
        if folder is not None:
            transforms = need_torchvision().transforms
            around = [transforms.Resize(size * 8 // 7), transforms.CenterCrop(size)]
            crop = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()] if train else around
            normal = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
            steps = transforms.Compose([*crop, transforms.ToTensor(), normal])
            self._files = need_torchvision().datasets.ImageFolder(str(folder), steps)
            self.classes = len(self._files.classes)

    def __len__(self) -> int:
        if self._files is not None:
            return len(self._files)
        return MADE_UP_IMAGES if self._train else MADE_UP_IMAGES // 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self._files is not None:
            found: tuple[torch.Tensor, int] = self._files[index]
            return found
        label = index % MADE_UP_CLASSES
        pattern = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(label))
        whole = functional.interpolate(pattern[None], (self._size, self._size))[0]
        noise = torch.randn(whole.shape, generator=torch.Generator().manual_seed(1000 + 2 * index + self._train))
        return whole + 1.5 * noise, label


class Block(nn.Module):
    """Two convolutions, added to what they are given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = functional.relu(self.norms[0](self.convolutions[0](x)))
        return functional.relu(x + self.norms[1](self.convolutions[1](inside)))


def model_named(name: str, classes: int) -> nn.Module:
    """`tiny`, or a model of torchvision."""
    if name == "tiny":
        first = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        return nn.Sequential(
            first, nn.BatchNorm2d(8), nn.ReLU(), Block(8), Block(8),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes),
        )  # fmt: skip
    model: nn.Module = need_torchvision().models.get_model(name, num_classes=classes)
    return model
