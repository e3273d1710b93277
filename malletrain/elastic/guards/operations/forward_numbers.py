"""The numbers that a step's loss is computed with, for comparison between workers.

What a script counts reaches training as a number that an operation is called with (`loss + beta * penalty`,
`dropout(x, p)`, `x[:, :length]`), or as the choice of operations. Wherever the count is kept (in a closure, a default
argument, a generator, a class of another file, an attribute of the model), a worker that joins begins with the
script's first one, and computes with another number than the others in its first steps.

So does a tensor that is none of the training state and has been there since the last step that was looked at, as
weights of classes that a worker has counted; or that the step makes of numbers of Python or numpy before it has read
any from its samples (`torch.tensor(weights)`): of each, one number that follows from its values is compared.

Figures for messages, which the loss does not depend on, are not compared. Neither are steps in which workers may
differ by right: those that have samples of other lengths, or draw random numbers outside torch. Where a step has read
a number from its samples, only the numbers are compared that something is multiplied with, divided by or added to.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from malletrain.elastic.guards.digest import digest_of_text
from malletrain.elastic.guards.script_place import is_script

#: Uses of one operation in one line that are looked at: of a loop over layers, or over time.
MAX_USES = 4

#: Tensors that were there before the step are compared by their values if they have so many at most.
MAX_VALUES = 4096

#: Stands for the operation in the name of such a tensor.
VALUES = "values"

#: Nodes of the loss's graph that are counted, nearest first.
MAX_GRAPH_NODES = 4096

#: The types, in the schema of an operation, of arguments that are numbers and no sizes. (A number may stand for a
#: tensor, as in `x * 2`.)
_NUMBER_TYPES = frozenset({"Tensor", "number", "float", "bool"})


@dataclass(slots=True, eq=False)
class _Source:
    """What a tensor without gradients was computed with: numbers by name, and other such tensors."""

    numbers: dict[str, float]
    inputs: list[_Source] = field(default_factory=list)


class ForwardNumbers:
    """Gathers what one step's forward pass computes with, until its first `backward()`.

    Args:
        samples: of this worker in the step, or in the first of its virtual shards; 0 if it has none.
        batch: what the session has given to the script for them.
        earlier: those of the step that was looked at before.

    Attributes:
        samples: as given.
        numbers: what the loss depends on, by script line, operation, argument and use.
        varying: names of numbers that have changed from step to step while the number of samples did not.
        lines: the script's lines that train, with their operations.
        graph: a digest of the loss's graph.
        shapes: a digest of the shapes, but for the number of samples, of the batch and of the tensors that the step
            begins with.
        may_differ: whether something of a worker's own samples may decide what it computes.
        reads: whether it has read numbers from tensors, which may do so.
    """

    def __init__(self, samples: int, batch: Any, earlier: ForwardNumbers | None) -> None:
        self.samples = samples
        self.numbers: dict[str, float] = {}
        self.varying: set[str] = set()
        self.lines: set[str] = set()
        self.graph = 0
        self.shapes = 0
        # (Numbers that are no tensors are read without being seen.)
        self.may_differ = not all(isinstance(each, torch.Tensor) for each in tree_leaves(batch))
        self.reads = False
        self._earlier = earlier
        given = [each for each in tree_leaves(batch) if isinstance(each, torch.Tensor)]
        # (Of a list with a tensor for each sample, how many have which shape: the script may count their rows.)
        counts = Counter(self._shape_of(each) for each in given)
        self._shapes = {f"{'all' if count == samples else count} of {shape}" for shape, count in counts.items()}
        self._given = {id(each) for each in given}
        self._sources: dict[int, _Source] = {}
        self._uses: Counter[str] = Counter()
        self._outside: dict[int, torch.Tensor] = {}
        self._generators = _plain_generators()
        self._is_open = samples > 0

    def note_draws(self) -> None:
        """Python's and numpy's global generators are about to be seeded anew: note whether they were drawn from."""
        self.may_differ = self.may_differ or self._generators != _plain_generators()

    def seeded(self) -> None:
        """They have been seeded anew."""
        self._generators = _plain_generators()

    def look_outside(self, tensor: torch.Tensor) -> None:
        """An operation is about to be called with a tensor that neither this step nor the training state has made."""
        if not self._is_open:
            return
        if tensor.ndim:
            self._shapes.add(self._shape_of(tensor))
        if tensor.requires_grad or id(tensor) in self._given or not self._has_values(tensor):
            return
        self._outside[id(tensor)] = tensor
        if self._earlier is None or id(tensor) not in self._earlier._outside:
            return  # it may be made of the batch, out of sight
        if id(tensor) not in self._sources:
            name = self._name_of_use(VALUES if tensor.ndim else "scalar")
            value = _size_of(tensor) if tensor.ndim else float(tensor)
            self._sources[id(tensor)] = _Source({name: value} if name else {})

    def look(self, func: Any, args: Sequence[Any], kwargs: Any, inputs: Sequence[Any], outs: Sequence[Any]) -> None:
        """An operation was called. The tensors must be kept alive until `close`."""
        if not self._is_open:
            return
        name = func._schema.name.rpartition("::")[2]
        if name == "_local_scalar_dense":  # item()
            self.reads = True
        else:
            self.may_differ = self.may_differ or _depends_on_values(func, inputs)
        use = self._name_of_use(name)
        numbers = {f"{use} {place}": value for place, value in _numbers_of(func, args, kwargs or {}) if use}
        sources = [self._sources[id(each)] for each in inputs if id(each) in self._sources]
        if name == "lift_fresh" and use and outs[0].ndim == 0:
            numbers[f"{use.replace(name, 'torch.tensor')} 0"] = float(outs[0])
        elif name == "lift_fresh" and self._has_values(outs[0]):
            values = self._name_of_use(VALUES)
            numbers |= {values: _size_of(outs[0])} if values else {}
        if (
            name != "detach"
            and trains(inputs)
            and any(each.is_floating_point() or each.is_complex() for each in outs)
        ):
            self.lines.add(f"{_script_line()} {name}")
            self.numbers |= numbers
            self._use(sources)
        else:
            made = _Source(numbers, sources)
            for tensor in outs:
                self._sources[id(tensor)] = made

    def close(self, loss: Any, *, reads: int, weighted: bool = False) -> None:
        """The first `backward()` begins.

        Args:
            loss: what it is called on.
            reads: how many numbers the script has read from tensors since it was given the batch.
            weighted: whether the script may divide by such a number: over so much its loss is a mean, it has said.
        """
        if not self._is_open:
            return
        self._is_open = False
        self.note_draws()
        self.reads = self.reads or reads > 0
        self.may_differ = self.may_differ or (self.reads and weighted)
        self.graph = _digest_of_graph(loss)
        self.shapes = digest_of_text(repr(sorted(self._shapes)))
        self._sources.clear()
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            self.varying |= earlier.varying
            if earlier.samples == self.samples:
                self.varying |= {
                    name for name, value in self.numbers.items() if earlier.numbers.get(name, value) != value
                }

    @property
    def digest(self) -> int:
        """A positive hash of all of it; 0 where there is nothing to compare."""
        if not self.lines:
            return 0
        return digest_of_text(repr((sorted(self.numbers.items()), sorted(self.lines), self.graph)))

    def _has_values(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has values that workers may compare: few, and not one or more for each sample."""
        of_host = tensor.device.type == "cpu" and tensor.is_floating_point()
        return of_host and tensor.numel() <= MAX_VALUES and self.samples not in tensor.shape

    def _shape_of(self, tensor: torch.Tensor) -> str:
        return ",".join("samples" if size == self.samples else str(size) for size in tensor.shape)

    def _name_of_use(self, operation: str) -> str:
        """Line, operation, and how often the line has called it; "" from `MAX_USES` on."""
        key = f"{_script_line()} {operation}"
        self._uses[key] += 1
        return f"{key} {self._uses[key]}" if self._uses[key] <= MAX_USES else ""

    def _use(self, sources: list[_Source]) -> None:
        """The loss depends on tensors of these sources."""
        while sources:
            source = sources.pop()
            self.numbers |= source.numbers
            sources += source.inputs
            source.numbers, source.inputs = {}, []  # they are counted


def _size_of(tensor: torch.Tensor) -> float:
    """A number that follows from all values and their places, and in which nothing cancels."""
    values = tensor.detach().double().reshape(-1)
    places = torch.linspace(1.0, 2.0, len(values), dtype=torch.float64)
    return float((values.abs() * places).sum() + values.clamp(min=0.0).sum())


def trains(inputs: Iterable[torch.Tensor]) -> bool:
    """Whether gradients flow through an operation on these."""
    return torch.is_grad_enabled() and any(each.requires_grad for each in inputs)


def _depends_on_values(func: Any, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether the values of tensors decide the shape of an operation's result, or what the script reads."""
    if torch.Tag.data_dependent_output in func.tags:
        return True
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    return "index" not in func._schema.name or any(each.dtype in (torch.bool, torch.uint8) for each in inputs[1:])


def _numbers_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[int, float]]:
    """Places and values of an operation's arguments that are numbers. Of sizes, those that scripts change: where a
    dimension other than that of samples is cut, and to what an image is resized."""
    name = func._schema.name
    for place, argument, default in _number_arguments(func):
        value = args[place] if place < len(args) else kwargs.get(argument, default)
        if isinstance(value, int | float):
            yield place, value
    if name in ("aten::slice", "aten::narrow") and len(args) > 1 and args[1] != 0:
        yield from ((place, each) for place, each in enumerate(args[2:], 2) if isinstance(each, int))
    elif "upsample" in name or "adaptive" in name:
        yield from ((place, each) for place, each in enumerate(tree_leaves(args), 100) if isinstance(each, int))


@functools.lru_cache(maxsize=4096)
def _number_arguments(func: Any) -> tuple[tuple[int, str, Any], ...]:
    """Place, name and default value of each argument that may be a number and no size."""
    return tuple(
        (place, each.name, each.default_value)
        for place, each in enumerate(func._schema.arguments)
        if str(each.type).removeprefix("Optional[").rstrip("]") in _NUMBER_TYPES
    )


def _digest_of_graph(loss: Any) -> int:
    """Of how many nodes of each kind a loss's graph has."""
    queue: deque[Any] = deque(each.grad_fn for each in tree_leaves(loss) if isinstance(each, torch.Tensor))
    seen: set[Any] = set()
    kinds: Counter[str] = Counter()
    while queue and len(seen) < MAX_GRAPH_NODES:
        node = queue.popleft()
        if node is not None and node not in seen:
            seen.add(node)
            kinds[node.name()] += 1
            queue.extend(following for following, _ in node.next_functions)
    return digest_of_text(repr(sorted(kinds.items())))


def _script_line() -> str:
    """File and line of the script's innermost frame. (Faster than `current_line`, for each operation.)"""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = _script_name(frame.f_code.co_filename)
        if name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@functools.lru_cache(maxsize=1024)
def _script_name(filename: str) -> str:
    return Path(filename).name if is_script(filename) else ""


def _plain_generators() -> int:
    """A hash of the states of Python's and numpy's global generators."""
    state = repr(random.getstate())
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        key = numpy.random.get_state()
        state += repr((key[1].tobytes(), key[2:]))
    return digest_of_text(state)
