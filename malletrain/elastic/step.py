"""One training step: `with s.step():`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Literal, Self

import torch

from malletrain.elastic.comm.step_commit import StepOutcome
from malletrain.elastic.data.random_seeds import seed_all
from malletrain.elastic.data.sampler import mix
from malletrain.elastic.errors import Aborted, ElasticError, LayoutChanged, StepRepeated
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.runtime import Runtime


class Step:
    """A context manager that commits the step, or suppresses `Aborted` and undoes what backward has changed.
    `weight`, `backwards`: see `Session.step`."""

    def __init__(self, runtime: Runtime, weight: float | None, backwards: int) -> None:
        r = runtime
        if weight is not None and not 0.0 <= weight < math.inf:
            raise ElasticError(f"s.step(weight=...) must be a number of at least 0, not {weight}")
        if backwards < 1:
            raise ElasticError(f"s.step(backwards=...) must be at least 1, not {backwards}")
        if backwards > 1 and r.session_batch.noise:
            raise ElasticError(
                "s.step(backwards=N) does not bear a measured noise scale (a batch that changes measures it: "
                "Options(noise_scale=False))"
            )
        self._runtime = runtime
        self._weight = weight
        self._backwards = backwards
        self._copy: tuple[bytes, list[torch.Tensor]] | None = None
        self._began = 0.0
        self._waited_s = 0.0
        self._taken = 0

    def __enter__(self) -> Self:
        r = self._runtime
        if r.share is None:
            raise ElasticError("s.step() belongs into the body of `for batch in s.batches()`, once for each batch")
        share, weight = r.share, self._weight
        self._began, self._waited_s = time.monotonic(), r.committer.waited_s
        r.buffer_copies.take()
        r.calls = r.gathers.calls = 0
        r.invariants.begin_step()
        seed_all(mix(r.sampler.seed, r.position.step, r.committer.world.rank))
        if self._backwards > 1:
            self.keep_state()  # the first pass's optimizer step is undone if a later pass is aborted
        if r.shards is not None:
            r.shards.begin(r.position.step)
        counts = share.weight if weight is None or not share.weight else weight
        if r.norms is not None:
            r.norms.begin()
        r.reducer.arm(counts, share.batch, self._commit, self._backwards, share.weight)
        r.lifecycle.step_began = self._began
        return self

    def keep_state(self) -> None:
        """Have the training state as it is now come back if the step is void."""
        if self._copy is None:
            self._copy = self._runtime.state.copy()

    def accumulate(self) -> AbstractContextManager[None]:
        """A context manager around every backward pass but the last: gradients add up locally."""
        return _set(self._runtime.reducer, "accumulating")

    def inner_loop(self) -> AbstractContextManager[None]:
        """A context manager around what adapts a copy of the model to one sample (a task), as in MAML and Reptile.
        Enter it once for each of this worker's samples:

            for x, y in zip(*batch):
                with step.inner_loop():
                    learner = copy.deepcopy(model)
                    adapt(learner, x, y)  # optimizer steps, or torch.autograd.grad

        In it, losses, gradients and optimizers are the sample's own: nothing is summed over workers. What the step
        learns from the copies follows as its `backward()`, a loss or, where gradients are known already,
        `torch.autograd.backward(list(model.parameters()), gradients)`. Raises `ElasticError`: it is called outside
        the step; or inside, `backward()` reaches the session's model, or an optimizer changes it."""
        if self._runtime.share is None:
            raise ElasticError("step.inner_loop() belongs inside `with s.step() as step:`")
        return _set(self._runtime.reducer, "adapting")

    def _commit(self, outcome: StepOutcome) -> None:
        """Called at the end of backward: every member has the sums, or will get them, so the step stands."""
        r = self._runtime
        r.lifecycle.step_began = None
        r.position.step += 1
        self._taken = r.reducer.batch if r.streams is None else r.streams.taken
        r.position.cursor += self._taken
        r.position.samples += self._taken
        r.committed = True
        r.lifecycle.committed(outcome)
        r.session_batch.lr_scaling.committed(r.position.samples)
        r.reports.measured(r.reducer.ns_per_sample)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        r = self._runtime
        share, r.share = r.share, None
        ends_epoch = r.position.cursor >= r.sampler.epoch_length
        r.invariants.end_step(committed=error is None and r.committed, ends_epoch=ends_epoch)
        r.lifecycle.step_began = None
        made = self._backwards - r.reducer.passes_left
        r.reducer.disarm()
        if isinstance(error, StepRepeated | Aborted):
            if self._copy is not None:
                r.state.restore(*self._copy)
            r.buffer_copies.restore()
            r.reducer.reset_after_abort()
            if r.reducer.on_abort is None:
                r.keep_tracked()
            if isinstance(error, Aborted):
                r.lifecycle.broken()
            elif isinstance(error, LayoutChanged):
                r.invariants.lay_out_again()
            return True
        if error is not None:
            r.left_by = f"{type(error).__name__}: {error}"
            if not r.committed:
                r.buffer_copies.restore()
            r.report_failure(error, whole=not made and not r.committed)
            return False
        if not r.committed or share is None:
            if self._backwards > 1:
                raise ElasticError(
                    f"the step ended after {made} of {self._backwards} backward() calls: s.step(backwards=N) needs "
                    "as many, on every worker"
                )
            raise ElasticError(
                "the step ended without a backward() outside step.accumulate(): every batch is trained on. Look at a "
                "sample in the data set: next(iter(loader)) of elastic.ddp's loader begins a step"
            )
        r.seed_between()
        now = time.monotonic()
        r.lifecycle.last_commit = now
        r.committer.record_step_time(now - self._began)
        waited = r.committer.waited_s - self._waited_s
        computed = now - self._began - waited
        r.reducer.own_ns_per_sample = int(1e9 * (r.load_s + computed) / share.weight) if share.weight else 0
        parts = {"data": r.load_s, "compute": computed, "sync": waited}
        r.meter.step(r.committer.world.nodes, self._taken, r.position.step, r.position.samples, parts)
        return False


@contextmanager
def _set(reducer: GradientReducer, flag: Literal["accumulating", "adapting"]) -> Iterator[None]:
    before = getattr(reducer, flag)
    setattr(reducer, flag, True)
    try:
        yield
    finally:
        setattr(reducer, flag, before)
