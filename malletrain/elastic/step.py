"""One step of a script: `with s.step():`."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from malletrain.elastic.comm.step_commit import StepOutcome
from malletrain.elastic.data.sampler import mix
from malletrain.elastic.errors import Aborted, ElasticError
from malletrain.wire import messages

if TYPE_CHECKING:
    from malletrain.elastic.session import Session


class Step:
    """Commits the step, or undoes what backward may have left behind and swallows the abort."""

    def __init__(self, session: Session, weight: int | None) -> None:
        self._session = session
        self._weight = weight
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._began = 0.0
        self._waited_s = 0.0

    def __enter__(self) -> None:
        s = self._session
        if s._share is None:
            raise ElasticError("s.step() belongs into the body of `for batch in s.batches()`, once for each batch")
        share, weight = s._share, self._weight
        self._began, self._waited_s = time.monotonic(), s._committer.waited_s
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in s.model.buffers()]
        torch.manual_seed(mix(s._sampler.seed, s._position.step, s._committer.world.rank))
        if s._shards is not None:
            s._shards.begin(share.batch)
        counts = share.weight if weight is None or not share.weight else weight
        if s._norms is not None:
            s._norms.begin(counts, share.batch)
        if s._scale is not None:
            s._scale.begin(counts, share.batch)
        s._reducer.arm(counts, share.batch, self._commit)
        s._lifecycle.step_began = self._began

    def _commit(self, outcome: StepOutcome) -> None:
        """Gradients are there, everywhere or soon: from here on there is no way back."""
        s = self._session
        share = s._share
        if share is None:
            raise ElasticError("backward was called again after the step was committed")
        s._lifecycle.step_began = None
        s._position.step += 1
        s._position.cursor += share.batch
        s._position.samples += share.batch
        s._committed = True
        s._lifecycle.committed(outcome)
        s._session_batch.lr_scaling.committed(s._position.samples)
        s._proportional_shares.update(s._position.step, s._reducer.ns_per_sample)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        s = self._session
        share, s._share = s._share, None
        s._lifecycle.step_began = None
        s._reducer.disarm()
        if s._norms is not None:
            s._norms.end()
        if s._scale is not None:
            s._scale.end()
        if isinstance(error, Aborted):
            self._undo()
            s._lifecycle.broken()
            return True
        if error is not None:
            if not isinstance(error, SystemExit | KeyboardInterrupt):
                s._reports.say(
                    messages.Failed(
                        s._position.step, f"{s._reconfigurer._worker}: {type(error).__name__}: {error}"[:2000]
                    )
                )
                if s._reconfigurer.link is not None:
                    s._reconfigurer.link.flush(2.0)
            return False
        if not s._committed or share is None:
            raise ElasticError("the step ended without a backward() outside s.accumulate()")
        now = time.monotonic()
        s._lifecycle.last_commit = now
        s._reconfigurer.describe()
        s._committer.record_step_time(now - self._began)
        waited = s._committer.waited_s - self._waited_s
        computed = now - self._began - waited
        s._reducer.own_ns_per_sample = int(1e9 * (s._load_s + computed) / share.weight) if share.weight else 0
        parts = {"data": s._load_s, "compute": computed, "sync": waited}
        s._meter.step(s.nodes, share.batch, s._position.step, s._position.samples, parts)
        return False

    def _undo(self) -> None:
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        self._session._reducer.reset_after_abort()
