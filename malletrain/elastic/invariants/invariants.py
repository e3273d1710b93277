"""What one session holds a training to at every step, by itself and between members.

Only gradients of the whole batch, and of this step alone, may change the model. They are sums over all workers once a
step is committed: where the next step adds to them, each worker adds its part to the whole sum of before, which then
counts once for each worker; and a worker that joins has none.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import GradientPhase, GradientReducer
from malletrain.elastic.invariants.agreement import Agreement
from malletrain.elastic.invariants.digest import Digests, digest, digest_of_text
from malletrain.elastic.state.shared_values import SharedValues
from malletrain.elastic.state.training_state import TrainingState

log = logging.getLogger("malletrain.elastic")

#: Steps after which the model is searched for parameters that it did not have.
STEPS_BETWEEN_WALKS = 50

#: Parameters whose gradients are looked at for those of an earlier step, evenly over the model.
MAX_PARAMETERS = 4


class Invariants:
    """The invariants of one session. `in_step`: returns whether a step is under way. `order`: returns
    an epoch's order of samples, and where its batches end, where the script has one of its own. `dataset`: returns a
    digest of what the script has made of its data set."""

    def __init__(
        self,
        state: TrainingState,
        shared: SharedValues,
        committer: StepCommitter,
        reducer: GradientReducer,
        in_step: Callable[[], bool],
        order: Callable[[int], object] | None,
        dataset: Callable[[], str] | None,
    ) -> None:
        self._state, self._shared, self._committer, self._reducer = state, shared, committer, reducer
        self._in_step, self._order, self._dataset = in_step, order, dataset
        self._order_digest: tuple[int, int] = -1, 0
        self._steps = 0
        self._parameters = list(state.model.parameters())
        self._trained = self._trained_now()  #: as gradients are laid out
        self._buffers = _shared_buffers(state.model)
        self.agreement = Agreement(committer, state.position, self._new_layout, self._plain, self._values)
        #: Parameters, with where the gradient lies that a step has left, and how often it was written.
        self._left: list[tuple[torch.Tensor, int, int]] = []
        self._stale = frozenset[int]()  #: the ids of those whose gradients this step was added to
        reducer.first_arrived = self._arrived
        self._watch_optimizers()

    def entered(self) -> None:
        """Training begins in a world; every member is at the same place of the script. Those that hold the state have
        sent newcomers what is trained now."""
        self.agreement.digest_due = True
        self._parameters = list(self._state.model.parameters())
        if self._trained != self._trained_now():
            self.lay_out_again()

    def begin_step(self) -> None:
        """Look at which parameters the model has now: the script may have put others in the place of some."""
        self._steps += 1
        if self._steps % STEPS_BETWEEN_WALKS == 0:
            self._parameters = list(self._state.model.parameters())
        self.follow_script()

    def follow_script(self) -> None:
        """Alone, train what requires gradients now; to others the rows of the next round tell that it is new."""
        if self._committer.world.size == 1 and self._trained != self._trained_now():
            self.lay_out_again()

    def end_step(self, *, committed: bool, ends_epoch: bool) -> None:
        """A step is over: mark the gradients that it leaves."""
        self._stale = frozenset()
        parameters = self._reducer.parameters
        some = parameters[:: max(1, -(-len(parameters) // MAX_PARAMETERS))] if committed else []
        self._left = [
            (each, grad.data_ptr(), grad._version)
            for each in some
            if (grad := each.grad) is not None and grad.layout is torch.strided
        ]
        if committed and ends_epoch:
            self.agreement.epoch_ended()

    def lay_out_again(self) -> None:
        """Train the parameters that require gradients now."""
        self._parameters = list(self._state.model.parameters())
        self._trained = self._trained_now()
        self._stale, self._left = frozenset(), []
        self._reducer.lay_out([(name, p) for name, p in self._state.model.named_parameters() if p.requires_grad])
        log.info("%d tensors are trained now", len(self._reducer.parameters))

    def end(self) -> None:
        """Training is over: optimizers may step as they like."""
        for handle in self._handles:
            handle.remove()

    def _watch_optimizers(self) -> None:
        """Check the steps of every optimizer of this process, until `end`."""
        own = weakref.ref(self)

        def look(after: bool, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            # With a closure, which makes its gradients in the step, only as the step ends.
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            live = own()
            if live is not None and after == (closure is not None):
                live.check_optimizer(optimizer)

        self._handles = [
            register_optimizer_step_pre_hook(functools.partial(look, False)),
            register_optimizer_step_post_hook(functools.partial(look, True)),
        ]
        for handle in self._handles:
            weakref.finalize(self, handle.remove)

    def _arrived(self, first: torch.Tensor) -> None:
        """The first gradient of a step has been added to that of this parameter."""
        self._stale = frozenset(
            id(each)
            for each, place, version in self._left
            if (now := each.grad) is not None
            and now._version == version + int(each is first)
            and now.data_ptr() == place
        )

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise `ElasticError` if a step that changes parameters has other gradients than those of the whole
        batch."""
        if self._reducer.aborted is not None:
            return  # what it does is undone
        covered, in_step = self._reducer.covered, self._in_step()
        every = [each for group in optimizer.param_groups for each in group["params"]]
        others = [each for each in every if id(each) not in covered]
        trains = len(others) < len(every)  # the session's model
        if trains:
            self._check_phase(in_step=in_step)
            if in_step and self._stale and not self._stale.isdisjoint(map(id, every)):
                raise ElasticError(
                    "optimizer.step() has gradients that were added to those of an earlier step, which are sums over "
                    "all workers already: call optimizer.zero_grad() in every step, before backward(); for parts of "
                    "a batch, `with step.accumulate():` inside a step"
                )
        strange = [each for each in others if getattr(each, "grad", None) is not None]
        if strange and not self._reducer.adapting and (in_step or trains):
            raise ElasticError(
                f"{type(optimizer).__name__}.step() trains a parameter of shape {tuple(strange[0].shape)} that the "
                "session does not have: Session([generator, discriminator], [optimizer_g, optimizer_d], ...). A copy "
                "that adapts to one sample (MAML, Reptile) is trained in `with step.inner_loop():`"
            )

    def _check_phase(self, *, in_step: bool) -> None:
        if self._reducer.adapting:
            raise ElasticError("optimizer.step() in step.inner_loop() changes the session's model: train a copy")
        phase = self._reducer.phase
        if phase is GradientPhase.USED:
            raise ElasticError(
                "optimizer.step() comes after s.agree() or s.evaluate() in the body of the loop, with which its step "
                "is over: call it before them"
            )
        if in_step and phase is GradientPhase.LOCAL:
            raise ElasticError(
                "optimizer.step() has gradients of this worker alone: step.accumulate() is only for parts of one "
                "loss. For several optimizers (a GAN) or several steps a batch (SAM) say s.step(backwards=N); for an "
                "inner loop (MAML, Reptile) train a copy in `with step.inner_loop():`"
            )
        if in_step and phase is GradientPhase.NONE:
            raise ElasticError("optimizer.step() comes before this step's backward(): call it after")

    def _trained_now(self) -> list[int]:
        return [id(each) for each in self._parameters if each.requires_grad]

    def _new_layout(self) -> int:
        """A digest of what is trained, if the script has changed that since the last step."""
        return 0 if self._trained == self._trained_now() else digest_of_text(repr(self._state.layout()["trained"]))

    def _plain(self) -> dict[str, Any]:
        """What the script has set, the numbers that optimizers learn with, and what else all must have alike."""
        found = {f's.state["{name}"]': value for name, value in self._shared.plain().items()}
        found["number of tensors"] = len(self._reducer.parameters) + len(list(self._shared.tensors()))
        if self._dataset is not None:
            found["data set"] = self._dataset()
        if self._order is not None:
            epoch = self._state.position.epoch
            if self._order_digest[0] != epoch:
                self._order_digest = epoch, digest_of_text(repr(self._order(epoch)))
            found["order of samples"] = str(self._order_digest[1])
        for number, optimizer in enumerate(self._state.optimizers):
            for place, group in enumerate(optimizer.param_groups):
                where = f" of group {place}" if place else ""
                where += f" of optimizer {number}" if number else ""
                for name, value in group.items():
                    if isinstance(value, torch.Tensor) and value.ndim == 0:
                        value = None if value.is_cuda else float(value)
                    if isinstance(value, int | float | tuple) and not isinstance(value, bool):
                        found[f"{name}{where}"] = value
        return found

    def _values(self) -> Digests:
        named: list[tuple[str, torch.Tensor]] = [
            (name if each.requires_grad else f"frozen {name}", each)
            for name, each in self._state.model.named_parameters()
            if each.requires_grad or not each.is_meta
        ]
        named += self._shared.tensors()
        for path, table, name, first in self._buffers:
            now = table.get(name)
            same = now is not None and now.shape == first.shape and now.dtype == first.dtype
            named.append((f"buffer {path}", now if same and now is not None else torch.zeros_like(first)))
        for name, thing in self._state.tracked.items():
            if isinstance(thing, nn.Module):
                named += [(f"{name}.{key}", each) for key, each in thing.named_parameters()]
        return digest(named)


def _shared_buffers(model: nn.Module) -> list[tuple[str, dict[str, torch.Tensor | None], str, torch.Tensor]]:
    """The buffers of a model that all workers must have alike (codebooks, centres, queues, counts): path, where and
    under which name it lies, and how it is now. Statistics of normalisation layers and of quantisation's observers
    follow a worker's own samples by right, and buffers that are not saved are caches: these are left out."""
    return [
        (f"{path}.{name}".lstrip("."), module._buffers, name, buffer)
        for path, module in model.named_modules()
        if not (isinstance(module, nn.modules.batchnorm._NormBase) or type(module).__module__.startswith("torch.ao."))
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.numel() and name not in module._non_persistent_buffers_set
    ]
