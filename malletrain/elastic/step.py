"""One training step: the body of `for batch in s.batches()`, or in it the block `with s.step():`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Self

import torch

from malletrain.elastic.comm.step_commit import StepOutcome
from malletrain.elastic.data.random_seeds import seed_all, seed_torch
from malletrain.elastic.data.sampler import Share, mix
from malletrain.elastic.errors import Aborted, ElasticError, LayoutChanged
from malletrain.elastic.gradients.reducer import GradientPhase, GradientReducer
from malletrain.elastic.runtime import Runtime


class Step:
    """A step, which is committed or undone as it ends. It is begun with the body of the loop; as a context manager it
    takes over what the body has begun. `weight`, `backwards`: see `Session.step`."""

    def __init__(self, runtime: Runtime, weight: float | None, backwards: int) -> None:
        r = self._runtime = runtime
        if weight is not None and not 0.0 <= weight < math.inf:
            raise ElasticError(f"s.step(weight=...) must be a number of at least 0, not {weight}")
        if backwards < 1:
            raise ElasticError(f"s.step(backwards=...) must be at least 1, not {backwards}")
        if backwards > 1 and r.session_batch.noise:
            raise ElasticError(
                "s.step(backwards=N) does not bear a measured noise scale (a batch that changes measures it: "
                "Options(noise_scale=False))"
            )
        self._weight = weight
        self._backwards = backwards
        self._copy: tuple[bytes, list[torch.Tensor]] | None = None
        self.is_block = False

    def begin(self, share: Share) -> None:
        """Begin the body of the loop with this worker's share of a batch. Python's and numpy's random numbers go on
        as they are between steps, alike on every worker."""
        r = self._runtime
        r.buffer_copies.take()
        r.calls = r.gathers.calls = 0
        r.invariants.begin_step()
        if r.shards is not None:
            r.shards.begin(r.position.step)
        if r.norms is not None:
            r.norms.begin()
        seed_torch(mix(r.sampler.seed, r.position.step, r.committer.world.rank))
        r.reducer.arm(share.weight, share.batch)
        self._take()

    def __enter__(self) -> Self:
        r = self._runtime
        if r.step is None or r.step.is_block:
            raise ElasticError("s.step() belongs into the body of `for batch in s.batches()`, once for each batch")
        if r.reducer.phase is not GradientPhase.NONE or r.gathers.calls:
            raise ElasticError(
                "backward(), s.gather() or s.mean() came before `with s.step():` in the body: put them into the block"
            )
        self.is_block = True
        r.invariants.follow_script()
        seed_all(mix(r.sampler.seed, r.position.step, r.committer.world.rank))
        self._take()
        return self

    def _take(self) -> None:
        """Make this the step under way."""
        r = self._runtime
        r.step = self
        self._began, self._waited_s = time.monotonic(), r.committer.waited_s
        if self._backwards > 1:
            self._keep_state()  # the first pass's optimizer step is undone if a later pass is aborted
        weight = r.reducer.samples if self._weight is None or not r.reducer.samples else self._weight
        r.reducer.set_terms(weight, self._backwards, self._commit)
        r.reducer.on_abort = self._keep_state
        r.lifecycle.step_began = self._began

    def _keep_state(self) -> None:
        """Have the training state as it is now come back if the step is void: the script goes on in it."""
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
        if self._runtime.step is None:
            raise ElasticError("step.inner_loop() belongs inside `with s.step() as step:`")
        return _set(self._runtime.reducer, "adapting")

    def _commit(self, outcome: StepOutcome) -> None:
        """Called at the end of backward: every member has the sums, or will get them, so the step stands."""
        r = self._runtime
        r.lifecycle.step_began = None
        r.invariants.follow_script()  # which may have unfrozen parameters in the body
        r.position.step += 1
        self._taken = r.reducer.batch if r.streams is None else r.streams.taken
        r.position.cursor += self._taken
        r.position.samples += self._taken
        r.committed = True
        r.lifecycle.committed(outcome)
        r.session_batch.lr_scaling.committed(r.position.samples)
        r.reports.measured(r.reducer.ns_per_sample)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end(error)

    def end(self, error: BaseException | None = None, *, goes_on: bool = True, left: bool = False) -> None:
        """End the step. One that is void is undone, to be repeated.

        Args:
            error: what has left its block.
            goes_on: whether the script goes on in the body of the loop.
            left: whether the loop was left. A step that has made nothing is then forgotten.

        Raises:
            ElasticError: it has not made its `backward()` calls.
        """
        r = self._runtime
        r.step, r.lifecycle.step_began = None, None
        r.may_be_half = r.committed and (left or error is not None)
        ends_epoch = r.position.cursor >= r.sampler.epoch_length
        r.invariants.end_step(committed=error is None and r.committed, ends_epoch=ends_epoch)
        made = self._backwards - r.reducer.passes_left
        aborted, has_begun = r.reducer.aborted, r.reducer.phase is not GradientPhase.NONE or bool(r.gathers.calls)
        r.reducer.disarm()
        if isinstance(aborted, LayoutChanged):
            r.invariants.lay_out_again()
        if not r.committed and (error is not None or aborted is not None or left):
            if self._copy is not None:
                r.state.restore(*self._copy)
            r.buffer_copies.restore()
            r.reports.round_void()
            r.reducer.reset_after_abort()
        if error is not None:
            r.left_by = f"{type(error).__name__}: {error}"
            r.report_failure(error)
        elif aborted is not None:
            if goes_on and not left:
                r.kept = r.state.copy()
            if isinstance(aborted, Aborted):
                r.lifecycle.broken()
        elif r.committed:
            self._measure()
        elif not left:
            raise ElasticError(
                f"the step ended after {made} of {self._backwards} backward() calls outside step.accumulate(): every "
                "batch is trained on, on every worker. Leave samples out in __getitem__ or collate, or give them a "
                "loss of 0; s.step(backwards=N) says how many calls there are"
            )
        elif has_begun:
            r.left_by = "the loop was left before the last backward() of a step"

    def _measure(self) -> None:
        """The step is committed: record how long it took."""
        r = self._runtime
        r.seed_between()
        r.lifecycle.last_commit = now = time.monotonic()
        r.committer.record_step_time(now - self._began)
        waited = r.committer.waited_s - self._waited_s
        computed = now - self._began - waited
        samples = r.reducer.samples
        r.reducer.own_ns_per_sample = int(1e9 * (r.load_s + computed) / samples) if samples else 0
        nodes, parts = r.committer.world.nodes, {"data": r.load_s, "compute": computed, "sync": waited}
        r.meter.step(nodes, self._taken, r.position.step, r.position.samples, parts)


@contextmanager
def _set(reducer: GradientReducer, flag: Literal["accumulating", "adapting"]) -> Iterator[None]:
    before = getattr(reducer, flag)
    setattr(reducer, flag, True)
    try:
        yield
    finally:
        setattr(reducer, flag, before)
