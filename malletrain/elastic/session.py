"""The interface of a training script.

    s = elastic.Session(model, optimizer, loader)
    for epoch in s.epochs(10):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                loss = loss_function(model(x), y)
                loss.backward()
                optimizer.step()
    s.finish({"loss": loss.item()})

The loader's batch is that of all workers together. When `backward` returns, the gradients are those of the whole
batch and the step is committed. If a peer is lost before that, `backward` does not return: the body of `step` is
left, and `batches` yields the same batch again.
"""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader

from malletrain.elastic.agree import How, agree, all_reduce
from malletrain.elastic.comm.group import Group
from malletrain.elastic.data.batch_size import BatchRule
from malletrain.elastic.data.loader_terms import loader_terms
from malletrain.elastic.data.virtual_shards import ShardedBatch
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.evaluate import evaluate
from malletrain.elastic.gradients.comm_hook import CommHook
from malletrain.elastic.gradients.learning_rate import LearningRate
from malletrain.elastic.launch.one_session import require_one
from malletrain.elastic.launch.worker_start import as_module, as_optimizers
from malletrain.elastic.runtime import Runtime, Settings
from malletrain.elastic.state.shared_values import SharedValues
from malletrain.elastic.state.training_state import Stateful
from malletrain.elastic.step import Step, checked_weight
from malletrain.wire import messages


class Session:
    """Training on a number of workers that may change between any two steps.

    Args:
        model: any module, not wrapped in `DistributedDataParallel`; or several, as a list or a dictionary.
        optimizer: of the model's parameters; or several, as a list or a dictionary.
        dataset: a `DataLoader` whose `batch_size` is that of all workers together (what it says of order, collate
            function and processes then holds); a map-style data set; or `elastic.Streams` of data that can only be
            read from start to end.
        batch_size: samples of one step over all workers: a number, or a rule (`PerWorker`, `Chosen`). Default: the
            loader's.
        learning_rate: how the learning rate follows a batch that changes. Default: it does not.
        noise_scale: whether to measure the gradient noise scale. Default: if the batch may change.
        seed: of sample order, augmentation and dropout.
        order: called with an epoch; returns every index of the data set once, the same on every worker: a list of
            indices, or of batches, each a list of at most `batch_size` indices. For batches of samples of similar
            length, or a curriculum. Default: a random order, or with `shuffle=False` as they lie.
        shuffle, drop_last, collate: as in `torch.utils.data.DataLoader`.
        reduction: whether the script's loss is the `mean` or the `sum` over samples.
        warm_up: called with a batch before this worker joins, to run the model forward and backward once. Default:
            the model is called with the first element of the batch.
        additive_loss: whether the loss is a mean or sum of one term a sample. Pass False for contrastive losses,
            which compare samples of a batch, and for others that are no such sum (a root of a mean).
        virtual_shards: cut each batch into this many shards (see `shards`), so that layers with batch statistics see
            the same shards at every size.
        balance: whether a worker's share of the batch is proportional to its speed, for unequal nodes. Default: all
            shares are equal.
        must_be_finite: whether gradients that are nan or infinite raise an error that names the worker. Default: yes,
            unless a tracked `GradScaler` expects them.
        sum_dtype: the type in which gradients of a wider one are summed over workers, such as `torch.bfloat16`: half
            the bytes on the network, and sums that are rounded. Default: each gradient's own.
        comm_hook: compresses what is summed over workers (`gradients.comm_hook.CommHook`). It must commute with
            weights, which is tried out. Default: gradients are summed as they are.
        world: outside a pilot, the group of the processes that were started together (`elastic.environment_world`,
            `elastic.mpi_world`). Default: this process trains alone.
        loaders: number of processes that load batches ahead. Default: batches are loaded between steps.
        checkpoint_dir: where to save the state while the job has no nodes. Default: `.malletrain/JOB` in the
            directory of submission.
        checkpoint_s: seconds between checkpoints, which are written while training goes on and used if all nodes are
            lost at once. (When nodes are given back in order, the state is saved in any case.)
        check: has no effect any more, and will be gone in the next release.

    Attributes:
        model: what was given, several as one module.

    Raises:
        ElasticError: this cannot be trained; the message says what to change.
    """

    def __init__(
        self,
        model: torch.nn.Module | Sequence[torch.nn.Module] | Mapping[str, torch.nn.Module],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | Mapping[str, torch.optim.Optimizer],
        dataset: Any,
        *,
        batch_size: int | BatchRule | None = None,
        learning_rate: LearningRate | None = None,
        noise_scale: bool | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        order: Callable[[int], Sequence[Any]] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        warm_up: Callable[[Any], Any] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_s: float = 600.0,
        virtual_shards: int | None = None,
        additive_loss: bool = True,
        balance: bool = False,
        must_be_finite: bool | None = None,
        sum_dtype: torch.dtype | None = None,
        comm_hook: CommHook | None = None,
        world: Group | None = None,
        loaders: int = 0,
        check: str | None = None,
    ) -> None:
        require_one(inspect.currentframe(), os.environ)
        if check is not None:
            warnings.warn(
                "Session(check=...) has no effect any more, and will be refused by the next release: invariants are "
                "always checked, and what a script means is tried out by `malletrain check`",
                FutureWarning,
                stacklevel=2,
            )
        self.model = as_module(model)
        if isinstance(dataset, DataLoader):
            own = {
                "shuffle": not shuffle,
                "drop_last": drop_last,
                "order": order,
                "collate": collate,
                "loaders": loaders,
            }
            terms = loader_terms(dataset, seed, [name for name, value in own.items() if value])
            dataset, batch_size = terms.dataset, batch_size or terms.batch_size
            shuffle, drop_last, order = terms.shuffle, terms.drop_last, terms.order
            collate, loaders = terms.collate, terms.loaders
        if batch_size is None:
            raise ElasticError("Session(..., batch_size=N): the samples of one step over all workers")
        settings = Settings(
            batch_size=batch_size,
            learning_rate=learning_rate,
            noise_scale=noise_scale,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            order=order,
            collate=collate,
            reduction=reduction,
            warm_up=warm_up,
            checkpoint_dir=checkpoint_dir,
            checkpoint_s=checkpoint_s,
            virtual_shards=virtual_shards,
            additive_loss=additive_loss,
            balance=balance,
            must_be_finite=must_be_finite,
            sum_dtype=sum_dtype,
            comm_hook=comm_hook,
            world=world,
            loaders=loaders,
        )
        self._runtime = Runtime(self.model, as_optimizers(optimizer), dataset, settings)

    # --- before training --------------------------------------------------------------------------------------

    def when_main(self, callback: Callable[[], object]) -> None:
        """Call `callback()` when this worker becomes the main one, for example to open a log file.

        Register it before the first epoch.
        """
        self._runtime.when_main.append(callback)

    def when_joining(self, callback: Callable[[int, int], object]) -> None:
        """Call `callback(epoch, step)` on a worker that joins, or resumes, a training that has begun, before its
        first
        step: for what the script did in earlier epochs and the training state does not hold, such as a stage of the
        data set. (Which parameters are trained, and their groups in optimizers, a worker that joins is given.)

        Register it before the first epoch.
        """
        self._runtime.when_joining.append(callback)

    @property
    def state(self) -> SharedValues:
        """A dictionary for the script's own values that belong to the training state: counters, best scores, averages
        of the model, random generators.

            s.state["best"] = 0.0               # before the first epoch
            ...
            if score > s.state["best"]:
                s.state["best"] = score
        """
        return self._runtime.shared

    def track(self, **things: Stateful) -> None:
        """Make schedulers, scalers, averaged models and the like part of the training state.

        Each needs `state_dict` and `load_state_dict`: `s.track(scheduler=scheduler)`.

        Raises:
            ElasticError: training has begun, or an object lacks one of the two methods.
        """
        if self._runtime.joined:
            raise ElasticError("track() must be called before the first epoch: a newcomer would miss it")
        for name, thing in things.items():
            self._runtime.state.track(name, thing)

    def join(self) -> None:
        """Enter the world and take over its training state now. Default: the first epoch does."""
        self._runtime.join()

    # --- training ---------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """Iterate over the epochs from the present one to `count` - 1."""
        r = self._runtime
        r.join()
        while r.position.epoch < count:
            yield r.position.epoch
            r.position.epoch += 1
            r.position.cursor = 0
            r.state.forget_boundary()

    def batches(self) -> Iterator[Any]:
        """Iterate over this worker's parts of the remaining batches of the epoch.

        The body of the loop must contain one `with s.step():`. A batch whose step is not committed is yielded again,
        possibly with another part of it.

        Raises:
            ElasticError: the body has no step.
            Released: this worker's part is over.
        """
        r = self._runtime
        r.join()
        r.check_epoch()
        while r.position.cursor < r.sampler.epoch_length:
            yield r.load_batch()
            if r.share is not None:
                raise ElasticError("the body of `for batch in s.batches()` needs `with s.step():` around the step")
        r.after_block.body_ended()
        r.state.mark_boundary()
        r.meter.paused()

    def shards(self, batch: Any) -> Iterator[Any]:
        """Iterate over the shards of a batch from `batches`, with one forward and backward pass for each:

        with s.step():
            optimizer.zero_grad()
            for x, y in s.shards(batch):
                loss_function(model(x), y).backward()
            optimizer.step()

        Raises:
            ElasticError: the session has no virtual shards, or `batch` is not from `batches`.
        """
        if self._runtime.shards is None or not isinstance(batch, ShardedBatch):
            raise ElasticError("shards() needs Session(..., virtual_shards=N), and what batches() gave")
        return self._runtime.shards.run(batch, self._runtime.position.step)

    def step(self, weight: float | torch.Tensor | None = None, *, backwards: int = 1) -> AbstractContextManager[None]:
        """A context manager around one step, which is committed or repeated.

        Args:
            weight: over how much this worker's loss is the mean: tokens, or the class weights of its targets.
                Default: the number of its samples.
            backwards: number of `backward()` calls, each with an optimizer's step after it: 2 for a GAN or SAM. They
                are repeated together; the state is copied at the start of such a step.

        Raises:
            ElasticError: the weight is negative or not finite, or the session cannot make several passes.
        """
        counts = None if weight is None else checked_weight(float(weight))
        return Step(self._runtime, counts, backwards)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """A context manager, inside a step, around every backward pass but the last: gradients add up locally."""
        reducer = self._runtime.reducer
        before = reducer.accumulating
        reducer.set_accumulating(True)
        try:
            yield
        finally:
            reducer.set_accumulating(before)

    @contextmanager
    def inner_loop(self) -> Iterator[None]:
        """A context manager, inside a step, around what adapts a copy of the model to one sample (a task), as in MAML
        and Reptile. Enter it once for each of this worker's samples:

            for x, y in zip(*batch):
                with s.inner_loop():
                    learner = copy.deepcopy(model)
                    adapt(learner, x, y)  # optimizer steps, or torch.autograd.grad

        In it, losses, gradients and optimizers are the sample's own: nothing is summed over workers. What the step
        learns from the copies follows as its `backward()`, a loss or, where gradients are known already,
        `torch.autograd.backward(list(model.parameters()), gradients)`.

        Raises:
            ElasticError: it is called outside a step; or inside, `backward()` reaches the session's model, or an
                optimizer changes it.
        """
        if self._runtime.share is None:
            raise ElasticError("s.inner_loop() belongs inside `with s.step():`")
        reducer = self._runtime.reducer
        before, reducer.adapting = reducer.adapting, True
        try:
            yield
        finally:
            reducer.adapting = before

    def evaluate(
        self, metrics: Callable[[Any], Mapping[str, Any]], dataset: Any = None, *, batch_size: int = 256
    ) -> dict[str, float]:
        """Means over a data set. All members compute them together, and every member gets them.

        In a pilot, a worker that calls this before its first epoch computes alone, with the model as the script made
        it.

        Args:
            metrics: called with a batch, without gradients and with the model in eval mode; returns sums (not means)
                over the batch, by name.
            dataset: map-style. Default: the training data.
            batch_size: samples of one call.

        Raises:
            ElasticError: the data set is empty.
        """
        r = self._runtime
        if not r.in_pilot:
            r.join()
        r.meter.paused()
        return evaluate(r, r.loader_of(dataset), metrics, batch_size)

    def agree(self, value: float, how: How = "mean") -> float | bool:
        """One value made of those of all workers, for decisions that all must take alike:

            if s.agree(loss.item()) < 0.1:
                break

        Every worker calls it at the same place, after the `with s.step():` block.

        Args:
            value: this worker's number or truth value.
            how: `mean` (by what the workers' parts of the last step count: of losses of the parts, the loss of the
                whole batch), `sum`, `min`, `max`, `main` (the main worker's), or for truth values `all` and `any`.

        Raises:
            ElasticError: it is called inside a step, workers call different things, or `how` is none of these.
        """
        self._runtime.join()
        return agree(self._runtime, value, how)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of all workers' tensors of one shape, for metrics. Every worker calls it at the same place, after
        the `with s.step():` block.

        Raises:
            ElasticError: it is called inside a step, or workers call different things.
        """
        self._runtime.join()
        return all_reduce(self._runtime, tensor)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of all workers' samples in one tensor, for a loss that compares the samples of the whole batch:

            with s.step():
                first, second = s.gather(encoder(x1)), s.gather(encoder(x2))
                info_nce(first, second).backward()

        Every worker then computes the same loss, the mean over the whole batch, or its own samples' part of it
        against the rows of all; gradients are those of a static run. With `reduction="sum"` it is the sum over its
        own samples.
        Rows are in the order of the batch (with streams: in that of the workers). Targets are gathered likewise.

        Args:
            tensor: one row for each of this worker's samples, of one shape on all workers.

        Raises:
            ElasticError: it is called outside a step or inside `accumulate`, has other rows, or the session has
                `virtual_shards` or a sharded model.
        """
        r = self._runtime
        if r.shards is not None or r.sharded:
            raise ElasticError("s.gather() bears neither virtual_shards nor a sharded model")
        return r.gathers.gather(tensor)

    def report(self, **values: float) -> None:
        """Record metrics for the job and for searches. Call it on every worker; the main one's values count."""
        r = self._runtime
        if self.is_main and r.position.samples:
            for name, value in values.items():
                number = float(value)
                finite = number if math.isfinite(number) else None  # JSON has no other numbers
                r.reports.hold(messages.Metric(name[:200], finite, r.position.samples))

    def finish(self, result: Mapping[str, Any] | None = None) -> None:
        """End the training: the last call of a script.

        Args:
            result: plain JSON values, for the job's record.
        """
        self._runtime.finish(result)

    # --- where training is ------------------------------------------------------------------------------------

    @property
    def is_main(self) -> bool:
        """Whether this worker is the main one, which prints and writes: the oldest of the world. When it leaves, the
        next oldest becomes main between two steps (see `when_main`)."""
        return self._runtime.committer.world.rank == 0

    @property
    def size(self) -> int:
        """Number of processes that train now: `nodes` times processes a node."""
        return self._runtime.committer.world.size

    @property
    def nodes(self) -> int:
        """Number of nodes that train now."""
        return self._runtime.committer.world.nodes

    @property
    def epoch(self) -> int:
        """The present epoch, from 0."""
        return self._runtime.position.epoch

    @property
    def steps_done(self) -> int:
        """Steps committed since training began, on whichever workers."""
        return self._runtime.position.step

    @property
    def samples_done(self) -> int:
        """Samples committed since training began."""
        return self._runtime.position.samples

    @property
    def share(self) -> int:
        """Number of this worker's samples in the batch under way. It is 0 where the batch is smaller than the
        world."""
        return 0 if self._runtime.share is None else self._runtime.share.weight

    @property
    def batch_size(self) -> int:
        """Samples of one step over all workers, now."""
        return self._runtime.session_batch.lr_scaling.batch

    @property
    def fixed_batch(self) -> bool:
        """Whether `batch_size` is the same at every size."""
        return self._runtime.session_batch.fixed

    @property
    def equal_batches(self) -> bool:
        """Whether all batches of an epoch but the last have `batch_size` samples: an `order` of batches may have
        others."""
        return not self._runtime.batch_ends()

    @property
    def gain(self) -> float:
        """The factor on the learning rate that follows from the present batch."""
        return self._runtime.session_batch.lr_scaling.gain

    @property
    def progress(self) -> float:
        """Training so far in steps of the reference batch. Schedules should count these."""
        return self._runtime.session_batch.lr_scaling.progress

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples (see `gradients.noise_scale`), or None while it is unknown."""
        return self._runtime.session_batch.noise_scale()

    @property
    def equality(self) -> str:
        """In which sense the result equals that of a static run."""
        return str(self._runtime.judgement)

    def decay(self, of_reference: float) -> float:
        """The decay of a running average for one step of the present batch.

        Args:
            of_reference: the decay for one step of the reference batch. The result averages over as many samples
                (Busbridge et al., NeurIPS 2023).
        """
        return float(of_reference**self._runtime.session_batch.lr_scaling.power)
