"""Hugging Face Trainer: use `ElasticTrainer` instead of `Trainer`; nothing else changes in the script.

`per_device_train_batch_size` is the batch of all workers together. Every worker evaluates the whole evaluation set,
so that all have the same metrics and stop at the same time; the main worker logs and saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from malletrain.elastic.adapters.steps import Led, Length, Steps
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.session import Session

#: The fields of TrainerState that newcomers receive.
_STATE = (
    "global_step",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
    "num_input_tokens_seen",
    "total_flos",
    "log_history",
)


class ElasticTrainer(Led, Trainer):
    """A Trainer whose workers may come and go.

    Args:
        session: further arguments of `malletrain.elastic.Session`, such as `seed` or `checkpoint_dir`.

    Raises:
        ElasticError: an argument is not supported; the message says what to change.
    """

    def __init__(self, *args: Any, session: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        if self.args.gradient_accumulation_steps != 1:
            raise ElasticError("gradient_accumulation_steps must be 1: per_device_train_batch_size is of all workers")
        if self.args.world_size != 1 or self.args.n_gpu > 1:
            raise ElasticError("one process and one GPU a node: do not start this script by torchrun or accelerate")
        # Started as by torchrun with one process, accelerate would wrap the model in DistributedDataParallel, which
        # puts this worker's own gradients in the place of the sums.
        self.accelerator.state.distributed_type = DistributedType.NO
        if self.args.max_steps > 0:
            raise ElasticError("max_steps is not supported: give num_train_epochs")
        self._more = dict(session or {})
        self.add_callback(_InStep(self))

    # --- what Trainer calls -------------------------------------------------------------------------------------

    def train(self, *args: Any, **more: Any) -> Any:
        """Train as Trainer does. The session resumes by itself, so `resume_from_checkpoint` is not accepted. Raises
        `ElasticError`: it is given."""
        if more.get("resume_from_checkpoint") or args:
            raise ElasticError("leave resume_from_checkpoint out: the session goes on where it was by itself")
        result = super().train()
        metrics = {name: value for name, value in result.metrics.items() if isinstance(value, int | float)}
        self.session.finish(metrics)
        return result

    def get_train_dataloader(self) -> Any:
        """A placeholder that has a length only; training uses the session's batches."""
        return Length(self.train_dataset, self.args.per_device_train_batch_size)

    def _prepare_for_training(self, *args: Any, **more: Any) -> tuple[Any, Any]:
        model, _ = super()._prepare_for_training(*args, **more)
        optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)
        collate = self._get_collator_with_removed_columns(self.data_collator, description="training")
        session = Session(
            self.model,
            optimizer,
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            **{"seed": self.args.seed, "collate": collate, "drop_last": self.args.dataloader_drop_last, **self._more},
        )
        session.track(scheduler=self.lr_scheduler, trainer=_TrainerState(self))
        if getattr(self.accelerator, "scaler", None) is not None:
            session.track(scaler=self.accelerator.scaler)
        self._steps = Steps(session, self.train_dataset, int(self.args.num_train_epochs))
        return model, self._steps

    def _run_epoch(self, *args: Any, **more: Any) -> None:
        if more["epoch"] >= self.session.epoch:  # skip the epochs before a newcomer joined
            super()._run_epoch(*args, **more)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """The next batch, or none if a newcomer's first epoch is over sooner."""
        batch = next(epoch_iterator, None)
        return ([] if batch is None else [batch]), None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Run forward and backward until the step is committed."""
        whole = super().training_step

        def train(batch: Any) -> torch.Tensor:
            self.current_gradient_accumulation_steps = 1
            loss: torch.Tensor = whole(model, dict(batch), self._items(batch))
            return loss

        return self.steps.train_on(inputs, train, self._weight)

    def _items(self, batch: Any) -> Any:
        return self._get_num_items_in_batch([batch], self.args.device)

    def _weight(self, batch: Any) -> int | None:
        """The number of tokens if the loss is a mean over tokens, else None."""
        counts = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        items = self._items(batch) if counts else None
        return None if items is None else int(items)

    # --- only the main worker writes ----------------------------------------------------------------------------

    def is_world_process_zero(self) -> bool:
        return self.is_main

    def is_local_process_zero(self) -> bool:
        return self.is_world_process_zero()

    def _save_checkpoint(self, *args: Any, **more: Any) -> None:
        if self.is_world_process_zero():
            super()._save_checkpoint(*args, **more)
        elif self.state.best_global_step:
            folder = f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
            self.state.best_model_checkpoint = str(Path(self.args.output_dir) / folder)

    def _load_best_model(self) -> None:
        # Not before the main worker has written it; every worker reads the same one.
        self.session.agree(True, "all")
        super()._load_best_model()

    def save_model(self, *args: Any, **more: Any) -> None:
        if self.is_world_process_zero():
            super().save_model(*args, **more)


class _TrainerState:
    """The part of `trainer.state` that is in the training state."""

    def __init__(self, trainer: ElasticTrainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        state = asdict(self._trainer.state)
        return {name: state[name] for name in _STATE if name in state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self._trainer.state, name, value)
        self._trainer._globalstep_last_logged = self._trainer.state.global_step


class _InStep(TrainerCallback):
    """Keeps Trainer's progress and main process right on workers that join during training."""

    def __init__(self, trainer: ElasticTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        session = self._trainer.session
        state.is_world_process_zero = state.is_local_process_zero = session.is_main
        state.epoch = session.steps_done / len(self._trainer.get_train_dataloader())
