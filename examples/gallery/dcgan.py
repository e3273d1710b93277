"""A generative adversarial network of convolutions: two models, two optimizers, three backward passes a batch.

After pytorch/examples, dcgan/main.py (https://github.com/pytorch/examples). Licence of the original: BSD-3-Clause.
Other than there, the noise is drawn with each sample, in `__getitem__`, and BatchNorm sees the batch of all workers.
"""

from __future__ import annotations

import torch
from gallery_data import WithNoise, digits, options_of
from torch import nn

from malletrain import elastic

LATENT = 10


def main() -> None:
    options = options_of(__doc__)
    train, _ = digits()
    generator = nn.Sequential(
        nn.ConvTranspose2d(LATENT, 16, 4, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1), nn.Sigmoid(),
    )  # fmt: skip
    discriminator = nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2),
        nn.Conv2d(16, 1, 4), nn.Flatten(0),
    )  # fmt: skip
    elastic.sync_batchnorm(generator)
    elastic.sync_batchnorm(discriminator)
    criterion = nn.BCEWithLogitsLoss()
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    s = elastic.Session(
        [discriminator, generator], [optimizer_d, optimizer_g], WithNoise(train, LATENT, 1, 1),
        batch_size=options.batch_size, warm_up=lambda batch: discriminator(generator(batch[2])),
    )  # fmt: skip

    for epoch in s.epochs(options.epochs):
        for real, _, noise in s.batches():
            with s.step(backwards=2) as step:
                # The discriminator: the real images and the false ones are parts of one loss.
                optimizer_d.zero_grad()
                with step.accumulate():
                    error_real = criterion(discriminator(real), torch.ones(len(real)))
                    error_real.backward()
                false = generator(noise)
                error_false = criterion(discriminator(false.detach()), torch.zeros(len(real)))
                error_false.backward()
                optimizer_d.step()
                # The generator.
                optimizer_g.zero_grad()
                error_g = criterion(discriminator(false), torch.ones(len(real)))
                error_g.backward()
                optimizer_g.step()
            if s.is_main and s.steps_done % 20 == 0:
                error_d = error_real.item() + error_false.item()
                print(f"epoch {epoch + 1}, step {s.steps_done}: {error_d:.3f} {error_g.item():.3f}", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
