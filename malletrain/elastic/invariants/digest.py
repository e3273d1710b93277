"""Digests of tensors: exact integers made from the bits, each weighted by its place, summed where the tensor lies."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch

#: Replicas on unlike processors count as equal up to rounding where no element differs from their mean by more than
#: this many units of rounding, relative to the tensor's root mean square.
ROUNDING_UNITS = 1000.0

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

#: Words of a row; the weight of a word is its column plus `_ROW` times its row, so every place has its own.
_COLUMNS, _ROW = 1024, 0x9E3779B1


@dataclass(frozen=True, slots=True)
class Digests:
    """Digests (`sums`, int64) of named tensors, which are not copied."""

    names: list[str]
    tensors: list[torch.Tensor]
    sums: torch.Tensor

    @property
    def total(self) -> int:
        """One positive number for all; 0 without tensors."""
        if not self.names:
            return 0
        # The place of a tensor counts: two of one shape that are exchanged differ.
        places = torch.arange(1, len(self.names) + 1, dtype=torch.int64) * _ROW
        return 1 + (int((self.sums * places).sum()) & (2**62 - 1))


def digest_of_text(text: str) -> int:
    """A positive 62-bit hash."""
    return 1 + (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 2)


def digest(named: Iterable[tuple[str, torch.Tensor]]) -> Digests:
    """Digest tensors. On a GPU this waits once, for all of them."""
    pairs = [(name, tensor.detach()) for name, tensor in named]
    sums = [_weighted(_bits(tensor)) for _, tensor in pairs]
    out = torch.zeros(len(pairs), dtype=torch.int64)
    for device in {each.device for each in sums}:
        places = [place for place, each in enumerate(sums) if each.device == device]
        out[places] = torch.stack([sums[place] for place in places]).cpu()
    return Digests([name for name, _ in pairs], [tensor for _, tensor in pairs], out)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype is torch.bool:
        return tensor.reshape(-1)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    flat, size = tensor.reshape(-1), tensor.element_size()
    # Wide integers, where the length allows it: they are summed several times as fast.
    whole = flat.numel() * size % 8 == 0 and flat.storage_offset() * size % 8 == 0
    return flat.view(torch.int64 if whole else _BITS[size])


def _weighted(words: torch.Tensor) -> torch.Tensor:
    """The sum of all words times the weight of each one's place, modulo 2^64, without a copy of them."""
    rows, rest = divmod(words.numel(), _COLUMNS)
    columns = _places(words.device)
    total = (words[rows * _COLUMNS :] * (columns[:rest] + rows * _ROW)).sum()
    if rows:
        table = words[: rows * _COLUMNS].view(rows, _COLUMNS)
        by_row = table.sum(1, dtype=torch.int64) * torch.arange(rows, device=words.device)
        total = total + (table.sum(0, dtype=torch.int64) * columns).sum() + by_row.sum() * _ROW
    return total


@functools.cache
def _places(device: torch.device) -> torch.Tensor:
    return torch.arange(1, _COLUMNS + 1, dtype=torch.int64, device=device)


def exceeds_rounding(tensor: torch.Tensor, mean: torch.Tensor) -> bool:
    """Whether a replica's tensor differs from the mean of all replicas' (float64) by more than rounding."""
    if not tensor.dtype.is_floating_point:
        return True
    mine = tensor.detach().to(mean)
    limit = ROUNDING_UNITS * torch.finfo(tensor.dtype).eps * float(mean.square().mean().sqrt())
    return not float((mine - mean).abs().max()) <= limit  # nan is beyond any limit
