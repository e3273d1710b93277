"""The training state: model, optimizer, position and tracked objects.

It is a tree of plain values and tensors. To be sent or saved it is packed into a list of tensors and a small
skeleton, the tree with placeholders for the tensors.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from malletrain import __version__
from malletrain.elastic.errors import ElasticError

#: Placeholder in the skeleton, of a tensor.
_LEAF = "\0tensor"

#: What most leaves of the tree are that are no tensors.
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})

#: The tracked object that has the values of `Session.state`.
SCRIPT_VALUES = "malletrain.values"


class Stateful(Protocol):
    """Anything with PyTorch's `state_dict` and `load_state_dict`: schedulers, scalers, averaged models, metrics."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


@dataclass(slots=True)
class Position:
    """How far training is.

    Attributes:
        epoch: the epoch in progress, from 0.
        cursor: samples of it that are committed.
        step: steps committed in total.
        samples: samples committed in total.
        rounds: rounds committed in total (see `comm.step_commit`).
    """

    epoch: int = 0
    cursor: int = 0
    step: int = 0
    samples: int = 0
    rounds: int = 0


def pack(tree: Any) -> tuple[bytes, list[torch.Tensor]]:
    """Pack a tree into skeleton and tensors; the tensors share memory with the tree. Raises `ElasticError`: a leaf
    is neither a tensor nor a plain value."""
    tensors: list[torch.Tensor] = []
    names: list[str] = []
    skeleton = _without_tensors(tree, (), tensors, names)
    specs = [(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in tensors]
    buffer = io.BytesIO()
    torch.save({"skeleton": skeleton, "tensors": specs, "names": names}, buffer)
    return buffer.getvalue(), tensors


def require_plain(tree: Any, *path: str) -> None:
    """Raise `ElasticError`, which names object and key, if `pack` cannot keep what is at this path of the state."""
    _without_tensors(tree, path, [], [])


def _without_tensors(node: Any, path: tuple[Any, ...], tensors: list[torch.Tensor], names: list[str]) -> Any:
    """A tree with placeholders in place of its tensors; adds these and their names to the lists."""
    if isinstance(node, torch.Tensor):
        tensors.append(node.detach())
        names.append(".".join(map(str, path)))
        return (_LEAF, len(tensors) - 1, str(node.device.type))
    if isinstance(node, Mapping):
        for key in node:
            _require_plain(key, path, "a key of ")
        return {key: _without_tensors(value, (*path, key), tensors, names) for key, value in node.items()}
    if isinstance(node, list | tuple):
        walked = [_without_tensors(each, (*path, place), tensors, names) for place, each in enumerate(node)]
        return walked if isinstance(node, list) else tuple(walked)
    _require_plain(node, path)
    return node


def _require_plain(value: Any, path: tuple[Any, ...], what: str = "") -> None:
    """Raise `ElasticError` where a value could be saved but not loaded again."""
    if type(value) in _PLAIN or (type(value) is tuple and all(type(each) in _PLAIN for each in value)):
        return
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception as error:
        kind = type(value)
        raise ElasticError(
            f"{what}{_place_of(path)} is of type {kind.__module__}.{kind.__qualname__}, which the training state "
            "cannot keep: give it a plain value (a number of numpy's: float(...) or int(...)) or a tensor; objects "
            "with state_dict and load_state_dict go to s.track(...)"
        ) from error


def _place_of(path: tuple[Any, ...]) -> str:
    """A path in the tree as the script has it: `optimizer.param_groups[0]["lr"]`."""
    first, *keys = path[1:] if path[0] == "tracked" else path
    rest = "".join(f'["{key}"]' if isinstance(key, str) and not key.isdecimal() else f"[{key}]" for key in keys)
    return f"{'s.state' if first == SCRIPT_VALUES else first}{rest}".replace('["param_groups"]', ".param_groups")


def names_of(skeleton: bytes) -> list[str]:
    """The path of each tensor in the tree, separated by dots: `model.0.weight`."""
    names: list[str] = _load(skeleton)["names"]
    return [name if names.count(name) == 1 else f"{name}#{place}" for place, name in enumerate(names)]


def specs_of(skeleton: bytes) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """Types and shapes of a skeleton's tensors."""
    return [(getattr(torch, name), tuple(shape)) for name, shape in _load(skeleton)["tensors"]]


def unpack(skeleton: bytes, tensors: list[torch.Tensor]) -> Any:
    """The inverse of `pack`. `tensors`: become part of the tree without a copy. Raises `ElasticError`: the skeleton
    holds something else than plain data."""

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: walk(value) for key, value in node.items()}
        if isinstance(node, list):
            return [walk(each) for each in node]
        if not isinstance(node, tuple):
            return node
        if len(node) == 3 and node[0] == _LEAF:
            return tensors[node[1]]
        return tuple(walk(each) for each in node)

    return walk(_load(skeleton)["skeleton"])


def _load(skeleton: bytes) -> Any:
    try:
        return torch.load(io.BytesIO(skeleton), weights_only=True)
    except Exception as error:
        raise ElasticError(f"the state holds what is not plain data: {str(error).splitlines()[0][:300]}") from error


class TrainingState:
    """Model, optimizer, position, and what the script tracks.

    Attributes:
        tracked: tracked objects by name.
        has_state: whether this process holds the training state; False until a newcomer has received it.
        terms: the session's settings that the result depends on, as text.
        session: the number of the session in the script, from 0.
        before_capture: called before the state is packed; may raise.
    """

    def __init__(
        self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], position: Position
    ) -> None:
        self.model = model
        self.optimizers = list(optimizers)
        self.position = position
        self.before_capture: Callable[[], None] = lambda: None
        self.tracked: dict[str, Stateful] = {}
        self.has_state = False
        self.terms = ""
        self.session = 0
        self._boundary: dict[str, Any] | None = None

    def track(self, name: str, thing: Stateful | None) -> None:
        """Make `thing` part of the state. Raises `ElasticError` if it has no state_dict and load_state_dict."""
        if thing is None:
            raise ElasticError(f"track({name}=...): there is none: track it only where there is one")
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise ElasticError(
                f"track({name}=...): {type(thing).__name__} has no state_dict and load_state_dict: give it both, to "
                "return and to set what changes in it; or set what it sets from s.steps_done"
            )
        self.tracked[name] = thing

    def signatures(self) -> dict[str, int]:
        """63-bit hashes, by name, of what must be the same on every worker."""
        model = [f"{n}:{tuple(p.shape)}:{p.dtype}" for n, p in self.model.named_parameters()]
        model += [f"{n}:{tuple(b.shape)}:{b.dtype}" for n, b in self.model.named_buffers()]
        optimizer = [type(each).__name__ for each in self.optimizers]
        said = {
            "model": model,
            "optimizer": optimizer,
            "tracked objects": sorted(self.tracked),
            "data set, batch or seed": [self.terms],
            "releases of torch or malletrain": [torch.__version__, __version__],
        }
        return {
            name: int.from_bytes(hashlib.sha256("\n".join(lines).encode()).digest()[:8]) >> 1
            for name, lines in said.items()
        }

    def mark_boundary(self) -> None:
        """Remember tracked objects as they are at the end of an epoch's batches. A worker that joins or resumes later
        runs the script's code after the batches again, so it must get the state from before that code."""
        skeleton, tensors = pack({name: thing.state_dict() for name, thing in self.tracked.items()})
        self._boundary = unpack(skeleton, [tensor.clone() for tensor in tensors])

    def forget_boundary(self) -> None:
        """Forget what `mark_boundary` remembered: the next epoch has begun."""
        self._boundary = None

    def capture(self) -> tuple[bytes, list[torch.Tensor]]:
        """Pack the state; the tensors share memory with the live state. Raises what `before_capture` raises."""
        self.before_capture()
        tracked = self._boundary
        if tracked is None:
            tracked = {name: thing.state_dict() for name, thing in self.tracked.items()}
        optimizers = {str(place): each.state_dict() for place, each in enumerate(self.optimizers)}
        return pack(
            {
                "model": dict(self.model.state_dict()),
                # Of a single one as it is, so that other programs find it under the usual names.
                "optimizer": optimizers["0"] if len(optimizers) == 1 else optimizers,
                "tracked": tracked,
                "position": asdict(self.position),
                "layout": self.layout(),
            }
        )

    def copy(self) -> tuple[bytes, list[torch.Tensor]]:
        """Like `capture`, with tensors of their own, to be given to `restore` later."""
        skeleton, tensors = self.capture()
        try:
            return skeleton, [tensor.clone() for tensor in tensors]
        except torch.OutOfMemoryError:  # of the device
            return skeleton, [tensor.to("cpu", copy=True) for tensor in tensors]

    def layout(self) -> dict[str, Any]:
        """What is trained: the names of the parameters that require gradients, and of each optimizer's groups."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return {
            "trained": [name for name, parameter in self.model.named_parameters() if parameter.requires_grad],
            "groups": [
                [[names.get(id(each), "") for each in group["params"]] for group in optimizer.param_groups]
                for optimizer in self.optimizers
            ],
        }

    def restore(self, skeleton: bytes, tensors: list[torch.Tensor]) -> None:
        """Load a packed state. The tensors may become part of the live state. Raises `ElasticError`: it belongs to
        another model or optimizer."""
        tree = unpack(skeleton, tensors)
        try:
            if "layout" in tree:
                self._restore_layout(tree["layout"])
            self.model.load_state_dict(tree["model"])
            states = tree["optimizer"]
            if len(self.optimizers) == 1:
                states = {"0": states}
            for place, optimizer in enumerate(self.optimizers):
                optimizer.load_state_dict(states[str(place)])
        except (RuntimeError, ValueError, KeyError) as error:
            raise ElasticError(f"the state is of another model or optimizer: {error}") from error
        with warnings.catch_warnings():
            # Schedulers warn about the order of calls when they are loaded.
            warnings.simplefilter("ignore", UserWarning)
            for name, thing in self.tracked.items():
                if name in tree["tracked"]:
                    thing.load_state_dict(tree["tracked"][name])
        for name, value in tree["position"].items():
            setattr(self.position, name, value)

    def _restore_layout(self, layout: Mapping[str, Any]) -> None:
        """Freeze and unfreeze parameters, and group them in the optimizers, as where the state comes from."""
        own = self.layout()
        if layout == own:
            return
        parameters, trained = dict(self.model.named_parameters()), set(layout["trained"])
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in trained)
        for optimizer, groups, present in zip(self.optimizers, layout["groups"], own["groups"], strict=True):
            if groups == present or any("" in group for group in groups):
                continue
            optimizer.param_groups.clear()
            for group in groups:
                optimizer.add_param_group({"params": [parameters[name] for name in group]})
