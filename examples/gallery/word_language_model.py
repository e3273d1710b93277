"""A language model of LSTM layers, with clipped gradients and a rate that falls when validation gets no better.

After pytorch/examples, word_language_model/main.py (https://github.com/pytorch/examples). Licence of the original:
BSD-3-Clause. Other than there, each piece of text begins with an empty hidden state: pieces are read in random order.
"""

from __future__ import annotations

import torch
from gallery_data import CHARACTERS, characters, options_of
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from malletrain import elastic


class RNNModel(nn.Module):
    """Embedding, LSTM, and a decoder with the embedding's weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(CHARACTERS, width)
        self.rnn = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(width, CHARACTERS)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output, _ = self.rnn(self.encoder(tokens))
        logits: torch.Tensor = self.decoder(output)
        return logits


def main() -> None:
    options = options_of(__doc__, batch_size=20)
    text = characters(pieces=400, context=24)
    train, validation = TensorDataset(text[:360]), TensorDataset(text[360:])
    model = RNNModel(24)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    s = elastic.Session(model, optimizer, train, batch_size=options.batch_size)
    s.state["best"] = float("inf")

    def loss_of(batch: list[torch.Tensor], reduction: str) -> torch.Tensor:
        logits = model(batch[0][:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten(), reduction=reduction)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"loss": loss_of(batch, "sum") / 24}

    for epoch in s.epochs(options.epochs):
        for batch in s.batches():
            optimizer.zero_grad()
            loss_of(batch, "mean").backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
        loss = s.evaluate(score, validation)["loss"]
        if s.is_main:
            print(f"epoch {epoch + 1}: validation loss {loss:.3f}", flush=True)
        if loss < s.state["best"]:
            s.state["best"] = loss
        else:
            optimizer.param_groups[0]["lr"] /= 4.0
    s.finish({"loss": s.state["best"]})


if __name__ == "__main__":
    main()
