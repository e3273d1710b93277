"""Images of twice the size by a sub-pixel convolution.

After pytorch/examples, super_resolution/main.py (https://github.com/pytorch/examples). Licence of the original:
BSD-3-Clause.
"""

from __future__ import annotations

import math

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.nn import functional

from malletrain import elastic


def main() -> None:
    options = options_of(__doc__)
    train, test = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8, 4, 3, padding=1), nn.PixelShuffle(2),
    )  # fmt: skip
    for layer in (model[0], model[2]):
        nn.init.orthogonal_(layer.get_parameter("weight"), nn.init.calculate_gain("relu"))
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    s = elastic.Session(model, optimizer, train, batch_size=options.batch_size,
                        warm_up=lambda batch: model(functional.avg_pool2d(batch[0], 2)))  # fmt: skip

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        error = model(functional.avg_pool2d(batch[0], 2)) - batch[0]
        return {"error": error.square().mean((1, 2, 3)).sum()}

    figures: dict[str, float] = {}
    for epoch in s.epochs(options.epochs):
        for large, _ in s.batches():
            optimizer.zero_grad()
            criterion(model(functional.avg_pool2d(large, 2)), large).backward()
            optimizer.step()
        figures = s.evaluate(score, test)
        figures["psnr"] = 10 * math.log10(1 / figures["error"])
        if s.is_main:
            print(f"epoch {epoch + 1}: {figures['psnr']:.2f} dB", flush=True)
    s.finish(figures)


if __name__ == "__main__":
    main()
