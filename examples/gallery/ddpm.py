"""A diffusion model: it learns which noise has been added to an image.

After lucidrains/denoising-diffusion-pytorch (https://github.com/lucidrains/denoising-diffusion-pytorch). Licence of
the original: MIT. Other than there, noise and time are drawn with each sample, in `__getitem__`, and not in the step.
"""

from __future__ import annotations

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset, TensorDataset

from malletrain import elastic

TIMES = 100


class Noised(Dataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    """An image with noise, the time, and the noise."""

    def __init__(self, images: TensorDataset) -> None:
        self._images = images
        self._kept = torch.cumprod(1 - torch.linspace(1e-4, 0.1, TIMES), dim=0)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        pixels = 2 * self._images[index][0] - 1
        time = torch.randint(TIMES, ())
        noise = torch.randn_like(pixels)
        return self._kept[time].sqrt() * pixels + (1 - self._kept[time]).sqrt() * noise, time, noise


class Denoiser(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.time = nn.Conv2d(1, channels, 3, padding=1), nn.Embedding(TIMES, channels)
        self.middle = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm, self.last = nn.GroupNorm(4, channels), nn.Conv2d(channels, 1, 3, padding=1)

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = functional.silu(self.first(image) + self.time(time)[:, :, None, None])
        out: torch.Tensor = self.last(functional.silu(self.norm(self.middle(hidden))) + hidden)
        return out


def main() -> None:
    options = options_of(__doc__)
    train, _ = digits()
    model = Denoiser(16)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    s = elastic.Session(model, optimizer, Noised(train), batch_size=options.batch_size,
                        warm_up=lambda batch: model(batch[0], batch[1]))  # fmt: skip
    s.track(ema=ema)
    for epoch in s.epochs(options.epochs):
        for image, time, noise in s.batches():
            optimizer.zero_grad()
            functional.mse_loss(model(image, time), noise).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            ema.update_parameters(model)
        error = s.evaluate(lambda batch: {"loss": (ema(*batch[:2]) - batch[2]).square().mean((1, 2, 3)).sum()})
        if s.is_main:
            print(f"epoch {epoch + 1}: {error['loss']:.4f} with the averaged model", flush=True)
    s.finish(error)


if __name__ == "__main__":
    main()
