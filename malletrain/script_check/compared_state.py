"""All that two runs of a script are compared by: the session's parameters, buffers, tracked objects and `s.state`,
and copies of the model that the script keeps itself, such as a moving average.

A copy is found by its tensors: they have the shapes of the model's parameters, and a name of the script's frames
leads to them.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from malletrain.elastic.session import Session
from malletrain.elastic.state.sharded_model import local

#: A name leads at most so far, and at most so many objects are looked at.
MAX_DEPTH, MAX_OBJECTS = 4, 10_000

#: Begins the names of what is no part of the training state.
COPY = "the script's own copy of the model, "

#: Values that names lead to: where, and what.
_Named = tuple[str, Any]


def compared_state(session: Session, frame: types.FrameType | None, folder: Path) -> dict[str, torch.Tensor]:
    """Copies of all tensors and numbers to compare, by what a person calls them.

    Args:
        frame: where the script is; the frames that have called it, too, are looked through.
        folder: of the script: frames of files elsewhere, as of a library, are passed over.
    """
    model, runtime = session._runtime.model, session._runtime
    found: list[tuple[str, torch.Tensor]] = list(model.named_parameters())
    found += [(f"buffer {name}", each) for name, each in model.named_buffers()]
    for name, tracked in runtime.state.tracked.items():
        if not name.startswith("malletrain."):  # the session's own counts
            found += _tensors(f"tracked {name}", tracked.state_dict())
    found += _tensors("s.state", dict(session.state))
    for file, names in _script_names(frame, folder):
        for where, tensors in model_copies(names.items(), model):
            found += [(f"{COPY}{where}[{place}] ({file})", each) for place, each in enumerate(tensors)]
    return {name: local(each).detach().cpu().clone() for name, each in found}


def model_copies(names: Iterable[_Named], model: torch.nn.Module) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """The copies of a model's parameters, all or those that are trained, that these names lead to."""
    every = list(model.parameters())
    shapes = [[each.shape for each in every], [each.shape for each in every if each.requires_grad]]
    own = {id(each) for each in every}
    seen = {id(each) for each in model.modules()}
    queue = [(name, value, 0) for name, value in names]
    for where, value, depth in queue:
        if id(value) in seen or len(seen) > MAX_OBJECTS:
            continue
        seen.add(id(value))
        tensors = _held_tensors(value)
        if tensors and [each.shape for each in tensors] in shapes:
            if not own & set(map(id, tensors)):
                yield where, tensors
        elif depth < MAX_DEPTH:
            queue += [(f"{where}{step}", inner, depth + 1) for step, inner in _inside(value)]


def _held_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors that a module or a collection consists of; nothing of other values."""
    if isinstance(value, torch.nn.Module):
        return list(value.parameters())
    held = list(value.values()) if isinstance(value, dict) else value
    if isinstance(held, list | tuple) and held and all(isinstance(each, torch.Tensor) for each in held):
        return list(held)
    return []


def _inside(value: Any) -> list[_Named]:
    """What attributes, keys and places lead to."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", each) for key, each in list(value.items())[:MAX_OBJECTS]]
    if isinstance(value, list | tuple):
        return [(f"[{place}]", each) for place, each in enumerate(value[:MAX_OBJECTS])]
    if isinstance(value, torch.nn.Module):
        return [(f".{name}", each) for name, each in value.named_children()]
    if isinstance(
        value, Session | torch.Tensor | torch.optim.Optimizer | type | types.ModuleType | types.FunctionType
    ):
        return []
    attributes = getattr(value, "__dict__", None)
    return [(f".{name}", each) for name, each in attributes.items()] if isinstance(attributes, dict) else []


def _script_names(frame: types.FrameType | None, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The variables of the script's functions that are running, and of their files, with the names of these."""
    looked_through = set[int]()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_absolute() and path.is_relative_to(folder) and "site-packages" not in path.parts:
            for names in (frame.f_locals, frame.f_globals):
                if id(names) not in looked_through:
                    looked_through.add(id(names))
                    yield path.name, dict(names)
        frame = frame.f_back


def _tensors(where: str, value: Any) -> list[tuple[str, torch.Tensor]]:
    """Tensors, and numbers as such, by path."""
    if isinstance(value, torch.Tensor):
        return [(where, value)]
    if isinstance(value, int | float):
        # Most numbers of a script come from tensors in single precision.
        return [(where, torch.tensor(float(value), dtype=torch.float32))]
    if isinstance(value, Mapping):
        pairs: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list | tuple):
        pairs = enumerate(value)
    else:
        return []
    return [found for key, each in pairs for found in _tensors(f"{where}[{key!r}]", each)]
