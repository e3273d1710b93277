"""Seeds of the global generators, which every step sets."""

from __future__ import annotations

import os
import random
import traceback

import numpy as np
import pytest
import torch

from malletrain.elastic.data.random_seeds import kept_random_state, seed_all


def _draws() -> tuple[list[float], float, float]:
    return torch.rand(3).tolist(), random.random(), float(np.random.random())


def test_a_seed_is_that_of_torch_and_of_python_and_numpy() -> None:
    with kept_random_state():
        torch.manual_seed(2**60 + 7)
        random.seed(2**60 + 7)
        np.random.seed((2**60 + 7) % 2**32)
        wanted = _draws()
        seed_all(2**60 + 7)
        assert _draws() == wanted


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is seeded by torch")
def test_seeding_asks_no_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources of a script on a cluster are on a file system that all nodes share."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a stack is formatted, or a file looked at, in every step")

    with kept_random_state():
        seed_all(1)
        monkeypatch.setattr(os, "stat", refuse)
        monkeypatch.setattr(traceback, "format_stack", refuse)
        seed_all(2)
