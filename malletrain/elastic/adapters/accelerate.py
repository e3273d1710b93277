"""Hugging Face accelerate: `ElasticAccelerator` in place of `Accelerator`.

Mixed precision, backward, clipping and devices are accelerate's; workers, batches and evaluation are the session's.
So call `prepare` with model and optimizer only, and take batches from the session.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.session import Session


@contextmanager
def _without_launcher() -> Iterator[None]:
    """Hide the variables of torchrun where it has started one process: accelerate would wrap models in
    DistributedDataParallel for it."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE") if os.environ.get("WORLD_SIZE") == "1" else ()
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


class ElasticAccelerator(Accelerator):
    """An Accelerator whose processes are the workers of a session; call `attach(session)` when it is made. Raises
    `ElasticError`: the script was started by `accelerate launch` or torchrun, or `gradient_accumulation_steps` is not
    1."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self._session: Session | None = None
        with _without_launcher():
            super().__init__(*args, **more)
        if super().num_processes != 1:
            raise ElasticError("one process a node: do not start this script by `accelerate launch` or torchrun")
        if self.gradient_accumulation_steps != 1:
            raise ElasticError("accumulate by step.accumulate(): gradient_accumulation_steps must be 1")

    def attach(self, session: Session) -> None:
        """Take processes and main process from `session` from now on."""
        self._session = session

    @property
    def num_processes(self) -> int:
        return 1 if self._session is None else self._session.size

    @property
    def process_index(self) -> int:
        """0 on the main worker, 1 on every other: ranks change, so scripts must not rely on them."""
        return 0 if self.is_main_process else 1

    @property
    def is_main_process(self) -> bool:
        return self._session is None or self._session.is_main

    @property
    def is_local_main_process(self) -> bool:
        return self.is_main_process

    def print(self, *args: Any, **more: Any) -> None:
        if self.is_main_process:
            print(*args, **more)

    def wait_for_everyone(self) -> None:
        """Does nothing: workers synchronise in steps only."""

    def gather(self, tensor: Any) -> Any:
        """Not supported: workers may come and go between two calls. Use `session.evaluate`. Raises `ElasticError`: a
        session is attached."""
        return self._alone("gather", tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        return self._alone("gather_for_metrics", input_data)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        return self._alone("reduce", tensor)

    def _alone(self, what: str, value: Any) -> Any:
        if self._session is not None:
            raise ElasticError(
                f"accelerator.{what}(): members may change meanwhile; use session.evaluate(metrics, data)"
            )
        return value
