"""A small transformer that reads digits row by row, with gradient accumulation over two parts of each batch."""

from __future__ import annotations

import argparse

import torch
from digits_data import digits
from torch import nn

from malletrain import elastic


class RowReader(nn.Module):
    """A transformer whose tokens are the eight rows of an image."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.place = nn.Parameter(torch.zeros(8, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        rows = self.embed(pixels.reshape(-1, 8, 8)) + self.place
        out: torch.Tensor = self.head(self.layers(rows).mean(1))
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a step, over all workers")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    train, test = digits(image=False)
    model = RowReader(options.width, options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    s = elastic.Session(model, optimizer, train, batch_size=options.batch_size)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).sum()}

    figures: dict[str, float] = {}
    for epoch in s.epochs(options.epochs):
        for pixels, labels in s.batches():
            with s.step() as step:
                optimizer.zero_grad()
                half = len(labels) // 2
                if half:
                    with step.accumulate():  # each part is divided by the whole: parts may differ in size
                        part = nn.functional.cross_entropy(model(pixels[:half]), labels[:half], reduction="sum")
                        (part / len(labels)).backward()
                rest = nn.functional.cross_entropy(model(pixels[half:]), labels[half:], reduction="sum")
                (rest / len(labels)).backward()
                optimizer.step()
        if epoch % 5 == 4 or epoch == options.epochs - 1:
            figures = s.evaluate(score, test)
            s.report(**figures)
            if s.is_main:
                print(f"epoch {epoch + 1}: {figures} on {s.size} nodes", flush=True)
    s.finish(figures)


if __name__ == "__main__":
    main()
