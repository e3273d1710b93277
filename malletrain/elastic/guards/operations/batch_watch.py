"""Notices steps in which samples of a worker's part meet: results then depend on how a batch lies on workers.

Statistics over the samples (a mean of embeddings, whitening, class weights by the counts of a batch's targets), pairs
of samples, functions of the whole loss that are not linear (a root, a ratio, a flooded loss), and tensors that come
from outside the step and change from step to step (another loader, a running mean in a plain tensor).

Where shapes alone suggest it, the session says that it no longer holds a result to be equal to that of a static run.
What is certain is an error: a loss that bends, and a statistic of the whole batch that carries no gradient, on the
way to what `backward()` is called on. (What is computed for a message, a perplexity, is not on it.)
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from malletrain.elastic.gradients import sync_batchnorm
from malletrain.elastic.guards.operations import dispatch
from malletrain.elastic.guards.operations.forward_numbers import ForwardNumbers, trains
from malletrain.elastic.guards.operations.sample_places import SamplePlaces, SamplesMeet
from malletrain.elastic.guards.operations.sample_rules import JOINS
from malletrain.elastic.guards.script_place import current_line

#: Of fewer samples a size may be theirs by accident.
MIN_SAMPLES = 4

_OVER_SAMPLES = frozenset(
    {"mean", "sum", "var", "std", "var_mean", "std_mean", "amax", "amin", "max", "min", "median", "logsumexp",
     "_softmax", "_log_softmax", "sort", "topk", "cumsum", "linalg_vector_norm", "kthvalue", "mode", "nanmedian",
     "aminmax", "dist"}
)  # fmt: skip
#: Nodes of a loss's graph that are searched for what has gone into it.
MAX_GRAPH_NODES = 16384

#: Numbers of a tensor from outside that are added up, to see whether they change.
MAX_SUMMED = 1 << 20

#: The module of the DataLoader's iterators.
_LOADING = DataLoader.__module__

#: Operations whose result has the rows of one of their arguments, by its place.
_ROWS_OF = {"mm": 0, "addmm": 1, "bmm": 0, "convolution": 0, "native_layer_norm": 0, "_softmax": 0, "_log_softmax": 0}
_ROWS_OF |= {"detach": 0, "_to_copy": 0, "clone": 0}

_PRODUCTS = frozenset({"mm", "addmm", "bmm", "_cdist_forward", "_euclidean_dist"})
_BENDS = frozenset(
    {"sqrt", "rsqrt", "log", "log1p", "log2", "exp", "pow", "reciprocal", "clamp", "clamp_min", "clamp_max", "relu",
     "sigmoid", "tanh", "softplus", "maximum", "minimum", "square", "abs", "sign"}
)  # fmt: skip
_MEANS_OVER_LENGTHS = frozenset({"mean", "var", "std", "var_mean", "std_mean"})
#: Statistics that depend on how many rows there are.
_STATISTICS_OF_ROWS = frozenset(
    {"mean", "var", "std", "var_mean", "std_mean", "amax", "amin", "max", "min", "median", "_softmax", "_log_softmax"}
)
_SIGNS = frozenset({"sign", "sgn", "copysign"})
#: Comparisons, by which a loss decides about itself (`where(loss > 1, 2 * loss, loss)`).
_TESTS = frozenset({"gt", "ge", "lt", "le"})

#: What summarises samples that carry no gradient. (No sorting: by lengths, for packed sequences, it changes nothing.)
_COUNTS = frozenset(
    {"mean", "sum", "var", "std", "var_mean", "std_mean", "amax", "amin", "max", "min", "median", "logsumexp",
     "linalg_vector_norm", "bincount", "histc", "prod", "count_nonzero", "kthvalue", "mode", "nanmedian", "aminmax",
     "dist"}
)  # fmt: skip
#: Losses that are means already: divided by a number of samples, they are no mean over something else.
_MEANS = frozenset({"mean", "nll_loss_forward", "nll_loss2d_forward", "mse_loss", "smooth_l1_loss", "huber_loss"})

#: What makes a sum of two terms.
_TERMS = frozenset({"add", "sub", "rsub"})

#: What makes sums and multiples of sums.
_LINEAR = JOINS | frozenset(
    {"mean", "sum", "neg", "add", "sub", "rsub", "mul", "div", "dot", "view", "_unsafe_view", "unsqueeze", "squeeze",
     "select", "slice", "unbind", "t", "transpose", "permute", "alias", "clone", "_to_copy", "index"}
)  # fmt: skip

STATISTIC = "a statistic over the samples that a worker has"
PAIRS = "a comparison of the samples that a worker has"
BENT = "a function of a worker's loss that is not linear (a root, a ratio of sums)"
OUTSIDE = "a tensor from outside that is neither of the batch nor of the training state and changes (another loader, "
OUTSIDE += "a running mean)"
UNSEEN = "values that numpy or Python has computed from a worker's samples, where it is not seen whether samples meet"
LOADER = "batches of another DataLoader, of which each worker reads its own"
PADS = "a mean over places that collate has filled up to the longest of a worker's samples"
SCALED = (
    "gradients of a mean by its inputs, which are the larger the fewer samples a worker has (those of a sum are not)"
)
GRADIENTS = "gradients by torch.autograd.grad, which are of a worker's own samples"


@dataclass(frozen=True, slots=True)
class _Summary:
    """What summarises samples and carries no gradient.

    Attributes:
        what: one of the findings.
        line: of the script.
        scalar: whether it is one number.
        certain: whether it is of the whole batch, or of the loss.
        counts_up: whether it is made of running sums of whole numbers: as such, places of samples in a longer tensor.
    """

    what: str
    line: str
    scalar: bool
    certain: bool
    counts_up: bool = False


class BatchWatch(dispatch.TorchDispatchMode):
    """While active, looks at each operation of a step's forward pass, and of what comes before it with the batch.

    Args:
        samples: of this worker in the step.
        state: tensors of the training state: parameters, buffers, tracked things.
        batch: what the session has given to the script for the step.
        changing: returns gradients and the state of optimizers.
        earlier: of the watch of the step before, or None.
        numbers: gathers what the step computes with, for comparison between workers.
        judges: whether samples that meet are looked for (not within virtual shards, where they may).
        complete: whether `batch` has all its tensors: it may be an object of the script's own.
        adapting: returns whether a copy of the model adapts to one sample: what it learns from is that sample's own.
        values_read: returns how many numbers the script has read from tensors since it was given the batch.
        lengths: of the batch over which means were taken in earlier steps, by the script's line; this one's are
            added. None where `collate` does not make samples as long as the longest of a batch.

    Attributes:
        found: what was seen, with the script's line.
        draws: whether random numbers were drawn for each sample from a generator of the script's own. (What is drawn
            from the global ones shows in these.)
        over: whether the step is committed, or void.
        counts: whether the script may multiply or divide a loss by a count over its samples: it has said over how
            much the loss is a mean, or that it is a sum.
    """

    def __init__(
        self,
        samples: int,
        state: Iterable[torch.Tensor],
        batch: Iterable[torch.Tensor],
        changing: Callable[[], Iterable[torch.Tensor]],
        earlier: BatchWatch | None,
        numbers: ForwardNumbers,
        *,
        judges: bool = True,
        complete: bool = True,
        adapting: Callable[[], bool] = lambda: False,
        values_read: Callable[[], int] = lambda: 0,
        lengths: dict[str, int] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._samples = samples
        self._numbers = numbers
        self._judges = judges
        self._complete = complete
        self._adapting = adapting
        self._values_read = values_read
        self._own = {_storage(tensor) for tensor in state}
        batch = list(batch)
        self._given = {_storage(tensor) for tensor in batch}
        self._changing = changing
        self._earlier = None if earlier is None else earlier._outside
        self._outside: dict[int, tuple[torch.Tensor, int, float]] = {}
        self._made: dict[int, torch.Tensor] = {}
        self._of_state: set[int] = set()
        self._of_all: set[int] = set()  #: gathered over workers, or made of such and of what all have alike
        self._of_nothing: set[int] = set()  #: made from no tensor: positions, a mask
        self._losses: set[int] = set()
        self._means: set[int] = set()  #: losses that are means
        self._means_of_classes: dict[int, str] = {}  #: over samples, each with several numbers; with its line
        self._tests: set[int] = set()  #: comparisons of losses
        self._summaries: dict[int, _Summary] = {}  #: by the tensor's id
        self._whole: set[int] = set()  #: of the batch's samples, each at its place of the first dimension
        tensors = [each for each in batch if each.ndim]
        if samples >= MIN_SAMPLES and all(each.shape[0] == samples for each in tensors):
            self._whole = {id(each) for each in tensors}
        self._places = SamplePlaces(samples, tensors) if samples >= MIN_SAMPLES else None
        #: Of the batch, with several rows for a sample (the nodes of graphs), or made of such.
        self._rows = {id(each) for each in tensors if each.ndim > 1 and samples not in each.shape}
        if samples < MIN_SAMPLES:
            self._rows.clear()
        #: What was found, with its line, its result and whether it is certain, until it is known whether the loss is
        #: made with it.
        self._pending: list[tuple[str, str, torch.Tensor, bool]] = []
        self._scaled: dict[int, str] = {}  #: made with gradients of a mean, with the line of these
        self._lengths = lengths
        self._sizes = {size for each in tensors if each.shape[0] == samples for size in each.shape[1:]}
        self._uses: Counter[str] = Counter()  #: means over a length, by the script's line
        self.counts = False
        self._is_between = False
        self._is_away = False
        self.found: dict[str, str] = {}
        self.draws = False
        self.over = False

    @staticmethod
    def is_possible(model: torch.nn.Module) -> bool:
        """Whether torch can look, and nothing of a model is compiled: compiled parts cannot be looked into."""
        return dispatch.AVAILABLE and not any(hasattr(module, "_orig_mod") for module in model.modules())

    def __enter__(self) -> Self:
        if not self._is_between:
            super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_between:
            super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.over or self._is_away:
            return func(*args, **(kwargs or {}))
        inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        judges = self._judges and not self._adapting()
        for tensor in inputs:
            if judges:
                self._look_outside(tensor)
            if id(tensor) not in self._made and not self._is_of_state(tensor):
                self._numbers.look_outside(tensor)
        if LOADER not in self.found and not any(each.requires_grad for each in inputs) and _called_by(_LOADING):
            self._note(LOADER)
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.rpartition("::")[2]
        outs = [each for each in tree_leaves(out) if isinstance(each, torch.Tensor)]
        self._numbers.look(func, args, kwargs, inputs, outs)
        if outs and _draws(func, args, kwargs) and outs[0].ndim and outs[0].shape[0] == self._samples:
            self.draws = True
        if outs and inputs and judges and self._samples >= MIN_SAMPLES:
            self._judge(name, args, inputs, outs[0])
            self._follow_summaries(name, args, inputs, outs)
            self._follow_means(name, inputs, outs)
            if self._places is not None and not all(self._is_of_state(each) for each in inputs):
                meeting = self._places.follow(func, args, inputs, outs)
                if meeting is not None:
                    self._note_meeting(meeting, inputs, counts_up=name == "cumsum")
        if judges and outs and self._lengths is not None and name in _MEANS_OVER_LENGTHS:
            self._look_at_length(self._lengths, name, args, inputs, outs)
        if judges:
            self._follow_scaled(name, inputs, outs)
            self._follow_rows(func, name, args, inputs, outs)
        whole = any(id(each) in self._whole for each in inputs)
        for tensor in outs:
            self._made[id(tensor)] = tensor
            if whole and self._keeps_samples(func, args, inputs, tensor):
                self._whole.add(id(tensor))
            if all(id(each) in self._of_nothing for each in inputs):
                self._of_nothing.add(id(tensor))
            elif all(self._is_of_state(each) for each in inputs):
                self._of_state.add(id(tensor))
            elif self._are_of_all(inputs):
                self._of_all.add(id(tensor))
            elif tensor.ndim == 0 and tensor.is_floating_point() and any(each.requires_grad for each in inputs):
                self._losses.add(id(tensor))
        return out

    def begin_between(self) -> None:
        """Look at what the script makes of the batch before its step."""
        self.__enter__()
        self._is_between = True

    def end_between(self) -> None:
        """Look no longer, until the step. (Beneath a mode of the script's own it cannot be left: it stays until it
        can.)"""
        if self._is_between and dispatch.is_innermost(self):
            self._is_between = False
            self.__exit__(None, None, None)

    def looking_away(self) -> AbstractContextManager[Any]:
        """A context manager around what is none of the script's forward passes."""
        return dispatch.without_modes()

    @contextmanager
    def during_backward(self) -> Iterator[None]:
        """A context manager around backward passes, in which modes of the script stay as they are."""
        if dispatch.is_alone():
            with dispatch.without_modes():
                yield
            return
        self._is_away = True
        try:
            yield
        finally:
            self._is_away = False

    def note_gathered(self, rows: torch.Tensor) -> None:
        """These are rows of all workers' samples."""
        self._made[id(rows)] = rows
        self._of_all.add(id(rows))
        if self._places is not None:
            self._places.forget(rows)

    def made_with(self, loss: Any) -> Iterator[tuple[str, str]]:
        """What certainly depends on a worker's part of the batch, with its line, and goes into this loss.

        Args:
            loss: what `backward()` is called on.
        """
        for each in tree_leaves(loss):
            if id(each) in self._scaled:
                self._note(SCALED, self._scaled[id(each)])
        if not self._pending:
            return
        nodes = _graph_of(loss)
        pending, self._pending = self._pending, []
        for what, line, tensor, certain in pending:
            if tensor.grad_fn not in nodes:  # it may go into the loss of a later backward()
                self._pending.append((what, line, tensor, certain))
            elif certain:
                yield what, line
            else:
                self._note(what, line)

    def look_at_gradients(self, outputs: Any, inputs: Any) -> None:
        """`torch.autograd.grad` of these outputs is called for these tensors."""
        if any(_storage(each) in self._own for each in tree_leaves(inputs) if isinstance(each, torch.Tensor)):
            self._note(GRADIENTS)
        for what, line in self.made_with(outputs):
            self._note(what, line)

    def note_gradients(self, inputs: Any, found: Any, *, of_mean: bool) -> None:
        """These are the gradients for these tensors: samples lie in one as in the other.

        Args:
            of_mean: whether they are of a mean over samples, and so the smaller the more samples a worker has.
        """
        for tensor, gradient in zip(tree_leaves(inputs), tree_leaves(found), strict=False):
            if not isinstance(gradient, torch.Tensor):
                continue
            self._made[id(gradient)] = gradient
            if _storage(tensor) in self._own:
                continue
            if self._places is not None:
                self._places.put_like(gradient, tensor)
            if id(tensor) in self._whole:
                self._whole.add(id(gradient))
            if of_mean:
                self._scaled[id(gradient)] = current_line()

    def hooked(self) -> Iterator[Any]:
        """Hooks of the script on gradients of what the step has made."""
        for tensor in self._made.values():  # (Of a view, more than this may not be asked: its base may have changed.)
            yield from (tensor._backward_hooks or {}).values()

    def finish(self) -> None:
        """The step is over: forget what it made."""
        self._made.clear()
        self._pending.clear()
        self._earlier = None

    # --- inside -----------------------------------------------------------------------------------------------

    def _judge(self, name: str, args: Any, inputs: list[torch.Tensor], out: torch.Tensor) -> None:
        samples, first = self._samples, inputs[0]
        if self._is_of_state(first) or self._are_of_all(inputs):
            return
        if name in _OVER_SAMPLES and first.is_floating_point() and self._is_over_samples(name, args, first):
            one = first.ndim == 1 and name in ("_softmax", "_log_softmax", "sort", "topk", "cumsum")
            if first.ndim > 1 and out.numel() > 1 and name == "mean" and trains(inputs) and samples in first.shape:
                self._means_of_classes[id(out)] = current_line()
            elif one or (first.ndim > 1 and out.numel() > 1):
                self._note(STATISTIC)
            elif name not in ("mean", "sum") and trains(inputs):  # an extreme, a norm
                self._note_meeting(SamplesMeet(sums=True, outs=(out,)), inputs)
        elif name in _PRODUCTS and out.ndim >= 2 and out.shape[-1] == out.shape[-2] == samples:
            # (Attention over as many places as there are samples has a matrix, or one a head, for each of them. Where
            # it is known which samples the matrices have, `SamplePlaces` judges.)
            known = any(self._is_of_state(each) or id(each) in self._of_all for each in inputs)
            placed = self._places is not None and any(self._places.of(each) is not None for each in inputs)
            if not (known or placed or (out.ndim > 2 and out.shape[0] % samples == 0)):
                self._note_meeting(SamplesMeet(sums=False, outs=(out,)), inputs)
        elif out.ndim == 0:
            losses = [each for each in inputs if id(each) in self._losses]
            ratio = name == "div" and len(inputs) > 1 and id(inputs[1]) in self._losses
            bends = name in _BENDS or ratio or (name == "mul" and len(losses) > 1)
            if losses and name in _TESTS:
                self._tests.add(id(out))
            elif losses and (bends or (name == "where" and id(first) in self._tests)):
                if trains(inputs):
                    self._pending.append((BENT, current_line(), out, True))
                else:
                    self._made[id(out)] = out
                    self._summaries[id(out)] = _Summary(BENT, current_line(), scalar=True, certain=True)
            if name in _MEANS:
                self._means.add(id(out))

    def _follow_means(self, name: str, inputs: list[torch.Tensor], outs: list[torch.Tensor]) -> None:
        """A mean over samples for each class, say, is a part of the loss as long as nothing but sums and multiples is
        made of it."""
        lines = [self._means_of_classes[id(each)] for each in inputs if id(each) in self._means_of_classes]
        if not lines:
            return
        widest = max(each.numel() for each in inputs if id(each) in self._means_of_classes)
        several = name in ("mul", "div", "dot") and sum(each.requires_grad for each in inputs) > 1
        linear = name in _LINEAR and not several and (name in JOINS or outs[0].numel() <= widest)
        for tensor in outs:
            if trains(inputs) and linear:
                if tensor.ndim:
                    self._means_of_classes[id(tensor)] = lines[0]
            elif trains(inputs) and name != "detach":
                self._pending.append((STATISTIC, lines[0], tensor, False))
            else:
                self._summaries.setdefault(id(tensor), _Summary(STATISTIC, lines[0], scalar=False, certain=False))

    def _look_at_length(
        self, lengths: dict[str, int], name: str, args: Any, inputs: list[torch.Tensor], outs: list[torch.Tensor]
    ) -> None:
        """A mean over the length of the batch, which is that of its longest sample."""
        first = inputs[0]
        sizes = {first.shape[dim] for dim in _dims(name, args, first.ndim)} & self._sizes if outs[0].ndim else set()
        if not sizes:
            return
        line = current_line()
        self._uses[line] += 1
        if max(sizes) == lengths.setdefault(f"{line} {self._uses[line]}", max(sizes)):
            return
        if trains(inputs):
            self._pending.append((PADS, line, outs[0], False))
        else:
            self._summaries.setdefault(id(outs[0]), _Summary(PADS, line, scalar=False, certain=False))

    def _follow_rows(
        self, func: Any, name: str, args: Any, inputs: list[torch.Tensor], outs: list[torch.Tensor]
    ) -> None:
        """Follow tensors whose rows are of several samples: a statistic for each feature over all rows is one over
        samples. (A sum over them may be of one sample each, by an index.)"""
        found = [each for each in inputs if id(each) in self._rows]
        if not found or not outs:
            return
        first = inputs[0]
        if (
            id(first) in self._rows
            and name in _STATISTICS_OF_ROWS
            and outs[0].ndim
            and 0 in _dims(name, args, first.ndim)
        ):
            self._note_meeting(SamplesMeet(sums=True, outs=tuple(outs)), inputs)
            return
        if "batch_norm" in name and any(each is True for each in args):
            self._note_meeting(SamplesMeet(sums=True, outs=(outs[0],)), inputs)
        place = _ROWS_OF.get(name)
        pointwise = torch.Tag.pointwise in func.tags or "batch_norm" in name
        for tensor in outs:
            alike = tensor.ndim > 1 and tensor.shape[0] == found[0].shape[0]
            if alike and (pointwise or (place is not None and any(each is args[place] for each in found))):
                self._rows.add(id(tensor))

    def _follow_scaled(self, name: str, inputs: list[torch.Tensor], outs: list[torch.Tensor]) -> None:
        """Signs, and gradients divided by their own size, have none of their scale left."""
        lines = [self._scaled[id(each)] for each in inputs if id(each) in self._scaled]
        if not lines or name in _SIGNS or (name == "div" and len(lines) == len(inputs)):
            return
        for tensor in outs:
            if tensor.is_floating_point():
                self._made[id(tensor)] = tensor
                self._scaled[id(tensor)] = lines[0]

    def _follow_summaries(self, name: str, args: Any, inputs: list[torch.Tensor], outs: list[torch.Tensor]) -> None:
        """Follow what summarises samples without a gradient to where something that trains is computed with it."""
        # (One number that requires a gradient is the loss of an autograd.Function, whose operations see none.)
        found = [
            (each, self._summaries[id(each)])
            for each in inputs
            if id(each) in self._summaries and not (each.requires_grad and each.ndim == 0)
        ]
        known = [summary for _, summary in found]
        first = inputs[0]
        if trains(inputs) and any(each.is_floating_point() or each.is_complex() for each in outs):
            divides = name == "div" and id(first) not in self._means and not any(each.ndim for each in inputs)
            for tensor, summary in found:
                if summary.counts_up and not tensor.is_floating_point() and tensor.dtype != torch.bool:
                    continue
                # (Whether a sum is divided by the right number is for `LossWatch`.)
                if summary.what == STATISTIC and summary.scalar and (self.counts or divides):
                    continue
                if summary.scalar and name in _TERMS and not outs[0].ndim:  # a term of the loss without a gradient
                    continue
                if summary.certain:
                    self._pending.append((summary.what, summary.line, outs[0], True))
                else:
                    self._note(summary.what, summary.line)
            return
        if not known:
            summarises = name in _COUNTS and self._is_over_samples(name, args, first)
            if not summarises or id(first) in self._of_nothing:
                return
            if self._is_of_state(first) or self._are_of_all(inputs):
                return
            if _storage(first) in {_storage(each) for each in self._changing()}:  # a norm of gradients, as in SAM
                return
            if _called_by(sync_batchnorm.__name__):
                return  # it sums over all workers
            certain = id(first) in self._whole
            known = [_Summary(STATISTIC, current_line(), outs[0].ndim == 0, certain)]
        scalar, certain = all(each.scalar for each in known), any(each.certain for each in known)
        counts_up = all(each.counts_up for each in known)
        for tensor in outs:
            if not self._is_of_state(tensor) and id(tensor) not in self._summaries:
                self._made[id(tensor)] = tensor
                self._summaries[id(tensor)] = _Summary(known[0].what, known[0].line, scalar, certain, counts_up)

    def _is_over_samples(self, name: str, args: Any, first: torch.Tensor) -> bool:
        """Whether an operation summarises its argument over the dimension of samples."""
        if not first.ndim:
            return False
        place = None if self._places is None else self._places.of(first)
        if place is not None:
            return place.dim in _dims(name, args, first.ndim)
        return first.shape[0] == self._samples and 0 in _dims(name, args, first.ndim)

    def _note_meeting(self, meeting: SamplesMeet, inputs: list[torch.Tensor], *, counts_up: bool = False) -> None:
        """Follow the result of an operation in which samples meet to where something that trains is made with it."""
        if _called_by(sync_batchnorm.__name__):
            return  # it sums over all workers
        what, line = STATISTIC if meeting.sums else PAIRS, current_line()
        for tensor in meeting.outs:
            self._made[id(tensor)] = tensor
            if trains(inputs) and (tensor.is_floating_point() or tensor.is_complex()):
                self._pending.append((what, line, tensor, False))
            else:
                summary = _Summary(what, line, scalar=False, certain=False, counts_up=counts_up)
                self._summaries.setdefault(id(tensor), summary)

    def _keeps_samples(self, func: Any, args: Any, inputs: list[torch.Tensor], out: torch.Tensor) -> bool:
        """Whether the result of an operation on the batch has a sample in each row, whatever its other sizes."""
        samples = self._samples
        if not out.ndim or out.shape[0] != samples:
            return False
        place = _ROWS_OF.get(func._schema.name.rpartition("::")[2])
        if place is not None:
            return id(args[place]) in self._whole
        whole = [each for each in inputs if id(each) in self._whole]
        if torch.Tag.pointwise in func.tags:
            return any(each.ndim == out.ndim for each in whole)
        # (A transposed or chosen part might have as many rows by accident.)
        return all(tuple(each.shape).count(samples) == 1 for each in (*whole, out))

    def _look_outside(self, tensor: torch.Tensor) -> None:
        if isinstance(tensor, torch.nn.Parameter):
            self._own.add(_storage(tensor))  # of a teacher, for example
            return
        if tensor.ndim == 0 or id(tensor) in self._made or _storage(tensor) in self._given:
            return
        if not tensor.is_floating_point() and tensor.numel() < MIN_SAMPLES:
            return
        if self._is_of_state(tensor) or id(tensor) in self._outside:
            return
        if self._samples in tensor.shape:
            self._look_at_unseen(tensor)
            if self._values_read() or not self._complete:  # it may be made of the batch by numpy, or part of it
                return
        sums = _sum_of(tensor)
        self._outside[id(tensor)] = tensor, tensor._version, sums
        if self._earlier is not None:
            before = self._earlier.get(id(tensor))
            same = before is not None and before[0] is tensor and before[1:] == (tensor._version, sums)
            if (
                not same
                and not self._is_known(tensor)
                and _storage(tensor) not in {_storage(each) for each in self._changing()}
            ):
                self._note(OUTSIDE)

    def _look_at_unseen(self, tensor: torch.Tensor) -> None:
        """As many rows as there are samples, and no operation has made them: `torch.from_numpy(weights)`."""
        if tensor.is_floating_point() and self._samples >= MIN_SAMPLES and self._values_read() >= self._samples:
            self._made[id(tensor)] = tensor
            self._summaries[id(tensor)] = _Summary(UNSEEN, current_line(), scalar=False, certain=False)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        """Whether a step before had another tensor of the same values: positions, a mask."""
        return any(
            other is not tensor and other.shape == tensor.shape and other.dtype == tensor.dtype
            and other.device == tensor.device and other._version == version and torch.equal(other, tensor)
            for other, version, _ in (self._earlier or {}).values()
        )  # fmt: skip

    def _are_of_all(self, inputs: list[torch.Tensor]) -> bool:
        """Whether an operation on these has the samples of all workers, and none of this worker alone."""
        return any(id(each) in self._of_all for each in inputs) and all(
            id(each) in self._of_all or id(each) in self._of_nothing or self._is_of_state(each) for each in inputs
        )

    def _is_of_state(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._of_state or _storage(tensor) in self._own

    def _note(self, what: str, line: str = "") -> None:
        if _called_by(sync_batchnorm.__name__):
            return  # it sums over all workers
        self.found.setdefault(what, line or current_line())


def _graph_of(loss: Any) -> set[Any]:
    """The nodes of a loss's graph, nearest first, up to `MAX_GRAPH_NODES`."""
    queue: deque[Any] = deque(each.grad_fn for each in tree_leaves(loss) if isinstance(each, torch.Tensor))
    seen: set[Any] = set()
    while queue and len(seen) < MAX_GRAPH_NODES:
        node = queue.popleft()
        if node is not None and node not in seen:
            seen.add(node)
            queue.extend(following for following, _ in node.next_functions)
    return seen


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation draws random numbers from a generator that it is given."""
    return torch.Tag.nondeterministic_seeded in func.tags and any(
        isinstance(each, torch.Generator) for each in tree_leaves((args, kwargs))
    )


def _sum_of(tensor: torch.Tensor) -> float:
    """Of a small tensor in host memory, which numpy may change without torch's knowledge; else 0."""
    if tensor.device.type != "cpu" or not tensor.is_floating_point() or tensor.numel() > MAX_SUMMED:
        return 0.0
    with dispatch.without_modes():
        return float(tensor.detach().sum())


def _called_by(module: str) -> bool:
    """Whether a function of this module is being called."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back
    return False


def _dims(name: str, args: Any, ndim: int) -> set[int]:
    place = 2 if name == "linalg_vector_norm" else 1
    given = args[place] if len(args) > place else None
    if name in ("topk", "kthvalue"):
        given = args[2] if len(args) > 2 else -1
    if name in ("sort", "mode") and given is None:
        given = -1
    dims = [given] if isinstance(given, int) else given if isinstance(given, list | tuple) else range(ndim)
    return {dim % ndim for dim in dims}


def _storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # of a kind without one
        return id(tensor)
