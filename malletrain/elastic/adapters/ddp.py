"""For scripts written for DistributedDataParallel: the loop over a DataLoader stays as it is.

    loader = DataLoader(train, batch_size=256, shuffle=True)       # of all workers together
    model, loader = elastic.ddp(model, optimizer, loader)
    for epoch in loader.epochs(90):
        for images, target in loader:
            optimizer.zero_grad()
            loss_function(model(images), target).backward()
            optimizer.step()
    loader.session.finish()

A step begins as the loader yields a batch and ends as it is asked for the next one. Where a node is lost meanwhile,
`backward()` returns with gradients of zero, the script goes on to the end of the loop's body, and the loader takes
the training state back to where it was and yields the batch again. So the body may run again for a batch: what it
changes must be part of the training state (`loader.session.state`, `loader.session.track`), as for a worker that
joins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed
from torch.utils.data import DataLoader

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.launch.worker_start import as_module
from malletrain.elastic.session import Session
from malletrain.elastic.step import Step

#: Arguments of a Session that such a loop cannot use.
_REFUSED = {
    "virtual_shards": "a loop over shards needs `with s.step():`, so use Session",
    "dataset": "the loader has the data set",
}


class ElasticParallel(torch.nn.Module):
    """The model, in the place of a DistributedDataParallel; made by `ddp`.

    Attributes:
        module: the model itself.
    """

    def __init__(self, module: torch.nn.Module, session: Session) -> None:
        super().__init__()
        self.module = module
        object.__setattr__(self, "_session", session)  # it is no part of the model

    def forward(self, *args: Any, **more: Any) -> Any:
        return self.module(*args, **more)

    def no_sync(self) -> AbstractContextManager[None]:
        """A context manager around every `backward()` of a batch but the last, for a batch that is taken in parts.

        It is not for accumulating over several batches of the loader: make the loader's batch larger instead.
        """
        session: Session = self.__dict__["_session"]
        return session.step().accumulate()


class ElasticLoader:
    """The batches of a session, in the place of a DataLoader; made by `ddp`. A step is one run of the loop's body.

    Attributes:
        session: the session, for `track`, `state`, `evaluate`, `finish` and whatever else it has.
        dataset, batch_size: as of the DataLoader.
    """

    def __init__(self, session: Session, dataset: Any, backwards: int) -> None:
        self.session = session
        self.dataset = dataset
        self.batch_size = session.info.batch_size
        self._runtime = session._runtime
        self._backwards = backwards
        self._step: Step | None = None
        self._runtime.reducer.on_abort = self._keep_state

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self._runtime.batch_ends()) or math.ceil(
            self._runtime.sampler.epoch_length / self.session.info.batch_size
        )

    def epochs(self, count: int) -> Iterator[int]:
        """Iterate over the epochs from the present one to `count` - 1."""
        for epoch in self.session.epochs(count):
            yield epoch
            self._end_body()

    def __iter__(self) -> Iterator[Any]:
        """This worker's parts of the remaining batches of the epoch.

        Raises:
            ElasticError: a batch was not trained on: the body made no `backward()`.
            Released: this worker's part is over.
        """
        self._end_body()
        for batch in self.session.batches():
            self._step = step = Step(self._runtime, None, self._backwards)
            step.__enter__()
            # A signal must not end the body in the middle: the step under way is finished first.
            self._runtime.lifecycle.step_began = None
            try:
                yield batch
            except GeneratorExit:  # by `break`: the step is over if it is committed
                if self._step is step and self._runtime.committed:
                    self._end_body()
                raise
            self._end_body()

    def _end_body(self) -> None:
        """The next batch is asked for, or the epoch is over. A step that was aborted is undone, to be repeated."""
        step, self._step = self._step, None
        if step is None:
            return
        aborted = self._runtime.reducer.aborted
        step.__exit__(None if aborted is None else type(aborted), aborted, None)

    def _keep_state(self) -> None:
        """The step is void: nothing of the training state has changed yet, but the body goes on."""
        if self._step is not None:
            self._step.keep_state()


def ddp(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | Mapping[str, torch.optim.Optimizer],
    loader: DataLoader[Any],
    *,
    backwards: int = 1,
    **settings: Any,
) -> tuple[ElasticParallel, ElasticLoader]:
    """Make a script that was written for DistributedDataParallel malleable.

    Args:
        model: not wrapped in DistributedDataParallel.
        optimizer: of its parameters; or several.
        loader: a DataLoader whose `batch_size` is that of all workers together, without a DistributedSampler.
        backwards: number of `backward()` calls a batch, each with an optimizer's step after it.
        settings: further arguments of `Session`.

    Returns:
        The model and the loader to use from here on.

    Raises:
        ElasticError: something of torch.distributed is still in use, or the loader orders its samples in a way that
            cannot be shared; the message says what to change.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise ElasticError(
            "torch.distributed.init_process_group has been called: its group cannot change its size. Leave it out; "
            "loader.session has is_main, size and agree(tensor, 'sum') for dist's rank, size and all_reduce"
        )
    for name, why in _REFUSED.items():
        if name in settings:
            raise ElasticError(f"elastic.ddp(..., {name}=...): {why}")
    plain = as_module(model)
    synced = next((each for each in plain.modules() if isinstance(each, torch.nn.SyncBatchNorm)), None)
    if synced is not None:
        raise ElasticError(
            "torch.nn.SyncBatchNorm needs a process group of torch.distributed: model = elastic.sync_batchnorm(model)"
        )
    if not isinstance(loader, DataLoader):
        raise ElasticError(
            f"elastic.ddp(model, optimizer, loader): the loader must be a DataLoader, not {type(loader).__name__}"
        )
    session = Session(plain, optimizer, loader, **settings)
    return ElasticParallel(plain, session), ElasticLoader(session, loader.dataset, backwards)
