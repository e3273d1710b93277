"""The elastic runtime: what a training script uses. `from malletrain import elastic; s = elastic.Session(...)`.

Importing this package costs nothing; torch is loaded with the first name that needs it. Where torch is loaded
already, and in a pilot's workers, its compiler is kept from loading before something is compiled (see late_compiler).
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from malletrain.elastic.data.batch_size import Chosen, PerWorker
    from malletrain.elastic.errors import ElasticError
    from malletrain.elastic.gradients.learning_rate import LearningRate, Schedule
    from malletrain.elastic.gradients.sync_batchnorm import sync_batchnorm
    from malletrain.elastic.session import Session

__all__ = ["Chosen", "ElasticError", "LearningRate", "PerWorker", "Schedule", "Session", "sync_batchnorm"]

#: Names the file descriptor on which elastic.launch left the daemon's welcome, a secret, for the script's process.
WELCOME_FD = "MALLETRAIN_WELCOME_FD"

#: Names the process of elastic.launch, for the processes of its script.
LAUNCHER = "MALLETRAIN_LAUNCHER"

_HOMES = {
    "Chosen": "malletrain.elastic.data.batch_size",
    "ElasticError": "malletrain.elastic.errors",
    "LearningRate": "malletrain.elastic.gradients.learning_rate",
    "PerWorker": "malletrain.elastic.data.batch_size",
    "Schedule": "malletrain.elastic.gradients.learning_rate",
    "Session": "malletrain.elastic.session",
    "sync_batchnorm": "malletrain.elastic.gradients.sync_batchnorm",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


if "torch" in sys.modules or WELCOME_FD in os.environ:
    importlib.import_module("malletrain.elastic.launch.lazy_dynamo").defer_import()
