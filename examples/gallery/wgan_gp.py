"""A Wasserstein GAN with gradient penalty: a second derivative, and a generator that learns in every fifth step.

After eriklindernoren/PyTorch-GAN, implementations/wgan_gp/wgan_gp.py (https://github.com/eriklindernoren/PyTorch-GAN).
Licence of the original: MIT. Other than there, the noise and the places of the penalty between real and false images
are drawn with each sample, in `__getitem__`.
"""

from __future__ import annotations

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from malletrain import elastic

LATENT, CRITIC_STEPS, PENALTY = 8, 5, 10.0


class WithChances(Dataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    """Each image as a vector, with a latent vector and a number in [0, 1)."""

    def __init__(self, images: TensorDataset) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self._images[index][0].flatten(), torch.randn(LATENT), torch.rand(1)


def penalty_of(critic: nn.Module, real: torch.Tensor, false: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    between = (place * real + (1 - place) * false).requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty: torch.Tensor = ((slope.norm(dim=1) - 1) ** 2).mean()
    return penalty


def main() -> None:
    options = options_of(__doc__)
    train, _ = digits()
    generator = nn.Sequential(nn.Linear(LATENT, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.Sigmoid())
    critic = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    s = elastic.Session(
        {"generator": generator, "critic": critic}, {"generator": optimizer_g, "critic": optimizer_d},
        WithChances(train), batch_size=options.batch_size, warm_up=lambda batch: critic(generator(batch[1])),
    )  # fmt: skip

    for epoch in s.epochs(options.epochs):
        for real, noise, place in s.batches():
            generator_learns = s.steps_done % CRITIC_STEPS == 0
            with s.step(backwards=2 if generator_learns else 1):
                optimizer_d.zero_grad()
                false = generator(noise).detach()
                loss_d = critic(false).mean() - critic(real).mean() + PENALTY * penalty_of(critic, real, false, place)
                loss_d.backward()
                optimizer_d.step()
                if generator_learns:
                    optimizer_g.zero_grad()
                    (-critic(generator(noise)).mean()).backward()
                    optimizer_g.step()
        if s.is_main:
            print(f"epoch {epoch + 1}: loss of the critic {loss_d.item():.3f}", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
