"""Lightning: `ElasticStrategy` for the Trainer, and its `loader()` in place of the training data loader.

    strategy = ElasticStrategy(dataset, batch_size=64)
    trainer = Trainer(strategy=strategy, plugins=strategy.plugins(), max_epochs=20, num_sanity_val_steps=0)
    trainer.fit(module, strategy.loader())

Module, callbacks and loggers stay as they are. Lightning's loops are part of the training state: a worker that joins
continues where the others are, as Lightning does after a checkpoint within an epoch. Every worker validates on the
whole set, so that callbacks decide alike on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn

from malletrain.elastic.adapters.steps import Led, Length, Steps
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.session import Session


class ElasticStrategy(Led, SingleDeviceStrategy):
    """A strategy for one device a node and any number of nodes.

    Args:
        dataset: map-style data set to train on.
        batch_size: samples of one step, over all workers.
        device: of this process; by default the GPU if there is one.
        session: further arguments of `malletrain.elastic.Session`, such as `seed` or `virtual_shards`.

    Raises:
        ElasticError: an option of the Trainer is not supported; the message says what to change.
    """

    def __init__(self, dataset: Any, batch_size: int, device: str | None = None, **session: Any) -> None:
        super().__init__(device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
        self._dataset = dataset
        self._trainer: Any = None
        self._batch: Any = None
        self._more: dict[str, Any] = {"batch_size": batch_size, **session}

    def loader(self) -> _Loader:
        """The data loader for `trainer.fit(module, strategy.loader())`."""
        return _Loader(self, self._dataset, self._more["batch_size"])

    def plugins(self) -> list[Any]:
        """The plugins for `Trainer(plugins=...)`. They make Lightning ignore Slurm's and MPI's environment; otherwise
        it would treat a pilot as its own job, and requeue it on a signal."""
        return [LightningEnvironment()]

    # --- what Trainer calls -------------------------------------------------------------------------------------

    def setup(self, trainer: Any) -> None:
        """Make the session and join its world, once model and optimizer exist. Called by the Trainer. Raises
        `ElasticError`: an option of the Trainer is not supported; the message says what to change."""
        super().setup(trainer)
        self._trainer = trainer
        if trainer.state.fn != TrainerFn.FITTING:
            return
        module = self.lightning_module
        if module is None or not module.automatic_optimization or len(self.optimizers) != 1:
            raise ElasticError("automatic optimization with one optimizer is needed; or write the loop by hand")
        if not isinstance(trainer._accelerator_connector.cluster_environment, LightningEnvironment):
            raise ElasticError(
                "Trainer(plugins=strategy.plugins()) is needed: else Lightning handles Slurm's signals"
            )
        if trainer.accumulate_grad_batches != 1:
            raise ElasticError("accumulate_grad_batches must be 1: batch_size is that of all workers")
        if trainer.num_sanity_val_steps or trainer.max_epochs is None or trainer.max_epochs < 0:
            raise ElasticError("Trainer(num_sanity_val_steps=0, max_epochs=N) is needed: workers join in the middle")
        session = Session(module, self.optimizers[0], self._dataset, **self._more)
        session.track(lightning=_Progress(trainer))
        self._steps = Steps(session, self._dataset, trainer.max_epochs)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **more: Any) -> Any:
        """Run forward and backward until the step is committed, then the optimizer's step once."""

        def train(batch: Any) -> Any:
            self._batch = batch
            return closure()

        def repeated() -> Any:
            return self.steps.train_on(self._batch, train, lambda _: None)

        result = super().optimizer_step(optimizer, repeated, model, **more)
        loop = self._trainer.fit_loop
        if loop.restarting and self._trainer.max_steps < 0:
            # To Lightning, one that has joined goes on from a checkpoint within an epoch: at the end of that epoch it
            # would step no ReduceLROnPlateau, as the others do.
            loop.restarting = False
        return result

    def training_step(self, batch: Any, *args: Any, **more: Any) -> Any:
        """Train on this worker's current part of the batch."""
        converted = self.precision_plugin.convert_input(self._batch)
        return super().training_step(self.batch_to_device(converted), *args, **more)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        self._batch = batch

    @property
    def is_global_zero(self) -> bool:
        return self.is_main

    def on_train_end(self) -> None:
        super().on_train_end()
        figures = {name: float(value) for name, value in self._trainer.callback_metrics.items()}
        self.session.finish(figures)


class _Loader(Length):
    """A data loader that yields the session's batches."""

    def __init__(self, strategy: ElasticStrategy, dataset: Any, batch_size: int) -> None:
        super().__init__(dataset, batch_size)
        self._strategy = strategy

    def __iter__(self) -> Iterator[Any]:
        # A generator: Lightning makes an iterator before the session exists, to count the steps of the training.
        yield from self._strategy.steps


class _Progress:
    """Lightning's loops, schedulers, callbacks and precision, as part of the training state."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "loops": trainer.fit_loop.state_dict(),
            "schedulers": [config.scheduler.state_dict() for config in trainer.strategy.lr_scheduler_configs],
            "callbacks": dict(call._call_callbacks_state_dict(trainer)),
            "precision": trainer.precision_plugin.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        trainer = self._trainer
        trainer.fit_loop.load_state_dict(state["loops"])
        for config, its in zip(trainer.strategy.lr_scheduler_configs, state["schedulers"], strict=True):
            config.scheduler.load_state_dict(its)
        call._call_callbacks_load_state_dict(trainer, {"callbacks": state["callbacks"]})
        if state["precision"]:
            trainer.precision_plugin.load_state_dict(state["precision"])
