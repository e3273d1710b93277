"""A GPT: warm-up and cosine by step, weight decay for matrices only, clipped gradients, accumulation in two parts.

After karpathy/nanoGPT, train.py and model.py (https://github.com/karpathy/nanoGPT). Licence of the original: MIT.
Other than there, pieces of text are the samples of a data set, not drawn at random places (`get_batch`).
"""

from __future__ import annotations

import math

import torch
from gallery_data import CHARACTERS, characters, options_of
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from malletrain import elastic

CONTEXT, WIDTH, HEADS, PARTS = 16, 24, 2, 2
WARM_UP, RATE, MIN_RATE = 20, 3e-3, 3e-4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attention(self.ln_1(x)).unflatten(2, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).flatten(2))
        out: torch.Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(CHARACTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHARACTERS, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        logits: torch.Tensor = self.lm_head(self.ln_f(self.blocks(x)))
        return logits


def get_lr(it: int, last: int) -> float:
    if it < WARM_UP:
        return RATE * (it + 1) / (WARM_UP + 1)
    return MIN_RATE + 0.5 * (1 + math.cos(math.pi * (it - WARM_UP) / (last - WARM_UP))) * (RATE - MIN_RATE)


def main() -> None:
    options = options_of(__doc__, batch_size=24)
    text = characters(pieces=480, context=CONTEXT)
    model = GPT()
    matrices = [each for each in model.parameters() if each.dim() >= 2]
    others = [each for each in model.parameters() if each.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
    s = elastic.Session(model, optimizer, TensorDataset(text), batch_size=options.batch_size,
                        warm_up=lambda batch: model(batch[0][:, :-1]))  # fmt: skip
    for epoch in s.epochs(options.epochs):
        for (pieces,) in s.batches():
            with s.step() as step:
                for group in optimizer.param_groups:
                    group["lr"] = get_lr(s.steps_done, 20 * options.epochs)
                losses, total = [], 0.0
                for part in pieces.tensor_split(PARTS):
                    logits = model(part[:, :-1]).flatten(0, 1)
                    loss = functional.cross_entropy(logits, part[:, 1:].flatten(), reduction="sum")
                    losses.append(loss / (len(pieces) * CONTEXT))
                    total += losses[-1].item()
                for loss in losses[:-1]:
                    with step.accumulate():
                        loss.backward()
                losses[-1].backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        if s.is_main:
            print(f"epoch {epoch + 1}: {total:.3f} at step {s.steps_done}", flush=True)
    s.finish()


if __name__ == "__main__":
    main()
