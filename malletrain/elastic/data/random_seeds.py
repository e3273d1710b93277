"""Seeds the global random generators of a training process."""

from __future__ import annotations

import random
import sys

import torch


def seed_all(seed: int) -> None:
    """Seed torch's generators, Python's and, where it is loaded, numpy's."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
