"""What tests of elastic training share: their script, what it leaves behind, and what has to be the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.elastic.coordinator import HERE, Forked, outside_slurm
from tests.waiting import wait_until

SCRIPT = str(HERE / "train_digits.py")
DIGITS = 1797
#: A quarter of a minute of slow steps, and a minute and a half of very slow ones; half a second of quick ones.
EPOCHS = "6"

Line = dict[str, Any]  #: of a diary
State = dict[str, torch.Tensor]


class Static:
    """What the script ends with in one process, alone; it runs once for the same options."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._results: dict[tuple[str, ...], State] = {}

    def __call__(self, *options: str) -> State:
        if options not in self._results:
            self._results[options] = run_alone(self._folder(), SCRIPT, *options)
        return self._results[options]

    def assert_like(self, directory: Path, *options: str, tolerance: float = 1e-12) -> None:
        """A run there has ended with the same model; by default one with the options of `slow`."""
        final = torch.load(directory / "final.pt")
        assert_equal(final, self(*(options or ("--epochs", EPOCHS))), tolerance)


def slow(directory: Path) -> list[str]:
    """Options: steps are slow until there is a file `go`."""
    return ["--epochs", EPOCHS, "--step-seconds", "0.15", "--slow-until", str(directory / "go")]


def run_alone(directory: Path, script: str, *options: str) -> State:
    """A script in one process, without a daemon; the model that it ends with. `directory` is made."""
    directory.mkdir(exist_ok=True)
    log = directory / "alone.log"
    status = Forked(outside_slurm(MALLETRAIN_TEST_DIR=str(directory)), log, [script, *options]).wait(300)
    assert status == 0, log.read_text()
    final: State = torch.load(directory / "final.pt")
    return final


def diary(directory: Path) -> list[Line]:
    lines: list[Line] = []
    for path in sorted(directory.glob("diary-*.jsonl")):
        text = path.read_text()
        # (A line that is being written, over the end of a page, is seen in part.)
        lines += [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return lines


def wait_lines(directory: Path, more: int, seconds: float, what: str) -> None:
    """Until the diaries are longer by more than so many lines."""
    made = len(diary(directory))
    wait_until(lambda: len(diary(directory)) > made + more, seconds, what)


def assert_equal(left: State, right: State, tolerance: float) -> None:
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=tolerance, atol=tolerance)


def assert_every_sample_once(lines: list[Line], epochs: int, samples: int = DIGITS) -> None:
    """By the diaries: each step belongs to one epoch and the members' parts of it do not overlap; nothing twice."""
    steps = [line for line in lines if "step" in line]
    for epoch in range(epochs):
        seen = [index for line in steps if line["epoch"] == epoch for index in line["indices"]]
        assert len(seen) == len(set(seen)), f"epoch {epoch}: a sample came twice"
        assert set(seen) == set(range(samples)), f"epoch {epoch}: {samples - len(set(seen))} samples are missing"
