"""The gradient reducer: sums gradients over members while backward runs; when backward returns they are final.

As in DistributedDataParallel (Li et al., VLDB 2020), parameters lie in buckets in reverse order, and each bucket is
reduced as soon as its gradients are there, always in the same order. Unlike there, each member's gradients are
weighted by its samples, a parameter that no member used keeps `grad = None`, and a failed round leaves no trace.

A step may have several backward passes, each with sums of its own (a GAN, SAM). The last one commits the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
import torch.distributed

from malletrain.elastic.comm.group import Work
from malletrain.elastic.comm.step_commit import CONTROL_LENGTH, StepCommitter, StepOutcome, total_weight
from malletrain.elastic.errors import Aborted, ElasticError, StepRepeated
from malletrain.elastic.gradients import finiteness
from malletrain.elastic.gradients.finiteness import LateRead, all_finite, are_finite, largest
from malletrain.elastic.gradients.noise_scale import NoiseScale
from malletrain.elastic.gradients.size_trial import SizeTrial

#: Exported without types.
_dist: Any = torch.distributed

FIRST_BUCKET_BYTES = 1024 * 1024
BUCKET_BYTES = 25 * 1024 * 1024


class GradientPhase(Enum):
    """What the gradients are, within a step."""

    NONE = auto()  #: those of an earlier step
    LOCAL = auto()  #: of this member's part of the batch
    SUMMED = auto()  #: of the whole batch
    USED = auto()  #: of a step that is over, in whose body the script goes on


@dataclass(slots=True)
class _Bucket:
    members: list[int]  #: indices of parameters
    sizes: list[int]  #: of its members, in elements
    shapes: list[torch.Size]
    dtype: torch.dtype
    device: torch.device
    missing: int = 0

    @staticmethod
    def of(parameters: Sequence[torch.Tensor], members: list[int]) -> _Bucket:
        some = [parameters[index] for index in members]
        return _Bucket(members, [p.numel() for p in some], [p.shape for p in some], some[0].dtype, some[0].device)

    def buffer(self) -> torch.Tensor:
        """Room for the gradients of its members."""
        return torch.empty(sum(self.sizes), dtype=self.dtype, device=self.device)


class GradientReducer:
    """Reduces the gradients of a model, by hooks on its parameters.

    Args:
        parameters: name and parameter, in the model's order; those that require gradients.
        mean: whether the script's loss is a mean over its samples (else a sum).
        step: returns the number of the step in progress, the same on every member.
        noise: gets the norms that it needs, in the steps that it measures.

    Attributes:
        must_be_finite: whether gradients that are nan or infinite are an error.
        weight, batch, samples: see `arm` and `set_terms`; of the last step between two.
        is_armed: whether a backward pass of the step under way is to come.
        is_closed: whether the step under way is committed.
        own_ns_per_sample: of this member's own work in the last step; set by the caller.
        ns_per_sample: what each member reported in the last round, by rank.
        covered: the ids of `parameters`, whose gradients are summed.
        accumulating: whether backward only accumulates gradients (DistributedDataParallel's `no_sync`).
        adapting: whether the script trains copies of the model now: a backward that reaches the model is an error.
        open_pass: called with the number of a backward pass before anything of it is summed.
        first_arrived: called with the parameter of a step's first gradient, which has been added to its `grad`; not
            in steps of several passes.
        aborted: why the round under way is void, until the next step: `backward` returns in it as in any other, with
            gradients of zero.
        on_abort: called as `backward` is about to return in such a round.
    """

    def __init__(
        self,
        parameters: list[tuple[str, torch.nn.Parameter]],
        committer: StepCommitter,
        mean: bool,
        step: Callable[[], int] = lambda: 0,
        *,
        noise: NoiseScale | None = None,
    ) -> None:
        self._sent: list[torch.Tensor] = []  #: what this pass sums, by bucket
        self._committer = committer
        self.mean = mean
        self.open_pass: Callable[[int], None] = lambda _: None
        self.first_arrived: Callable[[torch.Tensor], None] = lambda _: None
        self._scales = False
        self._hooks: list[Any] = []
        self._flats: list[torch.Tensor] = []  #: the buffers that are summed, one a bucket, once they are needed
        self.lay_out(parameters)
        self.is_armed = self.is_closed = False
        self._running = False
        self.accumulating = False
        self.weight, self.batch, self.samples = 0.0, 1, 0
        self._passes, self._pass = 1, 0
        self._alone = True
        self._seen: set[int] = set()
        self._launched = 0
        self._pending: list[Work] = []
        self._scale: float | None = None
        self._extras: list[tuple[int, Callable[[], list[torch.Tensor]], Callable[[list[torch.Tensor]], None]]] = []
        self._noise = noise
        self._measured = False
        self._step = step
        self.must_be_finite = True
        self.own_ns_per_sample = 0
        self.ns_per_sample: list[int] = []
        self._on_commit: Callable[[StepOutcome], None] = lambda _: None
        self.phase = GradientPhase.NONE
        self.adapting = False
        self.on_abort: Callable[[], None] = lambda: None
        self.aborted: Aborted | StepRepeated | None = None
        self._clears = False
        self.trial = SizeTrial()
        #: Of a worker alone on a device: step, names and norms of gradients on their way from it.
        self._unread: tuple[int, list[str], LateRead] | None = None

    def lay_out(self, parameters: list[tuple[str, torch.nn.Parameter]]) -> None:
        """Reduce the gradients of these parameters from now on. Call it between two steps, at the same step on every
        member."""
        for handle in self._hooks:
            handle.remove()
        self._names = [name for name, _ in parameters]
        self.parameters = [parameter for _, parameter in parameters]
        self.covered = {id(parameter) for parameter in self.parameters}
        self._buckets = self._lay_out()
        self._devices = list({bucket.device for bucket in self._buckets})
        #: The number of each parameter's bucket.
        self._home = {index: number for number, bucket in enumerate(self._buckets) for index in bucket.members}
        self._flats = []
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(index))
            for index, parameter in enumerate(self.parameters)
        ]
        if self._scales:
            self._hooks += [parameter.register_hook(self._scaled) for parameter in self.parameters]

    @property
    def passes_left(self) -> int:
        """Backward passes until the step in progress is committed."""
        return self._passes - self._pass

    def arm(self, samples: int, batch: int) -> None:
        """Begin a step, in which this member has `samples` of a `batch` of all."""
        self.weight, self.samples, self.batch = samples, samples, batch
        self.is_armed, self._running, self.accumulating = True, False, False
        self._passes, self._pass = 1, 0
        self.is_closed, self.phase = False, GradientPhase.NONE
        self.aborted, self._clears = None, False

    def set_terms(self, weight: float, passes: int, on_commit: Callable[[StepOutcome], None]) -> None:
        """The terms of a step of which nothing is summed yet: over how much this member's loss is a mean, the number
        of backward passes, and what is called when it is committed, before the last of them returns."""
        self.weight, self._passes, self._on_commit = weight, passes, on_commit

    def disarm(self) -> None:
        """End a step: backward works as without a session again."""
        self.is_armed = self._running = self.is_closed = False
        self._scale = None

    def factor_of(self, weight: float) -> float:
        """By what gradients of so many samples or tokens are multiplied before they are summed: of a mean over them,
        or of a sum."""
        return weight / self.batch if self.mean else float(weight > 0)

    def scale_gradients(self, factor: float | None) -> None:
        """Multiply gradients by `factor` before they are accumulated; None: weight accumulated ones, as usual."""
        if not self._scales:
            self._scales = True
            self._hooks += [parameter.register_hook(self._scaled) for parameter in self.parameters]
        self._scale = factor

    def add_extras(
        self, count: int, contribute: Callable[[], list[torch.Tensor]], apply: Callable[[list[torch.Tensor]], None]
    ) -> None:
        """Sum `count` further tensors with each step: those that `contribute` returns after backward. `apply` is then
        called with their sums, before the commit."""
        self._extras.append((count, contribute, apply))

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Around what may find out that the round is void: keeps the exception in `aborted`."""
        try:
            yield
        except (Aborted, StepRepeated) as error:
            self.aborted = error

    def sum_in_step(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over members, in place, within a step; it stays as it is where the step is void."""
        if self.aborted is None:
            with self.holding():
                self._committer.sum(tensor)
        return tensor

    def settle(self) -> None:
        """Wait until the gradients of all steps so far are known to be finite: a worker that trains alone on a device
        does not wait in each step. Call it before the training state is saved or sent. Raises `ElasticError`."""
        unread, self._unread = self._unread, None
        if unread is not None:
            step, names, norms = unread
            bad = [name for name, norm in zip(names, norms.values(), strict=True) if not math.isfinite(norm)]
            if bad:
                raise _not_finite(step, self._own_name(), bad[0])

    def reset_after_abort(self) -> None:
        """Discard the gradients of an aborted round. Operations in progress may still write to its buffers, so these
        are not used again."""
        self._flats = []
        self.disarm()
        for parameter in self.parameters:
            parameter.grad = None

    def _lay_out(self) -> list[_Bucket]:
        """Buckets as DistributedDataParallel has them: each of one type on one device, the last parameters first."""
        backwards = self.parameters[::-1]
        if not backwards:
            return []
        limits = [FIRST_BUCKET_BYTES, BUCKET_BYTES]
        buckets, _ = _dist._compute_bucket_assignment_by_size(backwards, limits)
        return [_Bucket.of(self.parameters, [len(backwards) - 1 - place for place in each]) for each in buckets]

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def arrived(parameter: torch.Tensor) -> None:
            # (As few calls as can be: this is called for every parameter in every step.)
            if self._running and not (self.accumulating or self.adapting or self.aborted):
                if self._alone:
                    return
                bucket = self._buckets[self._home[index]]
                if bucket.missing > 1 and index not in self._seen:
                    self._seen.add(index)
                    bucket.missing -= 1
                    return
            if self.adapting:
                raise ElasticError(
                    f"backward() inside step.inner_loop() reaches {self._names[index]} of the session's model, whose "
                    "gradients are those of the outer loss: train a copy, learner = copy.deepcopy(model), or adapt "
                    "by torch.autograd.grad"
                )
            if self.aborted is not None:
                self._clear_later()
                return
            if self.is_armed:
                if self.phase is GradientPhase.NONE and self._passes == 1:
                    self.first_arrived(parameter)
                self.phase = GradientPhase.LOCAL
                if not self.accumulating:
                    with self.holding():
                        self._arrived(index)
                    self._clear_later()
            elif self.is_closed:
                made = f"after its {self._passes} passes" if self._passes > 1 else "a second time in a step"
                raise ElasticError(
                    f"backward() was called {made}, and what it adds would be this worker's alone: for a loss in "
                    "parts put `with step.accumulate():` around each backward() but the last; for several "
                    "optimizers (a GAN) or several steps a batch (SAM) say s.step(backwards=N); for an inner loop "
                    "(MAML, Reptile) train a copy of the model in `with step.inner_loop():`"
                )

        return arrived

    def _clear_later(self) -> None:
        """Clear the gradients as backward ends, if the round is aborted."""
        if self.aborted is not None and not self._clears:
            self._clears = True
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._clear)

    def _clear(self) -> None:
        """After a backward pass, if the round is aborted: gradients of zero, with which the script goes on."""
        if self.aborted is None:
            return
        self._running = self._clears = False
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        self.phase = GradientPhase.SUMMED
        self.on_abort()

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient if self._scale is None else gradient * self._scale

    def _arrived(self, index: int) -> None:
        if not self._running:
            self._begin()
        if self._alone:
            return
        self._committer.check()  # if the world was given up, skip the rest of backward
        number = self._home[index]
        if number < self._launched:
            raise ElasticError(
                f"the gradient of {self._names[index]} changed after it was sent: call backward once a step (or "
                "step.accumulate() around all calls but the last), and use checkpoint(..., use_reentrant=False)"
            )
        if index not in self._seen:
            self._seen.add(index)
            self._buckets[number].missing -= 1
        while self._launched < len(self._buckets) and self._buckets[self._launched].missing == 0:
            self._launch()

    def _begin(self) -> None:
        self._running = True
        self._committer.check()
        self._measured = self._noise is not None and self._noise.measures(self._step())
        if self._noise is not None:
            self._noise.begin()
        self._alone = self._committer.world.size == 1
        self._seen = set()
        self._launched = 0
        self._pending, self._sent = [], []
        for bucket in self._buckets:
            bucket.missing = len(bucket.members)
            self._check_place(bucket)
        if not self._alone and not self._flats:
            self._flats = [each.buffer() for each in self._buckets]
        if not self._alone:
            self.open_pass(self._pass)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._complete)

    def _check_place(self, bucket: _Bucket) -> None:
        """Raise `ElasticError` if parameters are not where they were when buckets were laid out."""
        first = self.parameters[bucket.members[0]]
        if first.device != bucket.device or first.dtype != bucket.dtype:
            raise ElasticError(
                f"{self._names[bucket.members[0]]} was {_place_of(bucket.dtype, bucket.device)} as Session was made, "
                f"and is {_place_of(first.dtype, first.device)} now: move the model and change its type before"
            )

    def _parts(self, flat: torch.Tensor, bucket: _Bucket) -> list[torch.Tensor]:
        """The views of a bucket's buffer that hold the gradients of its members."""
        found = torch.split(flat, bucket.sizes)
        return [part.view(shape) for part, shape in zip(found, bucket.shapes, strict=True)]

    def _launch(self) -> None:
        """Weight the next bucket's gradients and start to sum them."""
        bucket, flat = self._buckets[self._launched], self._flats[self._launched]
        self._refuse_sparse(bucket.members)
        factor = self.factor_of(self.weight) if self._scale is None else float(self.weight > 0)
        parts, gradients = [], []
        for index, part in zip(bucket.members, self._parts(flat, bucket), strict=True):
            gradient = self.parameters[index].grad
            if gradient is None or not factor:
                part.zero_()
            elif finiteness.runs_ahead(part.device):
                parts.append(part)
                gradients.append(gradient)
            else:
                torch.mul(gradient, factor, out=part)  # the memory is passed over once
        if parts:  # one kernel serves all
            torch._foreach_copy_(parts, gradients)
            torch._foreach_mul_(parts, factor)
        if self._noise is not None and self._measured:
            self._noise.add_local(flat)
        self._sent.append(flat)
        self._launched += 1
        self._pending.append(self._committer.start(flat))

    def _complete(self) -> None:
        """After backward: reduce the remaining buckets, wait, and copy the sums into the gradients."""
        if not self._running or self.aborted is not None:
            return
        with self.holding():
            self._reduce_rest()
        self._clear()

    def _reduce_rest(self) -> None:
        last = self._pass == self._passes - 1
        tries = self.trial.world == self._committer.world.generation and self._passes == 1 and self.must_be_finite
        self.trial.world = None
        if self._alone:
            self._look_alone()
            self.ns_per_sample = [self.own_ns_per_sample]
            for _, contribute, apply in self._extras:
                apply(contribute())
            if self._noise is not None:
                share = 1.0 if self.mean else 1.0 / max(1.0, self.weight)
                gradients = [parameter.grad for parameter in self.parameters]
                self._noise.measure_alone(self._step(), gradients, share, self.weight, self.batch)
            if last and not tries:
                self._commit(self._committer.commit_alone())
        else:
            self._sum_pass(last=last and not tries)
        if tries:
            self.trial.hold(self._step(), self.batch, self._named_gradients())
            raise StepRepeated
        self.phase = GradientPhase.SUMMED
        self._running = False
        self._pass += 1

    def _sum_pass(self, *, last: bool) -> None:
        while self._launched < len(self._buckets):
            self._launch()
        control = self._control_vector()
        extras = [tensor for _, contribute, _ in self._extras for tensor in contribute()]
        if self._noise is not None and self._measured:
            factor = float(self.weight) / (self.batch if self.mean else 1)
            extras.append(self._noise.contribution(factor, self.weight))
        self._pending += [self._committer.start(each) for each in extras]
        sums = [*self._sent, *extras, control]
        self._committer.sum_pass(self._pending, control, self._refuse_bad)
        outcome = self._committer.commit(control) if last else None
        self._apply_sums(sums)
        if outcome is not None:
            self.ns_per_sample = control[CONTROL_LENGTH + len(self.parameters) :].tolist()
            self._commit(outcome)

    def _control_vector(self) -> torch.Tensor:
        """This member's control vector; further fields say which parameters have gradients, and how fast it was."""
        group = self._committer.world.group
        used = [self.weight > 0 and parameter.grad is not None for parameter in self.parameters]
        speeds = [0] * group.size
        speeds[group.rank] = self.own_ns_per_sample
        return self._committer.control_vector(self.weight, [*used, *speeds])

    def _refuse_sparse(self, members: Iterable[int]) -> None:
        """Raise if one of these parameters has a gradient that cannot be summed."""
        for index in members:
            gradient = self.parameters[index].grad
            if gradient is not None and gradient.is_sparse:
                raise ElasticError(f"{self._names[index]}: sparse gradients cannot be summed: use sparse=False")

    def _look_alone(self) -> None:
        """Look at the gradients of this worker, which trains alone."""
        gradients = [gradient for each in self.parameters if (gradient := each.grad) is not None]
        if True in [each.is_sparse for each in gradients]:
            self._refuse_sparse(range(len(self.parameters)))
        if not self.must_be_finite or not self.weight:
            return
        for device in self._devices:
            if finiteness.runs_ahead(device):
                self.settle()
                names = [
                    name for name, each in zip(self._names, self.parameters, strict=True) if each.grad is not None
                ]
                self._unread = (self._step(), names, LateRead(largest(gradients))) if names else None
                return
        if not all_finite(gradients):
            raise _not_finite(self._step(), self._own_name(), self._first_bad())

    def _own_name(self) -> str:
        return self._committer.world.worker_of(self._committer.world.rank)

    def _refuse_bad(self) -> None:
        """Raise if sums of gradients are not finite: all members have the same ones, and none commits the step."""
        if not self.must_be_finite or are_finite(self._sent):
            return
        world, own = self._committer.world, [each.grad for each in self.parameters if each.grad is not None]
        bad: list[int] = []
        with suppress(Aborted):  # one that has seen it may have ended
            rows = self._committer.rows_of_all([int(self.weight > 0 and not are_finite(own))])
            bad = rows[:, 0].nonzero().flatten().tolist()
        who = world.worker_of(bad[0]) if len(bad) == 1 else f"{len(bad) or world.size} of {world.size} workers"
        raise _not_finite(self._step(), who, self._first_bad())

    def _first_bad(self) -> str:
        """The first parameter whose gradient is not finite, or whose sum where there are several members."""
        found = [(index, each.grad) for index, each in enumerate(self.parameters) if each.grad is not None]
        if not self._alone:
            found = [
                pair
                for bucket, flat in zip(self._buckets, self._sent, strict=True)
                for pair in zip(bucket.members, self._parts(flat, bucket), strict=True)
            ]
        bad = [index for index, gradient in found if not are_finite([gradient])]
        return self._names[min(bad)] if bad else ""

    def _apply_sums(self, sums: list[torch.Tensor]) -> None:
        """Copy the sums of a pass into the gradients; its control vector is the last of them."""
        used, total = sums[-1][CONTROL_LENGTH:].tolist(), total_weight(sums[-1])
        factor = 1.0
        if self.mean and self._scale is None:
            factor = self.batch / total if total else 0.0
        extras = sums[len(self._buckets) : -1]
        for count, _, apply in self._extras:
            apply(extras[:count])
            extras = extras[count:]
        if self._noise is not None and self._measured:
            self._noise.apply_sums(extras[0], sums[: len(self._buckets)], total, self.batch, self.mean)
        for bucket, flat in zip(self._buckets, sums, strict=False):
            parts, gradients = [], []
            for index, part in zip(bucket.members, self._parts(flat, bucket), strict=True):
                parameter = self.parameters[index]
                if not used[index]:
                    parameter.grad = None
                    continue
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                parts.append(part)
                gradients.append(parameter.grad)
            if parts:
                torch._foreach_copy_(gradients, parts)
            if parts and factor != 1.0:
                torch._foreach_mul_(gradients, factor)

    def _named_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in zip(self._names, self.parameters, strict=True):
            if parameter.grad is not None:
                yield name, parameter.grad

    def _commit(self, outcome: StepOutcome) -> None:
        if self.trial.held is not None:
            self.trial.compare(self._step(), self.batch, self._named_gradients())
        self.disarm()
        self.is_closed = True
        self._on_commit(outcome)


def _not_finite(step: int, who: str, first: str) -> ElasticError:
    named = f", first that of {first}" if first else ""
    return ElasticError(
        f"step {step}: the gradients of {who} are not finite (nan or infinite){named}. If that may happen, as with a "
        "loss scaler that the session does not know, say options=elastic.Options(must_be_finite=False)"
    )


def _place_of(dtype: torch.dtype, device: torch.device) -> str:
    return f"{str(dtype).removeprefix('torch.')} on {device}"
