"""Contrastive learning of images and texts: an image is to be more like its own text than like others of the batch.

After mlfoundations/open_clip, src/open_clip_train/train.py (https://github.com/mlfoundations/open_clip).
Licence of the original: MIT.
The loss compares each image with every text of the batch. `s.gather` has the rows of all workers, and every worker
computes the same loss from them; gradients go back to the worker that each row came from.
"""

from __future__ import annotations

import math

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from malletrain import elastic

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
LONGEST = max(map(len, WORDS))


class Pairs(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Each image with the letters of its label, one of them replaced at random."""

    def __init__(self, images: TensorDataset) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        pixels, label = self._images[index]
        text = torch.tensor([ord(letter) % 32 for letter in WORDS[int(label)].ljust(LONGEST)])
        text[torch.randint(LONGEST, ())] = torch.randint(1, 27, ())
        return pixels, text


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GELU(),
            nn.Flatten(), nn.Linear(256, 16),
        )  # fmt: skip
        self.text = nn.Sequential(
            nn.Embedding(32, 16), nn.Flatten(), nn.Linear(16 * LONGEST, 32), nn.GELU(), nn.Linear(32, 16)
        )
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))


def clip_loss(image_rows: torch.Tensor, text_rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    likeness = scale * functional.normalize(image_rows) @ functional.normalize(text_rows).T
    partners = torch.arange(len(likeness))
    return (functional.cross_entropy(likeness, partners) + functional.cross_entropy(likeness.T, partners)) / 2


def main() -> None:
    options = options_of(__doc__)
    train, _ = digits()
    model = TwoTowers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs * 22)
    s = elastic.Session(model, optimizer, Pairs(train), batch_size=options.batch_size, drop_last=True)
    s.track(scheduler=scheduler)
    for epoch in s.epochs(options.epochs):
        for images, texts in s.batches():
            optimizer.zero_grad()
            image_rows, text_rows = s.gather(model.image(images)), s.gather(model.text(texts))
            loss = clip_loss(image_rows, text_rows, model.scale.exp())
            loss.backward()
            optimizer.step()
            scheduler.step()
            with torch.no_grad():
                model.scale.clamp_(0, math.log(100))
        if s.is_main:
            print(f"epoch {epoch + 1}: {loss.item():.3f}", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
