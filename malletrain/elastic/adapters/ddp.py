"""For scripts written for DistributedDataParallel: the loop over a DataLoader stays as it is.

    loader = DataLoader(train, batch_size=256, shuffle=True)       # of all workers together
    model, loader = elastic.ddp(model, optimizer, loader)
    for epoch in loader.epochs(90):
        for images, target in loader:
            optimizer.zero_grad()
            loss_function(model(images), target).backward()
            optimizer.step()
    loader.session.finish()

A run of the loop's body is a step, as in `Session.batches`.
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


class ElasticParallel(torch.nn.Module):
    """The model, in the place of a DistributedDataParallel; made by `ddp`.

    Attributes:
        module: the model itself.
    """

    def __init__(self, module: torch.nn.Module, session: Session) -> None:
        super().__init__()
        self.module = module
        self._session = session

    def forward(self, *args: Any, **more: Any) -> Any:
        return self.module(*args, **more)

    def no_sync(self) -> AbstractContextManager[None]:
        """A context manager around every `backward()` of a batch but the last, for a batch that is taken in parts.

        It is not for accumulating over several batches of the loader: make the loader's batch larger instead.
        """
        return self._session.step().accumulate()


class ElasticLoader:
    """The batches of a session, in the place of a DataLoader; made by `ddp`.

    Attributes:
        session: the session, for `track`, `state`, `evaluate`, `finish` and whatever else it has.
        dataset, batch_size: as of the DataLoader.
    """

    def __init__(self, session: Session, dataset: Any) -> None:
        self.session = session
        self.dataset = dataset
        self.batch_size = session.info.batch_size

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        r = self.session._runtime
        return len(r.batch_ends()) or math.ceil(r.sampler.epoch_length / self.session.info.batch_size)

    def epochs(self, count: int) -> Iterator[int]:
        """Iterate over the epochs from the present one to `count` - 1."""
        return self.session.epochs(count)

    def __iter__(self) -> Iterator[Any]:
        """This worker's parts of the remaining batches of the epoch; see `Session.batches`."""
        return self.session.batches()


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
    session._runtime.backwards = backwards
    return ElasticParallel(plain, session), ElasticLoader(session, loader.dataset)
