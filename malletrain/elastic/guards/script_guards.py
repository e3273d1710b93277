"""All guards of one session: what the script must not do is found at each step, by itself and between members."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.data.sample_loader import SampleLoader
from malletrain.elastic.data.streams import StreamReader
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import GradientPhase, GradientReducer
from malletrain.elastic.guards.agreement import Agreement, Sources
from malletrain.elastic.guards.chance import ChanceWatch
from malletrain.elastic.guards.data_sets.dataset_attributes import DatasetAttributes
from malletrain.elastic.guards.data_sets.sample_examination import (
    Examination,
    Fingerprint,
    examine,
    examine_streams,
    look_again,
)
from malletrain.elastic.guards.digest import Digests, digest, digest_of_text
from malletrain.elastic.guards.gradient_functions import gradient_functions
from malletrain.elastic.guards.gradient_hooks import gradient_hooks, hooks_of
from malletrain.elastic.guards.inner_loops import InnerLoops
from malletrain.elastic.guards.loss_watch import LossWatch
from malletrain.elastic.guards.objections import Check, Objections
from malletrain.elastic.guards.operations.batch_watch import PADS, BatchWatch
from malletrain.elastic.guards.operations.forward_numbers import ForwardNumbers
from malletrain.elastic.guards.operations.read_watch import ReadWatch
from malletrain.elastic.guards.script_place import current_line
from malletrain.elastic.guards.script_state import (
    CopyWatch,
    compared,
    generators,
    sources_of_losses,
    warn_collections,
    warn_draws,
    warn_untracked,
    warn_writes,
)
from malletrain.elastic.guards.script_text.loss_sources import ERRORS, LENGTH, OF_FIXED_BATCH, REMEDIES
from malletrain.elastic.guards.shared_buffers import saved_buffers, shared_buffers
from malletrain.elastic.guards.stale_gradients import StaleGradients
from malletrain.elastic.guards.step_forms import StepForms, form_of
from malletrain.elastic.guards.step_guard import StepGuard
from malletrain.elastic.state.shared_values import SharedValues
from malletrain.elastic.state.training_state import TrainingState

log = logging.getLogger("malletrain.elastic")

#: What `rates` calls how many tensors are trained.
LAYOUT = "number of tensors"

#: Steps after which the model is searched for parameters that it did not have. (Optimizers that train one are noticed
#: at their next step.)
STEPS_BETWEEN_WALKS = 50

#: Steps after which a step's operations are looked at once more, beyond the first ones of each world; how many epochs
#: begin with such steps, and with how many: what is there in two of them was not made by a step.
STEPS_BETWEEN_LOOKS, FIRST_EPOCHS, FIRST_OF_EPOCH = 64, 8, 2

_PARTS = (
    "Parts of a batch give another result than the whole. Compute it for each sample before the mean, or from the "
    "whole data set; with Session(..., virtual_shards=N) each shard has its own, at every number of workers; with "
    "Session(..., additive_loss=False) the result may depend on the workers"
)


class ScriptGuards:
    """The guards of one session.

    Args:
        check: `error` raises what is found, `warn` logs it once, `off` does not look.
        state: the training state.
        shared: the values of `Session.state`.
        committer: exchanges what members compare.
        reducer: sums gradients.
        in_step: returns whether `with s.step()` is being executed.
        dataset: of the session.

    Attributes:
        agreement: what members compare in each round.
        chance: watches for random numbers.
        sources: what this worker alone has and makes its loss with, with the script's line.
        order: returns an epoch's order of samples, and where its batches end, where the script has one of its own.
        attributes: what the script sets on its data set.
        fixed_batch: whether the batch is the same at every number of workers.
        inner_loops: of the step under way.
        compares: whether the script says that its loss is no sum over samples.
        tried_forms: kinds of steps, and whether one of them has been tried in parts.
    """

    def __init__(
        self,
        check: Check,
        state: TrainingState,
        shared: SharedValues,
        committer: StepCommitter,
        reducer: GradientReducer,
        in_step: Callable[[], bool],
        dataset: Any,
    ) -> None:
        if check not in ("error", "warn", "off"):
            raise ElasticError(f"check must be error, warn or off, not {check!r}")
        self._check = check
        self._state = state
        self._shared = shared
        self._committer = committer
        self._reducer = reducer
        self.order: Callable[[int], object] | None = None
        self._order_digest: tuple[int, int] = -1, 0
        self._objections = Objections(check)
        self._parameters = list(state.model.parameters())
        self._steps = 0
        self._layout = self._find_layout()
        self._layout_digest = 0
        self._script_values: dict[str, Any] = {}
        self._epoch_began = 0  #: the step with which it did
        self._fingerprints: dict[str, Fingerprint] = {}  #: of samples of the data set
        self._loader: SampleLoader | None = None
        self._in_new_world = True
        self._numbers: ForwardNumbers | None = None  #: of the present step
        self._last_numbers: ForwardNumbers | None = None  #: of the last batch that was looked at
        self._reads = ReadWatch()
        sources = Sources(
            lambda: self._layout_digest,
            self.rates,
            lambda: self._script_values,
            self._values,
            lambda: self._numbers,
        )
        self.agreement = Agreement(committer, state.position, sources, check)
        self.chance = ChanceWatch()
        self.inner_loops = InnerLoops(reducer)
        self.sources: dict[str, str] = {}
        self.fixed_batch = True
        self.compares = False
        self.tried_forms, self._watched_forms = StepForms(), StepForms()
        self._form = 0  #: of the present step
        self._ratios: dict[str, float] = {}
        self._lengths: dict[str, int] | None = None
        self._buffers = list(shared_buffers(state.model))
        self._batch: Any = None
        self._batch_watch: BatchWatch | None = None
        self._copies = CopyWatch(state)
        self.attributes = DatasetAttributes(dataset)
        self._stale_gradients = StaleGradients(lambda: self._reducer.parameters)
        self._step_guard = (
            StepGuard(reducer, in_step, self._objections.raise_or_warn, self._stale_gradients)
            if check != "off"
            else None
        )
        reducer.strict = check == "error"

    def begin(self) -> None:
        """Training begins on this worker: name what the script has forgotten to track, or to leave to one worker."""
        if self._check != "off":
            warn_untracked(self._state)
            warn_writes()
            warn_draws()
            warn_collections()

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """While active, the model is called with samples before training begins, which must leave parameters alone.

        Raises:
            ElasticError: it has changed one.
        """
        compares = self._check != "off" and self._state.mesh is None
        before = digest(self._trained()).sums if compares else None
        yield
        if before is None:
            return
        after = digest(self._trained())
        changed = [name for name, old, new in zip(after.names, before, after.sums, strict=True) if old != new]
        if changed:
            self._objections.raise_or_warn(
                f"{changed[0]} changes as the model is called: what is set from its first batch (as ActNorm) "
                "would be another at each number of workers, so call the model once with fixed samples before "
                "Session(...); what changes later (nn.Embedding(max_norm=...)) follows a worker's own samples, so "
                "change parameters after backward()"
            )

    def examine_samples(self, loader: SampleLoader, length: int) -> Examination:
        """Look at some samples of the data set before training begins.

        Raises:
            ElasticError: they depend on what was loaded before.
        """
        if self._check == "off":
            return Examination()
        with self.attributes.loading(watched=True):
            found = examine(loader, length)
        if found.wrong:
            self._objections.raise_or_warn(found.wrong)
        self._fingerprints, self._loader = found.fingerprints, loader
        self._lengths = {} if found.pads else None
        return found

    def examine_streams(self, reader: StreamReader) -> Examination:
        """Look at the first samples of streams before training begins.

        Raises:
            ElasticError: a batch depends on what was loaded before.
        """
        if self._check == "off":
            return Examination()
        found = examine_streams(reader)
        if found.wrong:
            self._objections.raise_or_warn(found.wrong)
        return found

    def entered(self) -> None:
        """Training begins in a world; every member is at the same place of the script. Those that hold the state have
        sent newcomers what is trained now."""
        self.agreement.want_digest()
        self._in_new_world = True
        self.chance.begin_world()
        self._copies.forget()
        self._batch_watch = None
        if self._find_layout() != self._layout:
            self.lay_out_again()

    def begin_step(self, seed: int) -> None:
        """Look at what the script has changed since the last step, and seed the random generators.

        Raises:
            ElasticError: there is something that a worker that joins would not have.
        """
        self._steps += 1
        self._form = 0
        self.inner_loops.begin_step()
        if self._steps % STEPS_BETWEEN_WALKS == 0:
            self._parameters = list(self._state.model.parameters())
        if self._state.layout_restored:
            self._state.layout_restored = False
            self.lay_out_again()
        if self._find_layout() != self._layout:
            if self._committer.world.size == 1:
                self.lay_out_again()
            else:  # the others may be about to make this step with the parameters that it had
                self._layout_digest = digest_of_text(repr(self._state.layout()["trained"]))
        if self._check != "off":
            self._script_values = compared()
            self._script_values |= {f's.state["{name}"]': value for name, value in self._shared.plain().items()}
            self._script_values |= self.attributes.compared()
            begins = not self._state.position.cursor  # an epoch
            if self._loader is not None and (begins or self._in_new_world):
                self._in_new_world = False
                with self.attributes.loading(watched=True):
                    look_again(self._loader, self._fingerprints)
            if self.chance.is_early or begins:
                self._script_values |= self._fingerprints
                self._script_values |= self.attributes.compared_values()
            if self.chance.is_early:
                self._script_values |= generators(self._shared.values())
                self.sources |= gradient_hooks(hooks_of(self._state.model))
            if self.chance.is_early or begins:
                try:
                    self._copies.look(self._batch)
                except ElasticError as error:
                    self._objections.raise_or_warn(str(error))
            else:
                self._copies.forget()
        if self._batch_watch is not None and self._last_numbers is not None:
            self._last_numbers.note_draws()
        looks = self._batch_watch is not None
        self.chance.begin(seed, missed=self._committer.received_sums is not None, looks=looks)

    def watch_losses(self, *, mean: bool, weighted: bool, pairs: bool, samples: int) -> LossWatch | None:
        """Look at the losses of a step while the result is active.

        Args:
            mean: whether the session expects a mean over samples.
            weighted: whether the script has said over how much the loss is a mean.
            pairs: whether a loss may compare samples with each other.
            samples: of this worker in the step; 0 where its losses are of parts of them.
        """
        if self._check == "off":
            return None
        may_wait = self.chance.is_watching
        return LossWatch(
            self._object_to_loss,
            mean=mean,
            weighted=weighted,
            pairs=pairs,
            may_wait=may_wait,
            samples=samples,
            before=functools.partial(self._begin_backward, lengths=mean and not weighted),
            ratios=self._ratios,
            note_pads=None if self._lengths is None else self._note_pads,
            in_parts=lambda: self._reducer.accumulating or self._reducer.phase is GradientPhase.LOCAL,
            more_parts=lambda: self._reducer.accumulating,
            adapting=lambda: self._reducer.adapting,
        )

    def batch_given(self, batch: Any, samples: int, *, judges: bool) -> None:
        """A batch is given to the script. In the first steps of a world and now and then later, each operation is
        looked at from here to the end of the step.

        Args:
            samples: of this worker in it.
            judges: whether samples that meet make the result depend on workers.
        """
        self.end_between()
        if not self._state.position.cursor:
            self._epoch_began = self._state.position.step
        self._batch = batch if self._looks_at_operations else None
        earlier, self._batch_watch, self._numbers = self._batch_watch, None, None
        if self._batch is not None and self._watched_forms.expects(self._state.position.step):
            self._watched_forms.take()
        if self._batch is not None:
            self._reads.start()
            self._batch_watch = self._new_watch(samples, earlier if self.chance.is_early else None, judges=judges)
            self._batch_watch.begin_between()
        self.chance.begin_between(looks=self._batch is not None)

    def end_between(self) -> None:
        """What follows is no longer what the script makes of the batch before its step."""
        if self._batch_watch is not None:
            self._batch_watch.end_between()

    def _new_watch(self, samples: int, earlier: BatchWatch | None, *, judges: bool) -> BatchWatch:
        state: list[torch.Tensor] = [*self._state.model.parameters(), *saved_buffers(self._state.model)]
        state += [tensor for _, tensor in self._shared.tensors()]
        for thing in self._state.tracked.values():
            if isinstance(thing, torch.nn.Module):
                state += [*thing.parameters(), *thing.buffers()]
        leaves = tree_leaves(self._batch)
        batch = [each for each in leaves if isinstance(each, torch.Tensor)]
        self._last_numbers = ForwardNumbers(samples if judges else 0, self._batch, self._last_numbers)
        return BatchWatch(
            *(samples, state, batch, self._changing, earlier, self._last_numbers),
            judges=judges,
            complete=all(isinstance(each, torch.Tensor | int | float | str | None) for each in leaves),
            adapting=lambda: self._reducer.adapting,
            values_read=lambda: self._reads.values,
            lengths=self._lengths,
        )

    def watch_batch(self, *, counts: bool) -> BatchWatch | None:
        """Look on at each operation, in the step.

        Args:
            counts: whether the script has said over how much its loss is a mean, or that it is a sum.
        """
        watch = self._batch_watch
        if watch is None or watch.over:
            return None
        self._numbers = self._last_numbers
        if self._numbers is not None:
            self._numbers.seeded()
        watch.counts = counts
        return watch

    def step_is_void(self) -> None:
        """The step under way is to be repeated: its operations are looked at no longer."""
        if self._batch_watch is not None:
            self._batch_watch.over = True

    def end_step(self) -> None:
        """The block of a step is over."""
        self._reads.stop()
        self._numbers = None
        self.sources |= {
            what: line for what, line in self.agreement.forward.found.items() if what not in self.sources
        }
        if self._step_guard is not None and self._state.mesh is None:
            self._stale_gradients.end_step()

    def step_made(self, step: int, *, tried: bool) -> None:
        """A step is made.

        Args:
            step: its number.
            tried: whether it was tried in parts.
        """
        self.tried_forms.made(step, self._form, examined=tried)
        self._watched_forms.made(step, self._form, examined=self._batch_watch is not None)

    def looking_away(self) -> AbstractContextManager[Any]:
        """A context manager around operations that are none of the script's."""
        return nullcontext() if self._batch_watch is None else self._batch_watch.looking_away()

    def note_gathered(self, rows: torch.Tensor) -> None:
        """These are rows of all workers' samples."""
        if self._batch_watch is not None:
            self._batch_watch.note_gathered(rows)

    def lay_out_again(self) -> None:
        """Train the parameters that require gradients now.

        Raises:
            ElasticError: the model is sharded.
        """
        if self._state.mesh is not None:
            raise ElasticError("a sharded model cannot freeze or unfreeze parameters after Session(...)")
        self._parameters = list(self._state.model.parameters())
        self._layout, self._layout_digest = self._find_layout(), 0
        self._reducer.lay_out(self._trained())
        log.info("%d tensors are trained now", len(self._layout))

    def writes_buffers(self) -> bool:
        """Whether the script has written to buffers that all workers have alike."""
        return any(each.is_written() for each in self._buffers)

    def object_to(self, message: str, key: str) -> None:
        """Object to what the session has found out: raise `ElasticError`, or log it once for all of one key."""
        self._objections.raise_or_warn(message, key)

    def stop_looking(self) -> None:
        """In a forked copy of a worker, which only computes: look at nothing."""
        self._check = "off"
        self._step_guard = None

    def end(self) -> None:
        """Training is over: optimizers may step as they like."""
        self._reads.stop()
        self._step_guard = None

    # --- inside -----------------------------------------------------------------------------------------------

    def _changing(self) -> Iterator[torch.Tensor]:
        """Gradients, and what optimizers keep."""
        yield from (parameter.grad for parameter in self._state.model.parameters() if parameter.grad is not None)
        for optimizer in self._state.optimizers:
            for kept in optimizer.state.values():
                yield from (each for each in kept.values() if isinstance(each, torch.Tensor))

    def _begin_backward(self, loss: Any, *, lengths: bool) -> None:
        """The forward pass is complete. Look, in the first steps, for what this worker alone makes its loss with."""
        self._reads.stop()
        roots = [each.grad_fn for each in tree_leaves(loss) if isinstance(each, torch.Tensor)]
        self._form = form_of(roots, self._form)
        if self._numbers is not None:
            self._numbers.close(loss, reads=self._reads.reads, weighted=not lengths)
        if self._batch_watch is not None:
            self.sources |= gradient_hooks(self._batch_watch.hooked())
            with self.looking_away():
                self.sources |= gradient_functions(loss)
            for what, line in self._batch_watch.made_with(loss):
                self._batch_watch.found.setdefault(what, line)
                if not self.compares:
                    self._objections.raise_or_warn(f"{line}: the loss is made with {what}. {_PARTS}")
        if self._reducer.begins_step and self._state.mesh is None:
            with self.looking_away():
                self._stale_gradients.begin_backward(thorough=self.chance.is_watching)
        if self.chance.is_early:
            for what, line in sources_of_losses().items():
                if what in ERRORS:
                    if self.fixed_batch or what not in OF_FIXED_BATCH:
                        self._objections.raise_or_warn(f"{line}: {what}; {ERRORS[what]}")
                elif what not in self.sources and (lengths or what != LENGTH):
                    self.sources[what] = line
                    log.warning("%s: a loss is made with %s. %s", line, what, REMEDIES[what])

    @property
    def _looks_at_operations(self) -> bool:
        """Whether the next step's operations are looked at."""
        at = self._state.position
        begins = at.epoch < FIRST_EPOCHS and at.step - self._epoch_began < FIRST_OF_EPOCH
        regular = begins or at.step % STEPS_BETWEEN_LOOKS == 0 or self._watched_forms.expects(at.step)
        possible = self._check != "off" and self._state.mesh is None and BatchWatch.is_possible(self._state.model)
        return possible and (self.chance.is_early or regular)

    def _object_to_loss(self, message: str) -> None:
        line = current_line()
        self._objections.raise_or_warn(f"the loss{f' ({line})' if line else ''} {message}")

    def _note_pads(self) -> None:
        self.sources.setdefault(PADS, current_line())

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, p) for name, p in self._state.model.named_parameters() if p.requires_grad]

    def _find_layout(self) -> tuple[int, ...]:
        return tuple(id(parameter) for parameter in self._parameters if parameter.requires_grad)

    def rates(self) -> dict[str, Any]:
        """The numbers that optimizers learn with, by name, and what else all workers must have alike."""
        found: dict[str, Any] = {LAYOUT: len(self._layout) + sum(1 for _ in self._shared.tensors())}
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
