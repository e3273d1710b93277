"""Searches whose trials are malleable jobs, on Optuna's studies. What a study file uses: `train`.

    from malletrain import study

    def objective(trial):
        result = study.train(trial, fit, {"lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True)}, watch="accuracy")
        return result["accuracy"]

Importing this package costs nothing: a training process on a node imports the study file, and needs no Optuna for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from malletrain.study.training import train

__all__ = ["train"]


def __getattr__(name: str) -> Any:
    if name != "train":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("malletrain.study.training").train
