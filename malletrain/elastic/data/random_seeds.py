"""The global random generators of a training process."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: In place of a rank: the seed of what is drawn between two steps.
BETWEEN_STEPS = -1


def seed_all(seed: int) -> None:
    """Seed torch's generators, Python's and, where it is loaded, numpy's."""
    seed_torch(seed)
    seed_plain(seed)


def seed_torch(seed: int) -> None:
    """Seed torch's generators."""
    # torch.manual_seed formats a stack for each kind of device that is not in use, and asks the file system for
    # every source file in it: .2 ms and some thirty calls of stat(), at each step.
    device = _device_in_use()
    if device is None:
        torch.default_generator.manual_seed(seed)
    elif device == "cuda" and torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@functools.cache
def _device_in_use() -> str | None:
    """The kind of this machine's accelerator; None without one."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if device is None else device.type


def seed_plain(seed: int) -> None:
    """Seed Python's generator and, where it is loaded, numpy's."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def seed_sample(seed: int, *further: torch.Generator) -> None:
    """Seed the generators that a data set draws from: torch's of the CPU, Python's and, where it is loaded, numpy's;
    and further ones."""
    for generator in (torch.default_generator, *further):
        generator.manual_seed(seed)
    seed_plain(seed)


@contextmanager
def kept_torch_state(*further: torch.Generator) -> Iterator[None]:
    """A context manager after which torch's generator of the CPU, and further ones, are as before."""
    generators = [torch.default_generator, *further]
    before = [each.get_state() for each in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


@contextmanager
def kept_random_state(*further: torch.Generator) -> Iterator[None]:
    """A context manager after which also Python's generator and numpy's are as before. (Numpy's state is copied
    number by number, in .2 ms.)"""
    python_before, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_before = numpy.random.get_state() if numpy is not None else None
    with kept_torch_state(*further):
        try:
            yield
        finally:
            random.setstate(python_before)
            if numpy is not None:
                numpy.random.set_state(numpy_before)
