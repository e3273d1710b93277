"""Studies for tests: files that are written where a test wants them, and the command that runs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from malletrain.study import storage, trial_records
from tests import forked_program

ROOT = Path(__file__).resolve().parents[2]

#: A training of a few milliseconds: two epochs of one step each, and a figure that depends on the parameter.
HEAD = """
import os, sys, time
import optuna
from malletrain import study

direction = "maximize"
sampler = optuna.samplers.RandomSampler(seed=1)


def fit(x, epochs=2, pause=0.0):
    import torch
    from torch.utils.data import TensorDataset
    from malletrain import elastic
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    s = elastic.Session(model, optimizer, TensorDataset(torch.ones(8, 1), torch.ones(8, 1)), batch_size=8)
    for epoch in s.epochs(epochs):
        for a, b in s.batches():
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
        time.sleep(pause)
        s.report(value=x * (epoch + 1))
        s.report(loss=float("nan"))  # a figure that is no number must not stop others
    s.finish({"value": x * epochs})
"""

OBJECTIVE = """
def objective(trial):
    x = trial.suggest_float("x", 0.0, 1.0)
    return study.train(trial, fit, {"x": x}, watch="value", samples_per_step=8)["value"]
"""


def write(folder: Path, *parts: str, name: str = "small") -> Path:
    """A study file of the parts."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text("".join(parts))
    return path


def command(verb: str, path: Path, *options: str) -> list[str]:
    return [sys.executable, "-c", "import malletrain.cli.main as m; m.main()", "study", verb, str(path), *options]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def call(verb: str, path: Path, *options: str, timeout: float = 600.0) -> forked_program.Ended:
    return run(["study", verb, str(path), *options], path.parent, timeout)


def run(words: Sequence[str], folder: Path, timeout: float = 600.0) -> forked_program.Ended:
    """`malletrain WORDS`, in a folder."""
    imports = ["malletrain.cli.study"]
    return forked_program.run(
        "malletrain.cli.main", words, env=environment(), cwd=folder, timeout=timeout, imports=imports
    )


def rows(path: Path) -> list[dict[str, Any]]:
    """The trials, as `malletrain study trials --json` lists them."""
    study = storage.load(str(storage.default_path(path)), path.stem)
    return [trial_records.row(trial) for trial in study.get_trials(deepcopy=False)]


def ended(path: Path) -> dict[str, int]:
    """How many trials ended how."""
    counted: dict[str, int] = {}
    for row in rows(path):
        counted[row["ended_as"]] = counted.get(row["ended_as"], 0) + 1
    return counted
