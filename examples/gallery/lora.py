"""Fine-tuning by low-rank matrices beside the frozen weights of a model that has been trained for something else.

After microsoft/LoRA, loralib/layers.py and examples/NLG (https://github.com/microsoft/LoRA). Licence of the original:
MIT.
"""

from __future__ import annotations

import torch
from gallery_data import digits, options_of
from sklearn.decomposition import PCA
from torch import nn
from torch.nn import functional

from malletrain import elastic

RANK, ALPHA = 4, 8


class LoRALinear(nn.Module):
    """A frozen linear layer, and a trained product of two small matrices beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x) + (x @ self.lora_a.T @ self.lora_b.T) * (ALPHA / RANK)
        return out


def pretrained(pixels: torch.Tensor) -> tuple[nn.Linear, nn.Linear]:
    """Two layers: the principal components of the images, and random features of them."""
    first, second = nn.Linear(64, 32), nn.Linear(32, 64)
    components = PCA(32, svd_solver="full").fit(pixels.flatten(1).numpy()).components_
    first.weight.data.copy_(torch.tensor(components))
    return first, second


def main() -> None:
    options = options_of(__doc__)
    train, test = digits()
    first, second = pretrained(train.tensors[0])
    model = nn.Sequential(
        nn.Flatten(), LoRALinear(first), nn.ReLU(), LoRALinear(second), nn.ReLU(), nn.Linear(64, 10)
    )
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3)
    s = elastic.Session(model, optimizer, train, batch_size=options.batch_size)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).sum()}

    figures: dict[str, float] = {}
    for epoch in s.epochs(options.epochs):
        for inputs, targets in s.batches():
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        figures = s.evaluate(score, test)
        if s.is_main:
            print(f"epoch {epoch + 1}: {figures}", flush=True)
    s.finish(figures)


if __name__ == "__main__":
    main()
