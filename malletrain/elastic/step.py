"""One training step: `with s.step():`."""

from __future__ import annotations

import time
from types import TracebackType

import torch

from malletrain.elastic.comm.step_commit import StepOutcome
from malletrain.elastic.data.sampler import mix
from malletrain.elastic.errors import Aborted, ElasticError
from malletrain.elastic.runtime import Runtime
from malletrain.wire import messages


class Step:
    """A context manager that commits the step, or suppresses `Aborted` and undoes what backward has changed.

    Args:
        runtime: of the session.
        weight: see `Session.step`.
    """

    def __init__(self, runtime: Runtime, weight: int | None) -> None:
        self._runtime = runtime
        self._weight = weight
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._began = 0.0
        self._waited_s = 0.0

    def __enter__(self) -> None:
        r = self._runtime
        if r.share is None:
            raise ElasticError("s.step() belongs into the body of `for batch in s.batches()`, once for each batch")
        share, weight = r.share, self._weight
        self._began, self._waited_s = time.monotonic(), r.committer.waited_s
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in r.model.buffers()]
        torch.manual_seed(mix(r.sampler.seed, r.position.step, r.committer.world.rank))
        if r.shards is not None:
            r.shards.begin(share.batch)
        counts = share.weight if weight is None or not share.weight else weight
        if r.norms is not None:
            r.norms.begin(counts, share.batch)
        if r.output_scale is not None:
            r.output_scale.begin(counts, share.batch)
        r.reducer.arm(counts, share.batch, self._commit)
        r.lifecycle.step_began = self._began

    def _commit(self, outcome: StepOutcome) -> None:
        """Called at the end of backward: every member has the sums, or will get them, so the step stands."""
        r = self._runtime
        share = r.share
        if share is None:
            raise ElasticError("backward was called again after the step was committed")
        r.lifecycle.step_began = None
        r.position.step += 1
        r.position.cursor += share.batch
        r.position.samples += share.batch
        r.committed = True
        r.lifecycle.committed(outcome)
        r.session_batch.lr_scaling.committed(r.position.samples)
        r.proportional_shares.update(r.position.step, r.reducer.ns_per_sample)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        r = self._runtime
        share, r.share = r.share, None
        r.lifecycle.step_began = None
        r.reducer.disarm()
        if r.norms is not None:
            r.norms.end()
        if r.output_scale is not None:
            r.output_scale.end()
        if isinstance(error, Aborted):
            self._undo()
            r.lifecycle.broken()
            return True
        if error is not None:
            if not isinstance(error, SystemExit | KeyboardInterrupt):
                self._report(error)
            return False
        if not r.committed or share is None:
            raise ElasticError("the step ended without a backward() outside s.accumulate()")
        now = time.monotonic()
        r.lifecycle.last_commit = now
        r.recovery.describe()
        r.committer.record_step_time(now - self._began)
        waited = r.committer.waited_s - self._waited_s
        computed = now - self._began - waited
        r.reducer.own_ns_per_sample = int(1e9 * (r.load_s + computed) / share.weight) if share.weight else 0
        parts = {"data": r.load_s, "compute": computed, "sync": waited}
        r.meter.step(r.committer.world.nodes, share.batch, r.position.step, r.position.samples, parts)
        return False

    def _report(self, error: BaseException) -> None:
        member, step = self._runtime.member, self._runtime.position.step
        member.say(messages.Failed(step, f"{member.worker}: {type(error).__name__}: {error}"[:2000]))
        if member.link is not None:
            member.link.flush(2.0)

    def _undo(self) -> None:
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        self._runtime.reducer.reset_after_abort()
