"""The interface of a training script.

    s = elastic.Session(model, optimizer, loader)
    for epoch in s.epochs(10):
        for x, y in s.batches():
            optimizer.zero_grad()
            loss = loss_function(model(x), y)
            loss.backward()
            optimizer.step()
    s.finish({"loss": loss.item()})

The loader's batch is that of all workers together. One run of the loop's body is a step. When `backward` returns, the
gradients are those of the whole batch and the step is committed. If a peer is lost before that, `backward` returns
with gradients of zero, the script goes on to the end of the body, the training state is restored to that of before,
and `batches` yields the same batch again: what a body changes beyond parameters, optimizers and buffers belongs into
`s.state` or `s.track`, as for a worker that joins.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch.utils.data import DataLoader

from malletrain.elastic.data.batch_size import Chosen
from malletrain.elastic.data.loader_terms import loader_terms
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.evaluate import How, agree, all_reduce, evaluate
from malletrain.elastic.gradients.reducer import GradientPhase
from malletrain.elastic.launch.worker_start import as_module, as_optimizers
from malletrain.elastic.old_names import old_attribute, with_old_arguments
from malletrain.elastic.runtime import Options, Runtime, Settings
from malletrain.elastic.state.shared_values import SharedValues
from malletrain.elastic.state.training_state import Stateful
from malletrain.elastic.step import Step
from malletrain.wire import messages


class Session:
    """Training on a number of workers that may change between any two steps.

    Args:
        model: any module, not wrapped in `DistributedDataParallel`; or several, as a list or a dictionary.
        optimizer: of the model's parameters; or several, as a list or a dictionary.
        dataset: a `DataLoader` whose `batch_size` is that of all workers together (what it says of order, collate
            function and processes then holds); a map-style data set; or `elastic.Streams` of data that can only be
            read from start to end.
        batch_size: samples of one step over all workers: a number, or `Chosen` by the daemon. Default: the
            loader's.
        seed: of sample order, augmentation and dropout.
        shuffle, drop_last, collate: as in `torch.utils.data.DataLoader`.
        reduction: whether the script's loss is the `mean` or the `sum` over samples.
        virtual_shards: cut each batch into this many shards (see `batches`), so that layers with batch statistics see
            the same shards at every size.
        warm_up: called with a batch before this worker joins, to run the model forward and backward once. Default:
            the model is called with the first element of the batch.
        options: rarer terms.
        old: what is in `Options` now, read with a warning for one release.

    Raises:
        ElasticError: this cannot be trained; the message says what to change.
    """

    def __init__(
        self,
        model: torch.nn.Module | Sequence[torch.nn.Module] | Mapping[str, torch.nn.Module],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | Mapping[str, torch.optim.Optimizer],
        dataset: Any,
        *,
        batch_size: int | Chosen | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        virtual_shards: int | None = None,
        warm_up: Callable[[Any], Any] | None = None,
        options: Options | None = None,
        **old: Any,
    ) -> None:
        options = with_old_arguments(options, old)
        settings = Settings(
            batch_size=0 if batch_size is None else batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            collate=collate,
            reduction=reduction,
            virtual_shards=virtual_shards,
            warm_up=warm_up,
            **{each.name: getattr(options, each.name) for each in dataclasses.fields(Options)},
        )
        if isinstance(dataset, DataLoader):
            said = [name for name in ("drop_last", "order", "collate", "loaders") if getattr(settings, name)]
            terms = loader_terms(dataset, seed, said if shuffle else ["shuffle", *said])
            dataset = dataset.dataset
            settings = dataclasses.replace(settings, **{**terms, "batch_size": batch_size or terms["batch_size"]})
        elif batch_size is None:
            raise ElasticError("Session(..., batch_size=N): the samples of one step over all workers")
        self._runtime = Runtime(as_module(model), as_optimizers(optimizer), dataset, settings)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # also before there is a runtime
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return old_attribute(self, self._runtime, name)

    # --- before training --------------------------------------------------------------------------------------

    @property
    def state(self) -> SharedValues:
        """A dictionary for the script's own values that belong to the training state: counters, best scores, averages
        of the model, random generators. Set each before the first epoch."""
        return self._runtime.shared

    def track(self, **things: Stateful) -> None:
        """Make schedulers, scalers, averaged models and the like part of the training state:
        `s.track(scheduler=scheduler)`. Raises `ElasticError`: training has begun, or an object lacks `state_dict` or
        `load_state_dict`."""
        if self._runtime.joined:
            raise ElasticError("track() must be called before the first epoch: a newcomer would miss it")
        for name, thing in things.items():
            self._runtime.state.track(name, thing)

    # --- training ---------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """Enter the world, take over its training state, and iterate over the epochs from the present one to
        `count` - 1."""
        self._runtime.join()
        return self._epochs(count)

    def _epochs(self, count: int) -> Iterator[int]:
        r = self._runtime
        while r.position.epoch < count and not r.passed:
            yield r.position.epoch
            r.leave_step()
            r.kept = None  # of a void step after which the loop was left
            r.position.epoch += 1
            r.position.cursor = 0
            r.state.forget_boundary()

    def batches(self) -> Iterator[Any]:
        """Iterate over this worker's parts of the remaining batches of the epoch.

        The body of the loop is a step, and makes one `backward()`; or it contains one `with s.step():` (see `step`).
        A batch whose step is not committed is yielded again, possibly with another part of it. With virtual shards a
        batch is iterated over, with one forward and backward pass for each of its parts.

        Raises:
            ElasticError: the body made no `backward()`.
            Released: this worker's part is over.
        """
        r = self._runtime
        r.join()
        r.leave_step()
        if r.passed:
            return
        r.check_epoch()
        try:
            while r.position.cursor < r.sampler.epoch_length:
                share, batch = r.load_batch()
                Step(r, None, r.backwards).begin(share)
                try:
                    yield batch
                except GeneratorExit:  # by `break`, or an exception of the body
                    r.leave_step()
                    raise
                finally:
                    r.reducer.phase = GradientPhase.SUMMED  # optimizers may step once the body is over
                if r.step is not None:
                    r.step.end(goes_on=False)
        finally:
            if r.dataset_changes is not None:
                r.dataset_changes.epoch_ended()
        r.state.mark_boundary()
        r.meter.paused()

    def step(self, weight: float | torch.Tensor | None = None, *, backwards: int = 1) -> Step:
        """A context manager that makes its block the step, in the place of the loop's whole body: for the terms
        below, a batch that is taken in parts, and what a body is to do after its step. Nothing of the step may come
        before it. `with s.step() as step:` gives what it has: `step.accumulate()` and `step.inner_loop()`.

        Args:
            weight: over how much this worker's loss is the mean, finite and at least 0: tokens, or the class weights
                of its targets. Default: the number of its samples.
            backwards: number of `backward()` calls, each with an optimizer's step after it: 2 for a GAN or SAM. They
                are repeated together; the state is copied at the start of such a step.
        """
        return Step(self._runtime, None if weight is None else float(weight), backwards)

    def evaluate(
        self, metrics: Callable[[Any], Mapping[str, Any]], dataset: Any = None, *, batch_size: int = 256
    ) -> dict[str, float]:
        """Means over a data set. All members compute them together, and every member gets them. (In a pilot, a worker
        that calls this before its first epoch computes alone, with the model as the script made it.)

        Args:
            metrics: called with a batch, without gradients and with the model in eval mode; returns sums (not means)
                over the batch, by name.
            dataset: map-style and not empty. Default: the training data.
            batch_size: samples of one call.
        """
        r = self._runtime
        if r.pilot is None:
            r.join()
        r.meter.paused()
        return evaluate(r, r.loader_of(dataset), metrics, batch_size)

    @overload
    def agree(self, value: float, how: How = "mean") -> float | bool: ...

    @overload
    def agree(self, value: torch.Tensor, how: How = "mean") -> Any: ...

    def agree(self, value: float | torch.Tensor, how: How = "mean") -> Any:
        """One value made of those of all workers, for decisions that all must take alike:

            if s.agree(loss.item()) < 0.1:
                break

        Every worker calls it at the same place, after the step: in the body of the loop after `optimizer.step()`.

        Args:
            value: this worker's number or truth value; or with `sum` a tensor, of one shape on all workers: metrics.
            how: `mean` (by what the workers' parts of the last step count: of losses of the parts, the loss of the
                whole batch), `sum`, `min`, `max`, `main` (the main worker's), or for truth values `all` and `any`.

        Raises:
            ElasticError: it is called inside a step, workers call different things, or `how` is none of these.
        """
        if isinstance(value, torch.Tensor) and value.ndim:
            if how != "sum":
                raise ElasticError(f"agree() of a tensor makes the sum, not {how!r}: s.agree(tensor, 'sum')")
            return all_reduce(self._runtime, value)
        return agree(self._runtime, float(value), how)

    def mean(self, values: torch.Tensor, over: float | torch.Tensor) -> torch.Tensor:
        """A term of the loss that is a mean over something else than samples, in the whole batch:

            loss = s.mean(energy_errors, over=len(energy_errors)) + s.mean(force_errors, over=3 * atoms)
            loss.backward()

        Its gradients are those of the sum of all workers' values by all their counts, however they are divided; so
        are the figures that `s.agree(loss.item())` makes. Each term of such a loss has a mean of its own.

        Args:
            values: to be added up; of any shape, also empty.
            over: what this worker's values are, as a count or a weight: molecules, atoms, boxes, class weights. It
                may be 0; where it is on all workers, so is the mean.

        Raises:
            ElasticError: it is called outside a step or inside `accumulate`, or beside a `weight` or
            `virtual_shards`."""
        return self._runtime.gathers.mean(values, float(over))

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of all workers' samples in one tensor, for a loss that compares the samples of the whole batch:

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
                `virtual_shards`.
        """
        return self._runtime.gathers.gather(tensor)

    def report(self, **values: float) -> None:
        """Record metrics for the job and for searches. Call it on every worker; the main one's values count."""
        r = self._runtime
        if self.is_main and r.position.samples:
            for name, value in values.items():
                finite = float(value) if math.isfinite(value) else None  # JSON has no other numbers
                r.reports.hold(messages.Metric(name[:200], finite, r.position.samples), committed=r.committed)

    def finish(self, result: Mapping[str, Any] | None = None) -> None:
        """End the session. Another one may follow in the script (folds, stages), and begins in the same world. A job
        ends with its script.

        Args:
            result: plain JSON values, for the job's record: of the last session.
        """
        self._runtime.finish(result)

    # --- where training is ------------------------------------------------------------------------------------

    @property
    def is_main(self) -> bool:
        """Whether this worker is the main one, which prints and writes: the oldest of the world. When it leaves, the
        next oldest becomes main between two steps (see `Options.when_main`)."""
        return self._runtime.is_main

    @property
    def size(self) -> int:
        """Number of processes that train now: nodes times processes a node."""
        return self._runtime.committer.world.size

    @property
    def epoch(self) -> int:
        """The present epoch, from 0."""
        return self._runtime.position.epoch

    @property
    def steps_done(self) -> int:
        """Steps committed since training began, on whichever workers."""
        return self._runtime.position.step

    @property
    def info(self) -> Info:
        """What is rarely asked for: nodes, share, batch, the gain on the learning rate, the sense of equality."""
        return Info(self._runtime)


class Info:
    """What a script may want to know of its session now and then, as it is when it is read: `s.info`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def nodes(self) -> int:
        """Number of nodes that train now."""
        return self._runtime.committer.world.nodes

    @property
    def samples_done(self) -> int:
        """Samples committed since training began."""
        return self._runtime.position.samples

    @property
    def share(self) -> int:
        """Number of this worker's samples in the batch under way. It is 0 where the batch is smaller than the
        world."""
        return 0 if self._runtime.step is None else self._runtime.reducer.samples

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
        """Training so far in steps of the reference batch, which schedules should count:
        `while scheduler.last_epoch < int(s.info.progress): scheduler.step()`."""
        return self._runtime.session_batch.lr_scaling.progress

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples (see `gradients.noise_scale`), or None while it is unknown."""
        return self._runtime.session_batch.noise_scale()

    @property
    def equality(self) -> str:
        """In which sense the result equals that of a static run."""
        return str(self._runtime.judgement)
