"""A variational autoencoder. Its loss is a sum over samples and pixels, and a latent is sampled in each step.

After pytorch/examples, vae/main.py (https://github.com/pytorch/examples). Licence of the original: BSD-3-Clause.
The sampled latent depends on the worker, so the result is like that of a static run, not equal to it. Where equality
matters, `virtual_shards=N` gives it (see mnist.py).
"""

from __future__ import annotations

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.nn import functional

from malletrain import elastic


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(48, 6), nn.Linear(48, 6)
        self.decoder = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 64), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        latent = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(latent), mean, log_variance


def loss_of(rebuilt: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
    error = functional.binary_cross_entropy(rebuilt, x.flatten(1), reduction="sum")
    return error - 0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())


def main() -> None:
    options = options_of(__doc__)
    train, test = digits()
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    s = elastic.Session(model, optimizer, train, batch_size=options.batch_size, reduction="sum")

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        rebuilt, mean, log_variance = model(batch[0])
        return {"loss": loss_of(rebuilt, batch[0], mean, log_variance)}

    figures: dict[str, float] = {}
    for epoch in s.epochs(options.epochs):
        for data, _ in s.batches():
            optimizer.zero_grad()
            rebuilt, mean, log_variance = model(data)
            loss_of(rebuilt, data, mean, log_variance).backward()
            optimizer.step()
        figures = s.evaluate(score, test)
        if s.is_main:
            print(f"epoch {epoch + 1}: {figures}", flush=True)
    s.finish(figures)


if __name__ == "__main__":
    main()
