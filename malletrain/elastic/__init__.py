"""The elastic runtime for training scripts: `from malletrain import elastic; s = elastic.Session(...)`.

The names below are the public interface. Importing the package is cheap: torch is imported with the first name that
needs it. The garbage collector is off while this package imports: it would go through torch's objects again and
again, and find nothing.
"""

from __future__ import annotations

import gc
import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from malletrain.elastic.adapters.ddp import ddp as ddp
    from malletrain.elastic.comm.mpi_group import mpi_world as mpi_world
    from malletrain.elastic.comm.static_rendezvous import environment_world as environment_world
    from malletrain.elastic.data.batch_size import Chosen as Chosen
    from malletrain.elastic.data.streams import Streams as Streams
    from malletrain.elastic.errors import ElasticError as ElasticError
    from malletrain.elastic.gradients.learning_rate import LearningRate as LearningRate
    from malletrain.elastic.gradients.sync_batchnorm import sync_batchnorm as sync_batchnorm
    from malletrain.elastic.items import Items as Items
    from malletrain.elastic.runtime import Options as Options
    from malletrain.elastic.session import Session as Session

#: Environment variable: the descriptor from which the script's process reads the daemon's welcome, a secret.
WELCOME_FD = "MALLETRAIN_WELCOME_FD"

#: Environment variable: the process id of elastic.launch, for the processes of its script.
LAUNCHER = "MALLETRAIN_LAUNCHER"

_HOMES = {
    "Chosen": "malletrain.elastic.data.batch_size",
    "ElasticError": "malletrain.elastic.errors",
    "Items": "malletrain.elastic.items",
    "LearningRate": "malletrain.elastic.gradients.learning_rate",
    "Options": "malletrain.elastic.runtime",
    "Session": "malletrain.elastic.session",
    "Streams": "malletrain.elastic.data.streams",
    "ddp": "malletrain.elastic.adapters.ddp",
    "environment_world": "malletrain.elastic.comm.static_rendezvous",
    "mpi_world": "malletrain.elastic.comm.mpi_group",
    "sync_batchnorm": "malletrain.elastic.gradients.sync_batchnorm",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    was_on = gc.isenabled()
    gc.disable()
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    finally:
        if was_on:
            gc.enable()


if WELCOME_FD in os.environ:
    importlib.import_module("malletrain.elastic.launch.hang_watch").watch_for_session()
