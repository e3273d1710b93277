"""Notices losses that are not what the session takes them for: a mean over samples, or a sum over them.

`cross_entropy` and `nll_loss` with class weights, or with targets that are ignored, divide by the weights of the
targets that count. Parts of a batch then have other divisors than the whole, and the session must be given them. A
loss that is a sum where the session expects a mean, or the reverse, gets other weights at each number of workers. So
do means over parts of a worker's samples that are accumulated with weights of their own, `loss / 4`: how a worker's
samples fall into four parts depends on how many it has. A
contrastive loss compares the samples that a worker has with each other: other pairs at each number of workers. The
graph of the loss tells: its nodes keep how they reduce, and `NllLossBackward` its divisor and targets.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import TracebackType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from malletrain.elastic.gradients.batch_gather import GATHER_NODES
from malletrain.elastic.guards.loss_graph import nodes_behind
from malletrain.elastic.guards.operations.batch_watch import BatchWatch
from malletrain.elastic.guards.script_place import current_line

#: Nodes of a loss's graph that are looked at, nearest first: a loss is a few terms, and its model lies behind them.
MAX_NODES = 32

#: Nodes that a term of one sample may have besides: it is weighed, divided and added.
NODES_PER_SAMPLE = 4

#: Pairs of a contrastive loss from which it is recognised by its targets: fewer may be so by chance.
MIN_PAIRS = 8

#: Of fewer samples a size may be theirs by accident. How far a rounded quotient may be from a whole number.
MIN_SAMPLES, ROUNDING = 4, 1e-9

#: Nodes that a penalty on parameters has not, and how many are looked at for one of them.
_MODEL_NODES = ("Addmm", "Mm", "Bmm", "Convolution", "Embedding", "NativeLayerNorm", "ScaledDot", "NativeBatchNorm")
MAX_MODEL_NODES = 256

#: Cross entropies. (A derivative of one, in a penalty on gradients, keeps neither divisor nor targets.)
_NLL_NODES = ("NllLossBackward0", "NllLoss2DBackward0")

#: Reductions as the nodes keep them (torch.nn._reduction).
_MEAN, _SUM = 1, 2

_A_SUM = 'is a sum over samples: say so, Session(..., reduction="sum"), or divide it by their number'

_PARTS_CURE = (
    "workers have other numbers of samples, and so other parts. Weigh each by its own: "
    "`(loss * len(part) / len(batch)).backward()` of a mean, `(loss / len(batch)).backward()` of a sum"
)


class LossWatch:
    """While active, looks at each loss that `backward` is called on.

    Args:
        object_to: called with a message where a loss is something else.
        mean: whether the session expects a mean (else a sum).
        weighted: whether the script has said over how much the loss is a mean.
        pairs: whether samples of a part may be compared with each other: in virtual shards, or as the script says.
        samples: of this worker in the step; 0 where its losses are of parts of them.
        in_parts: returns whether a loss is of a part of the step's samples (accumulation).
        more_parts: returns whether further parts follow.
        adapting: returns whether a copy of the model is trained, in an inner loop: its losses are one sample's own.
        may_wait: whether to look at values that a GPU has yet to compute.
        before: called with the loss as `backward` is, on the script's thread.
        ratios: of divisors of sums to samples in earlier steps, by the script's line; this one's are added.
        note_pads: called where a mean is over other lengths than before, if `collate` makes samples as long as the
            longest of a batch.
    """

    def __init__(
        self,
        object_to: Callable[[str], None],
        *,
        mean: bool,
        weighted: bool,
        pairs: bool,
        may_wait: bool,
        samples: int = 0,
        in_parts: Callable[[], bool] = lambda: False,
        more_parts: Callable[[], bool] = lambda: False,
        adapting: Callable[[], bool] = lambda: False,
        before: Callable[[Any], None] = lambda _: None,
        ratios: dict[str, float] | None = None,
        note_pads: Callable[[], None] | None = None,
    ) -> None:
        self._object_to = object_to
        self._mean = mean
        self._weighted = weighted
        self._pairs = pairs
        self._may_wait = may_wait
        self._samples = samples
        self._in_parts = in_parts
        self._more_parts = more_parts
        self._parts: dict[tuple[str, str], list[int]] = {}  #: sizes, by how they are averaged and weighed
        self._adapting = adapting
        self._before = before
        self._ratios = {} if ratios is None else ratios
        self._note_pads = note_pads
        self._backward: Any = None
        self._grad: Any = None
        self.batch: BatchWatch | None = None  #: looks away while backward runs

    def __enter__(self) -> None:
        self._backward = backward = torch.autograd.backward

        def watched(tensors: Any, *args: Any, **more: Any) -> None:
            judges = not self._adapting()
            if judges:
                self._before(tensors)
            # (Without its mode: there, numbers in the graph are no tensors.)
            if judges:
                with nullcontext() if self.batch is None else self.batch.looking_away():
                    for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
                        self._look(tensor)
                    self._look_at_vectors(tensors, args[0] if args else more.get("grad_tensors"))
            with nullcontext() if self.batch is None else self.batch.during_backward():
                backward(tensors, *args, **more)

        self._grad = grad = torch.autograd.grad

        def watched_grad(outputs: Any, inputs: Any, *args: Any, **more: Any) -> Any:
            if self.batch is None or self._adapting():
                return grad(outputs, inputs, *args, **more)
            self.batch.look_at_gradients(outputs, inputs)
            with self.batch.during_backward():
                found = grad(outputs, inputs, *args, **more)
                means = any(_is_mean(each.grad_fn) for each in tree_leaves(outputs) if isinstance(each, torch.Tensor))
            self.batch.note_gradients(inputs, found, of_mean=means)
            return found

        torch.autograd.backward = watched
        torch.autograd.grad = watched_grad

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.autograd.backward = self._backward
        torch.autograd.grad = self._grad

    def _look(self, loss: torch.Tensor) -> None:
        for node in _terms(loss.grad_fn):
            reduction = getattr(node, "_saved_reduction", None)
            if reduction == _SUM and self._mean:
                self._object_to(_A_SUM)
            elif reduction == _MEAN and not self._mean and _mean_over(node) != 1:  # (of one sample, one of a sum)
                self._object_to('is a mean, and the session has reduction="sum": leave that out')
        if self._mean and not self._weighted:
            for node in _nll_nodes(loss.grad_fn):
                self._judge_divisor(node)
            if self._judges_samples:
                if self._in_parts():
                    self._judge_parts(loss.grad_fn)
                else:
                    self._judge_counts(loss.grad_fn)
        if not self._pairs:
            for node in _nll_nodes(loss.grad_fn):
                self._judge_pairs(node)

    def _look_at_vectors(self, tensors: Any, weights: Any) -> None:
        """`losses.backward(torch.ones_like(losses))` is that of their sum."""
        for losses, weight in zip(tree_leaves(tensors), tree_leaves(weights), strict=False):
            rows = isinstance(losses, torch.Tensor) and losses.grad_fn is not None and losses.ndim
            if not (rows and isinstance(weight, torch.Tensor) and self._judges_samples and not self._in_parts()):
                continue
            if losses.shape[0] == self._samples >= MIN_SAMPLES and bool((weight == weight.flatten()[0]).all()):
                self._judge_factor(float(weight.flatten()[0]))

    @property
    def _judges_samples(self) -> bool:
        return bool(self._mean and not self._weighted and self._samples and self._may_wait)

    def _judge_factor(self, factor: float) -> None:
        """A sum over samples must be multiplied by the inverse of as many for each."""
        if factor > 0 and (1 / factor) % self._samples > ROUNDING * self._samples:
            self._object_to(_A_SUM)

    def _judge_divisor(self, node: Any) -> None:
        if node._saved_reduction != _MEAN:
            return
        target = node._saved_target
        if node._saved_weight is not None:
            self._object_to(_over("the class weights of its targets", "class_weights[y].sum()"))
        elif (self._may_wait or not target.is_cuda) and float(node._saved_total_weight) != target.numel():
            ignored = _signed(node._saved_ignore_index)
            self._object_to(_over("the targets that it does not ignore", f"(y != {ignored}).sum()"))

    def _judge_counts(self, root: Any) -> None:
        """A mean must be over as many values for each sample, and a sum must be divided by a number of these."""
        self._judge_sums(root)
        most = MAX_NODES + NODES_PER_SAMPLE * self._samples
        terms = list(_linear_terms(root, most))
        means = Counter((node.name(), _mean_over(node)) for node in terms)
        self._judge_lists(root, most)
        for number, node in enumerate(terms):
            name = node.name()
            if name == "DivBackward0":
                divisor = node._saved_other
                known = isinstance(divisor, torch.Tensor) and divisor.ndim == 0 and not divisor.requires_grad
                summed = node.next_functions[0][0]
                if known and _sums_data(summed) and not _is_of_all(summed) and self._is_odd(float(divisor), number):
                    self._object_to(
                        f"is a sum divided by {float(divisor):g}, and this worker has {self._samples} samples: if it "
                        "is a mean over something else, say how much of it is here, `with s.step(weight=...):`; "
                        'if the divisor is one number for all workers, Session(..., reduction="sum")'
                    )
                continue
            if self._note_pads is not None and self._has_other_length(node, number):
                self._note_pads()
            values = _mean_over(node)
            one_each = means[name, values] == self._samples  # a sample is a task, with a mean of its own
            odd = values and values % self._samples and not one_each
            if odd and _is_of_data(node) and not _is_of_all(node):
                self._object_to(
                    f"is a mean over {values} values, and this worker has {self._samples} samples: if some count and "
                    "others do not, say how many count here, `with s.step(weight=mask.sum()):`; if they are drawn "
                    "from elsewhere (a replay buffer), draw as many for each sample; if a copy of the model adapts "
                    "to one sample (MAML, Reptile), `with s.inner_loop():`; if each is a statistic over the samples, "
                    "of a class or a feature, it depends on the workers: Session(..., virtual_shards=N), or "
                    "additive_loss=False"
                )

    def _judge_lists(self, root: Any, most: int) -> None:
        """As many losses as samples, each a mean over one, that are added up: their sum must be divided."""
        ones = [
            (node, factor)
            for node, factor in _weighed_terms(root, most)
            if getattr(node, "_saved_reduction", None) == _MEAN and _mean_over(node) == 1
        ]
        if len(ones) == self._samples >= MIN_SAMPLES and len({factor for _, factor in ones}) == 1:
            node, factor = ones[0]
            if _is_of_data(node) and not _is_of_all(node):
                self._judge_factor(factor)

    def _judge_parts(self, root: Any) -> None:
        """Means over parts of a worker's samples must be weighed by how many of these they have.

        Those with one weight must be of one size, and as many in every step.
        """
        for node, factor in _weighed_terms(root):
            values = _mean_over(node)
            if node.name() == "DivBackward0":
                values = round(_number(node._saved_other) or 0)
            if values % self._samples and _is_of_data(node) and not _is_of_all(node):
                self._parts.setdefault((node.name(), f"{factor:.9g}"), []).append(values)
        if self._more_parts():
            return
        parts, self._parts = self._parts, {}
        for (name, weight), sizes in parts.items():
            if min(sizes) != max(sizes):
                self._object_to(
                    f"is a mean over {max(sizes)} values in one part of the step and over {min(sizes)} in "
                    f"another, and both count alike ({weight}): {_PARTS_CURE}"
                )
            usual = self._ratios.setdefault(f"{current_line()} {name} {weight}", float(len(sizes)))
            if usual != len(sizes):
                self._object_to(
                    f"is one of {len(sizes)} means over parts of the step, of which an earlier step had "
                    f"{usual:g}, and each counts alike ({weight}): {_PARTS_CURE}"
                )

    def _has_other_length(self, node: Any, number: int) -> bool:
        """Whether a mean is over another number of values for each sample than in an earlier step."""
        values = _values_of(node)
        if not values or values % self._samples or not _is_of_data(node):
            return False
        length = values / self._samples
        return length != self._ratios.setdefault(f"{current_line()} {number} values", length)

    def _is_odd(self, divisor: float, number: int) -> bool:
        """Whether a sum is not divided by the same number for each sample, in every step alike."""
        ratio = divisor / self._samples
        return bool(ratio % 1) or ratio != self._ratios.setdefault(f"{current_line()} {number}", ratio)

    def _judge_sums(self, root: Any) -> None:
        """A sum over samples must be divided by something, or multiplied by its inverse."""
        queue = deque([root])
        for _ in range(MAX_NODES):
            node = queue.popleft() if queue else None
            if node is None:
                continue
            if node.name() in ("AddBackward0", "SubBackward0", "NegBackward0", "MulBackward0"):
                factor = _factor(node)
                if factor is None or (1 / factor) % self._samples > ROUNDING * self._samples:
                    queue.extend(following for following, _ in node.next_functions)
            elif node.name() == "SumBackward0" and self._samples >= MIN_SAMPLES and node.next_functions[0][0]:
                sizes = tuple(node._saved_self_sym_sizes)
                stacked = node.next_functions[0][0].name() == "StackBackward0"
                if sizes and not stacked and sizes[0] == self._samples and _is_of_data(node) and not _is_of_all(node):
                    self._object_to(_A_SUM)

    def _judge_pairs(self, node: Any) -> None:
        """A sample's partner is its target: as many classes as samples (InfoNCE, CLIP), or one less with the partner
        first (SimCLR)."""
        target, shape = node._saved_target, node._saved_self.shape
        if target.ndim != 1 or len(shape) != 2 or len(target) < MIN_PAIRS or (target.is_cuda and not self._may_wait):
            return
        square = shape[1] == len(target) and torch.equal(target, torch.arange(len(target), device=target.device))
        if (square or (shape[1] == len(target) - 1 and not bool(target.any()))) and not _gathered(node):
            self._object_to(
                "compares the samples of a batch with each other, and a worker has a part of them: with "
                "Session(..., virtual_shards=N) each is compared with those of its shard at every number of workers, "
                "by rows = s.gather(rows) with the whole batch; with additive_loss=False the result depends on them"
            )


def _factor(node: Any) -> float | None:
    """The positive number that a node multiplies by, if it is one."""
    if node.name() != "MulBackward0":
        return None
    for other in (node._saved_other, node._saved_self):
        if (
            isinstance(other, torch.Tensor)
            and other.ndim == 0
            and not other.requires_grad
            and other.device.type == "cpu"
        ):
            return float(other) if float(other) > 0 else None
    return None


def _number(thing: Any) -> float | None:
    """The number that an operation was called with; None where it was called with a tensor that is computed, 1 of one
    on a GPU, which is not waited for (a loss scale, the same for all parts of a step)."""
    if not isinstance(thing, torch.Tensor) or thing.ndim or thing.requires_grad:
        return None
    return float(thing) if thing.device.type == "cpu" else 1.0


def _weighed_terms(root: Any, most: int = MAX_NODES) -> Iterator[tuple[Any, float]]:
    """The terms of a loss, with the numbers by which they are multiplied; without those whose weight is computed.
    Looks at so many nodes."""
    queue: deque[tuple[Any, float]] = deque([(root, 1.0)])
    for _ in range(most):
        if not queue:
            return
        node, weight = queue.popleft()
        if node is None:
            continue
        following = [(each, weight) for each, _ in node.next_functions]
        if node.name() in ("AddBackward0", "SubBackward0", "RsubBackward1", "NegBackward0"):
            queue.extend(following)
        elif node.name() == "MulBackward0":
            numbers = [_number(node._saved_other), _number(node._saved_self)]
            known = [each for each in numbers if each is not None]
            queue.extend((each, weight * known[0]) for each, _ in following if known)
        elif node.name() == "DivBackward0" and not _is_sum(node.next_functions[0][0]):
            divisor = _number(node._saved_other)
            queue.extend((each, weight / divisor) for each, _ in following[:1] if divisor)
        else:
            yield node, weight


def _linear_terms(root: Any, most: int = MAX_NODES) -> Iterator[Any]:
    """Divisions, and whatever is no sum, difference or multiple, on the way from a loss to its terms, among so many
    nodes."""
    queue = deque([root])
    for _ in range(most):
        if not queue:
            return
        node = queue.popleft()
        if node is None:
            continue
        if node.name() in ("AddBackward0", "SubBackward0", "RsubBackward1", "NegBackward0", "MulBackward0"):
            queue.extend(following for following, _ in node.next_functions)
            continue
        listed = _listed(node)
        if listed:
            queue.extend(listed)
            continue
        if node.name() == "UnsqueezeBackward0" or _is_one_value(node):  # `means.unsqueeze(0)`, and `.mean()` of it
            queue.append(node.next_functions[0][0])
            continue
        yield node
        if node.name() == "DivBackward0":
            queue.append(node.next_functions[0][0])


def _is_one_value(node: Any) -> bool:
    """Whether a mean is over one value that was a whole tensor before, as a module returns a loss of its own for
    DataParallel. (A value that was chosen of several, `loss[mask].mean()`, is none.)"""
    if node.name() != "MeanBackward0" or tuple(node._saved_self_sym_sizes) != (1,):
        return False
    terms = [node.next_functions[0][0]]
    for _ in range(MAX_NODES):
        if not terms:
            return True
        term = terms.pop()
        if term is not None and term.name() in ("AddBackward0", "SubBackward0", "NegBackward0", "MulBackward0"):
            terms += [following for following, _ in term.next_functions]
        elif term is not None and term.name() != "UnsqueezeBackward0":
            return False
    return False


def _listed(node: Any) -> list[Any]:
    """The losses of a list that a node averages: `torch.stack([one, other]).mean()`. Empty if it is none."""
    joined = node.next_functions[0][0] if node.name() == "MeanBackward0" else None
    if joined is None or joined.name() not in ("StackBackward0", "CatBackward0"):
        return []
    losses = [following for following, _ in joined.next_functions]
    if tuple(node._saved_self_sym_sizes) != (len(losses),):
        return []
    if joined.name() == "CatBackward0":  # of losses that were given a dimension for it
        losses = [each.next_functions[0][0] if each is not None else None for each in losses]
    return losses


def _is_mean(root: Any) -> bool:
    """Whether a loss has a term that is a mean, or is divided by a number."""
    return any(
        node.name() in ("MeanBackward0", "DivBackward0") or getattr(node, "_saved_reduction", None) == _MEAN
        for node in _linear_terms(root)
    )


def _sums_data(root: Any) -> bool:
    """Whether a term is a sum over samples."""
    return any(_is_sum(node) and _is_of_data(node) for node in _linear_terms(root))


def _is_sum(node: Any) -> bool:
    return node is not None and (node.name() == "SumBackward0" or getattr(node, "_saved_reduction", None) == _SUM)


def _mean_over(node: Any) -> int:
    """Over how many values a node is a mean: of one loss a value, or of targets; 0 if it is none."""
    if node.name() == "MeanBackward0":
        sizes = tuple(node._saved_self_sym_sizes)
        return int(sizes[0]) if len(sizes) == 1 and not _is_of_means(node) else 0
    if getattr(node, "_saved_reduction", None) == _MEAN:
        target = getattr(node, "_saved_target", None)
        if isinstance(target, torch.Tensor) and target.ndim:
            return target.numel() if node.name() in _NLL_NODES else int(target.shape[0])
    return 0


def _values_of(node: Any) -> int:
    """Over how many values in all a node is a mean; 0 if it is none."""
    if node.name() == "MeanBackward0":
        return math.prod(node._saved_self_sym_sizes)
    target = getattr(node, "_saved_target", None)
    mean = getattr(node, "_saved_reduction", None) == _MEAN
    return target.numel() if mean and isinstance(target, torch.Tensor) else 0


def _is_of_means(root: Any) -> bool:
    """Whether the values of a mean are means over samples themselves, as of a loss for each class."""
    node = root.next_functions[0][0]
    while node is not None and node.name() in ("MulBackward0", "DivBackward0", "NegBackward0"):
        node = node.next_functions[0][0]
    return node is not None and node.name() == "MeanBackward1" and 0 in node._saved_dim


def _is_of_data(root: Any) -> bool:
    """Whether a model is behind a node: no penalty on parameters alone."""
    return any(node.name().startswith(_MODEL_NODES) for node in nodes_behind([root], MAX_MODEL_NODES))


def _gathered(root: Any) -> bool:
    """Whether rows gathered over workers are behind a node."""
    return any(node.name() in GATHER_NODES for node in _behind(root)[0])


def _is_of_all(root: Any) -> bool:
    """Whether a term is of rows gathered over workers alone: no model is behind it on a way past the gathering."""
    found, complete = _behind(root)
    gathered = {node for node in found if node.name() in GATHER_NODES}
    if not gathered or not complete:
        return False
    reaching = set(gathered)
    for _ in found:
        more = {node for node in found if any(following in reaching for following, _ in node.next_functions)}
        if more <= reaching:
            break
        reaching |= more
    return not any(node.name().startswith(_MODEL_NODES) for node in found if node not in reaching)


def _behind(root: Any) -> tuple[set[Any], bool]:
    """The nodes behind one, up to gathered rows; and whether these are all."""
    queue: deque[Any] = deque([root])
    seen: set[Any] = set()
    while queue and len(seen) < MAX_MODEL_NODES:
        node = queue.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() not in GATHER_NODES:
            queue.extend(following for following, _ in node.next_functions)
    return seen, not queue


def _over(what: str, weight: str) -> str:
    return (
        f"is a mean over {what}, of which workers have different shares: say how much this worker has, "
        f"`with s.step(weight={weight}):`"
    )


def _terms(root: Any) -> Iterator[Any]:
    """The terms that a loss is the sum of."""
    queue = deque([root])
    for _ in range(MAX_NODES):
        if not queue:
            return
        node = queue.popleft()
        if node is not None and node.name() == "AddBackward0":
            queue.extend(following for following, _ in node.next_functions)
        elif node is not None:
            yield node


def _nll_nodes(root: Any) -> Iterator[Any]:
    queue: deque[Any] = deque([root])
    seen: set[Any] = set()
    while queue and len(seen) < MAX_NODES:
        node = queue.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() in _NLL_NODES:
            yield node
        else:
            queue.extend(following for following, _ in node.next_functions)


def _signed(number: int) -> int:
    """A number that PyTorch keeps as an unsigned one."""
    return number - 2**64 if number >= 2**63 else number
