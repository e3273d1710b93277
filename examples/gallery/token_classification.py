"""Token classification with a transformer: sentences of different lengths, whose filling has the target -100.

After huggingface/transformers, examples/pytorch/token-classification/run_ner_no_trainer.py
(https://github.com/huggingface/transformers). Licence of the original: Apache-2.0.
The loss is a mean over the targets that count, so the session gets the number that this worker has.
"""

from __future__ import annotations

import torch
from gallery_data import CHARACTERS, characters, options_of
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from malletrain import elastic

IGNORED = -100
KINDS = 4  # vowel, consonant, digit, anything else


class Sentences(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pieces of text of 6 to 20 characters, and the kind of each character."""

    def __init__(self) -> None:
        self._text = characters(pieces=480, context=19)
        kinds = [0 if chr(c).lower() in "aeiou" else 1 if chr(c).isalpha() else 2 if chr(c).isdigit() else 3
                 for c in range(CHARACTERS)]  # fmt: skip
        self._kinds = torch.tensor(kinds)

    def __len__(self) -> int:
        return len(self._text)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self._text[index, : 6 + index % 15]
        return tokens, self._kinds[tokens]


def collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, labels = [first for first, _ in samples], [second for _, second in samples]
    return pad_sequence(tokens, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=IGNORED)


class Tagger(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(CHARACTERS, width), nn.Linear(width, KINDS)
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layer(self.embed(tokens), src_key_padding_mask=tokens == 0))
        return logits


def main() -> None:
    options = options_of(__doc__, batch_size=32)
    model = Tagger(16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    steps = options.epochs * 15
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    s = elastic.Session(model, optimizer, Sentences(), batch_size=options.batch_size, collate=collate)
    s.track(scheduler=scheduler)
    for epoch in s.epochs(options.epochs):
        for tokens, labels in s.batches():
            with s.step(weight=(labels != IGNORED).sum()):
                logits = model(tokens)
                loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
                loss.backward()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        if s.is_main:
            print(f"epoch {epoch + 1}: {loss.item():.4f}", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
