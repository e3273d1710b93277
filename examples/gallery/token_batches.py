"""Batches by number of tokens: a sample is a padded batch of lines of one length, with at most so many tokens.

After harvardnlp/annotated-transformer, batch_size_fn and run_epoch
(https://github.com/harvardnlp/annotated-transformer). Licence of the original: MIT.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pydoc_data.topics import topics

import torch
from gallery_data import CHARACTERS, options_of
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from malletrain import elastic

MAX_TOKENS, PADDING = 160, 0


def lines() -> list[torch.Tensor]:
    """Lines of text as numbers, longest last."""
    text = "\n".join(topics[name] for name in sorted(topics)[:12])
    kept = [line.encode("ascii", "replace") for line in textwrap.dedent(text).splitlines() if len(line.strip()) > 3]
    return [torch.frombuffer(bytearray(line), dtype=torch.uint8).long() for line in sorted(kept, key=len)]


class TokenBatches(Dataset[torch.Tensor]):
    """Numbers of shape (lines, length), with at most `MAX_TOKENS` of them and the rest `PADDING`."""

    def __init__(self, given: list[torch.Tensor]) -> None:
        self._batches = list(self._pack(given))

    @staticmethod
    def _pack(given: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        open_ones: list[torch.Tensor] = []
        for line in given:
            if open_ones and (len(open_ones) + 1) * len(line) > MAX_TOKENS:
                yield pad_sequence(open_ones, batch_first=True, padding_value=PADDING)
                open_ones = []
            open_ones.append(line)
        yield pad_sequence(open_ones, batch_first=True, padding_value=PADDING)

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._batches[index]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 16, padding_idx=PADDING)
        self.recurrent = nn.GRU(16, 32, batch_first=True)
        self.generator = nn.Linear(32, CHARACTERS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.recurrent(self.embedding(tokens))[0]
        predicted: torch.Tensor = self.generator(hidden)
        return predicted


def loss_of(model: Model, src: torch.Tensor) -> torch.Tensor:
    """The sum over the tokens of a batch."""
    out = model(src[:, :-1]).flatten(0, 1)
    return functional.cross_entropy(out, src[:, 1:].flatten(), ignore_index=PADDING, reduction="sum")


def main() -> None:
    options = options_of(__doc__, batch_size=6)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    s = elastic.Session(
        model, optimizer, TokenBatches(lines()), batch_size=options.batch_size, collate=list,
        warm_up=lambda batches: model(batches[0]),
    )  # fmt: skip
    for epoch in s.epochs(options.epochs):
        total = 0.0
        for batches in s.batches():
            ntokens = sum((batch[:, 1:] != PADDING).sum() for batch in batches)
            with s.step(weight=ntokens):
                optimizer.zero_grad()
                loss = sum(loss_of(model, batch) for batch in batches) / ntokens
                loss.backward()
                optimizer.step()
            total += loss.item()
        if s.is_main:
            print(f"epoch {epoch + 1}: loss {total / (s.steps_done / (epoch + 1)):.4f} a token", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
