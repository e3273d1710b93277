"""What few sessions need: `Session(..., options=elastic.Options(...))`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from malletrain.elastic.comm.group import Group
from malletrain.elastic.gradients.learning_rate import LearningRate


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The rarer terms of a session.

    Attributes:
        order: called with an epoch; returns every index of the data set once, the same on every worker: a list of
            indices, or of batches, each a list of at most `batch_size` indices. For batches of samples of similar
            length, or a curriculum. Default: a random order, or with `shuffle=False` as they lie.
        learning_rate: how the learning rate follows a batch that changes. Default: it does not.
        noise_scale: whether to measure the gradient noise scale. Default: if the batch may change.
        loaders: number of processes that load batches ahead. Default: batches are loaded between steps.
        additive_loss: whether the loss is a mean or sum of one term a sample. Pass False for contrastive losses,
            which compare samples of a batch, and for others that are no such sum (a root of a mean).
        must_be_finite: whether gradients that are nan or infinite raise an error that names the worker. Default: yes,
            unless a tracked `GradScaler` expects them.
        world: outside a pilot, the group of the processes that were started together (`elastic.environment_world`,
            `elastic.mpi_world`). Default: this process trains alone.
        checkpoint_dir: where to save the state while the job has no nodes. Default: `.malletrain/JOB` in the
            directory of submission.
        checkpoint_s: seconds between checkpoints, which are written while training goes on and used if all nodes are
            lost at once. (When nodes are given back in order, the state is saved in any case.)
        when_main: called when this worker becomes the main one, for example to open a log file.
        when_joining: called with epoch and step on a worker that joins, or resumes, a training that has begun, before
            its first step: for what the script did in earlier epochs and the training state does not hold, such as a
            stage of the data set. (Which parameters are trained, and their groups in optimizers, it is given.)
    """

    order: Callable[[int], Sequence[Any]] | None = None
    learning_rate: LearningRate | None = None
    noise_scale: bool | None = None
    loaders: int = 0
    additive_loss: bool = True
    must_be_finite: bool | None = None
    world: Group | None = None
    checkpoint_dir: str | os.PathLike[str] | None = None
    checkpoint_s: float = 600.0
    when_main: Callable[[], object] | None = None
    when_joining: Callable[[int, int], object] | None = None
