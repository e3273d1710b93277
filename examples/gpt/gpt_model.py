"""A GPT in the manner of nanoGPT, and text to train it on."""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics  # some 700 KB of English in every Python

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.before(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        result: torch.Tensor = x + self.mlp(self.between(x))
        return result


class GPT(nn.Module):
    """GPT-2's small size is `GPT(50304, 1024, 768, 12, 12)`: 124 million parameters."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0.0, 0.02 / (2 * layers) ** 0.5 if "out.weight" in name else 0.02)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        x = self.tokens(indices) + self.places(torch.arange(indices.shape[1], device=indices.device))
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out


class Text(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pieces of a text, byte by byte: `context` bytes, and the same ones a place further on.

    Args:
        path: a file; None for the topics of Python's own help.
        part: `train`, or `test` for its last tenth.
    """

    def __init__(self, path: str | None, context: int, part: str) -> None:
        text = Path(path).read_bytes() if path else "".join(topics.values()).encode()
        cut = len(text) * 9 // 10
        text = text[:cut] if part == "train" else text[cut:]
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.context = context

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        piece = self.bytes[index * self.context : (index + 1) * self.context + 1].long()
        return piece[:-1], piece[1:]
