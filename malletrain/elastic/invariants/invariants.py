"""What one session holds a training to at every step, by itself and between members."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.invariants.agreement import Agreement, Sources
from malletrain.elastic.invariants.digest import Digests, digest, digest_of_text
from malletrain.elastic.invariants.optimizer_steps import OptimizerSteps, StaleGradients
from malletrain.elastic.state.shared_values import SharedValues
from malletrain.elastic.state.training_state import TrainingState

log = logging.getLogger("malletrain.elastic")

#: What `rates` calls how many tensors are trained.
LAYOUT = "number of tensors"

#: Steps after which the model is searched for parameters that it did not have. (Optimizers that train one are noticed
#: at their next step.)
STEPS_BETWEEN_WALKS = 50

_OWN_BY_RIGHT = (nn.modules.batchnorm._NormBase,)


class Invariants:
    """The invariants of one session.

    Args:
        state: the training state.
        shared: the values of `Session.state`.
        committer: exchanges what members compare.
        reducer: sums gradients.
        in_step: returns whether `with s.step()` is being executed.

    Attributes:
        agreement: what members compare in each round.
        order: returns an epoch's order of samples, and where its batches end, where the script has one of its own.
        dataset: returns a digest of what the script has made of its data set.
    """

    def __init__(
        self,
        state: TrainingState,
        shared: SharedValues,
        committer: StepCommitter,
        reducer: GradientReducer,
        in_step: Callable[[], bool],
    ) -> None:
        self._state = state
        self._shared = shared
        self._committer = committer
        self._reducer = reducer
        self.order: Callable[[int], object] | None = None
        self.dataset: Callable[[], str] | None = None
        self._order_digest: tuple[int, int] = -1, 0
        self._steps = 0
        self._parameters = list(state.model.parameters())
        self._trains = [each.requires_grad for each in self._parameters]
        self._layout_digest = 0
        self._buffers = list(shared_buffers(state.model))
        sources = Sources(lambda: self._layout_digest, self._rates, self._plain_state, self._values)
        self.agreement = Agreement(committer, state.position, sources)
        self._stale = StaleGradients()
        self._optimizer_steps = OptimizerSteps(reducer, in_step, self._stale)
        reducer.first_arrived = self._stale.arrived

    def entered(self) -> None:
        """Training begins in a world; every member is at the same place of the script. Those that hold the state have
        sent newcomers what is trained now."""
        self.agreement.want_digest()
        self._search()
        if self._trains != [each.requires_grad for each in self._parameters]:
            self.lay_out_again()

    def begin_step(self) -> None:
        """Look at which parameters are trained now."""
        self._steps += 1
        if self._steps % STEPS_BETWEEN_WALKS == 0:
            self._search()
        if self._state.layout_restored:
            self._state.layout_restored = False
            self.lay_out_again()
        if self._trains != [each.requires_grad for each in self._parameters]:
            if self._committer.world.size == 1:
                self.lay_out_again()
            else:  # the others may be about to make this step with the parameters that it had
                self._layout_digest = digest_of_text(repr(self._state.layout()["trained"]))

    def end_step(self, *, committed: bool, ends_epoch: bool) -> None:
        """The block of a step is over."""
        if not committed:
            self._stale.forget()
        elif self._state.mesh is None:
            self._stale.step_ended(self._reducer.parameters)
            if ends_epoch:
                self.agreement.epoch_ended()

    def lay_out_again(self) -> None:
        """Train the parameters that require gradients now.

        Raises:
            ElasticError: the model is sharded.
        """
        if self._state.mesh is not None:
            raise ElasticError("a sharded model cannot freeze or unfreeze parameters after Session(...)")
        self._parameters = list(self._state.model.parameters())
        self._trains, self._layout_digest = [each.requires_grad for each in self._parameters], 0
        self._stale.forget()
        self._reducer.lay_out(self._trained())
        log.info("%d tensors are trained now", len(self._reducer.parameters))

    def end(self) -> None:
        """Training is over: optimizers may step as they like."""
        self._optimizer_steps.end()

    # --- inside -----------------------------------------------------------------------------------------------

    def _search(self) -> None:
        """Find the model's parameters: the script may have put others in the place of some."""
        found = list(self._state.model.parameters())
        if [id(each) for each in found] != [id(each) for each in self._parameters]:
            self._parameters, self._trains = found, []

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, p) for name, p in self._state.model.named_parameters() if p.requires_grad]

    def _plain_state(self) -> dict[str, Any]:
        found = {f's.state["{name}"]': value for name, value in self._shared.plain().items()}
        return found if self.dataset is None else {**found, "data set": self.dataset()}

    def _rates(self) -> dict[str, Any]:
        """The numbers that optimizers learn with, by name, and what else all workers must have alike."""
        found: dict[str, Any] = {LAYOUT: len(self._reducer.parameters) + len(list(self._shared.tensors()))}
        if self.order is not None:
            epoch = self._state.position.epoch
            if self._order_digest[0] != epoch:
                self._order_digest = epoch, digest_of_text(repr(self.order(epoch)))
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
        if self._state.mesh is not None:
            return digest([])  # each process of a node has another shard
        named: list[tuple[str, torch.Tensor]] = [*self._trained(), *self._shared.tensors()]
        named += [
            (f"frozen {name}", each)
            for name, each in self._state.model.named_parameters()
            if not (each.requires_grad or each.is_meta)
        ]
        named += [(f"buffer {each.path}", each.value()) for each in self._buffers]
        for name, thing in self._state.tracked.items():
            if isinstance(thing, torch.nn.Module):
                named += [(f"{name}.{key}", each) for key, each in thing.named_parameters()]
        return digest(named)


@dataclass(frozen=True, slots=True)
class SharedBuffer:
    """One buffer: its path, the module that holds it, and how it was as the session began."""

    path: str
    module: nn.Module
    name: str
    first: torch.Tensor

    def value(self) -> torch.Tensor:
        """The buffer as it is; zeros if it has another shape or type by now."""
        now = self.module._buffers.get(self.name)
        if now is None or now.shape != self.first.shape or now.dtype != self.first.dtype:
            return torch.zeros_like(self.first)
        return now


def shared_buffers(model: nn.Module) -> Iterator[SharedBuffer]:
    """The buffers of a model that all workers must have alike: codebooks, centres, queues, counts.

    Statistics of normalisation layers and of quantisation's observers follow a worker's own samples by right, and
    buffers that are not saved with the model are caches: these are left out.
    """
    for path, module in model.named_modules():
        if isinstance(module, _OWN_BY_RIGHT) or type(module).__module__.startswith("torch.ao."):
            continue
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.numel() and name not in module._non_persistent_buffers_set:
                yield SharedBuffer(f"{path}.{name}".lstrip("."), module, name, buffer)
