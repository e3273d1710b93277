"""All that two runs of a script are compared by: the session's parameters, buffers, tracked objects and `s.state`,
and what the script's names lead to, such as a moving average or a best score."""

from __future__ import annotations

import ast
import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from malletrain.elastic.launch.failure_report import is_script
from malletrain.elastic.session import Session
from malletrain.script_check.script_scopes import called_name, parsed, scopes_of

#: A name leads at most so far, and at most so many objects are looked at.
MAX_DEPTH, MAX_OBJECTS = 4, 10_000

#: Calls that tell a person something, by their last name.
_MESSAGES = frozenset(
    {"print", "info", "debug", "warning", "write", "set_postfix", "set_description", "add_scalar", "log_metric"}
)

#: What these hold is none of the script's, or follows from what is compared.
_LEFT_ALONE = (
    Session,
    torch.optim.Optimizer,
    type,
    types.ModuleType,
    torch.utils.data.Dataset,
    torch.utils.data.DataLoader,
)


def compared_state(session: Session) -> dict[str, torch.Tensor]:
    """Copies of all tensors and numbers of the training state, by what a person calls them."""
    model, runtime = session._runtime.model, session._runtime
    found: list[tuple[str, torch.Tensor]] = list(model.named_parameters())
    found += [(f"buffer {name}", each) for name, each in model.named_buffers()]
    for name, tracked in runtime.state.tracked.items():
        if not name.startswith("malletrain."):  # the session's own counts
            found += _tensors(f"tracked {name}", tracked.state_dict())
    found += _tensors("s.state", dict(session.state))
    return {name: each.detach().cpu().clone() for name, each in found}


def own_values(session: Session, frame: types.FrameType | None, folder: Path) -> dict[str, torch.Tensor]:
    """Copies of the tensors, arrays and numbers that the script's names lead to, and are none of the session's, by
    name, file, line and function. A list of numbers is one vector. A number that is only printed is passed over.
    `frame`: where the script is; the frames that have called it, too, are looked through. `folder`: of the script:
    frames of files elsewhere, as of a library, are passed over."""
    parts = [*session._runtime.model.parameters(), *session._runtime.model.buffers()]
    most = max(MAX_OBJECTS, sum(each.numel() for each in parts))  # an average is no larger than what it is of
    seen = {*map(id, parts), *map(id, session._runtime.state.optimizers), id(session), id(session._runtime)}
    queue = deque(
        (name, place, value, 0)
        for path, function, names in _script_names(frame, folder)
        for name, value in names.items()
        if not name.startswith("__") and not (isinstance(value, int | float) and name in _only_printed(path))
        for place in [f"{path.name}:{_assignments(path).get((function, name), 1)} in {function}"]
    )
    found: dict[str, torch.Tensor] = {}
    while queue and len(seen) < MAX_OBJECTS:
        where, place, value, depth = queue.popleft()
        vector = _vector(value)
        if vector is not None:
            if 0 < vector.numel() <= most and id(value) not in seen:
                found[f"{where} ({place})"] = vector.detach().float().cpu().clone()
        elif depth < MAX_DEPTH and id(value) not in seen and not isinstance(value, str):
            seen.add(id(value))
            queue.extend((f"{where}{step}", place, inner, depth + 1) for step, inner in _held(value))
    return found


def _vector(value: Any) -> torch.Tensor | None:
    """A tensor, an array, a number, or a list of numbers; None of anything else."""
    if isinstance(value, torch.Tensor):
        return None if value.is_complex() or value.is_sparse else value
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.number):
        return torch.as_tensor(value.astype("float32")) if value.dtype.kind in "fiu" else None
    if isinstance(value, dict) and not any(isinstance(key, str) for key in value):  # such as counts by class
        value = list(value.values())
    numbers = list(value) if isinstance(value, list | tuple | deque) else [value]
    if not numbers or not all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers):
        return None
    made = torch.tensor([float(each) for each in numbers])
    return made if isinstance(value, list | tuple | deque) else made[0]


def _held(value: Any) -> list[tuple[str, Any]]:
    """What keys, places, attributes and slots lead to, the parts of a module, and what a function closes over."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", each) for key, each in list(value.items())[:MAX_OBJECTS]]
    if isinstance(value, list | tuple | deque):
        return [(f"[{place}]", each) for place, each in enumerate(list(value)[:MAX_OBJECTS])]
    if isinstance(value, types.FunctionType):
        names = value.__code__.co_freevars
        cells = zip(names, value.__closure__ or (), strict=False)
        return [(f".{name}", cell.cell_contents) for name, cell in cells if cell != types.CellType()]
    if isinstance(value, types.MethodType):
        return [("", value.__self__)]
    if isinstance(value, type) and value.__module__ == "__main__":
        return [(f".{name}", each) for name, each in vars(value).items() if not name.startswith("_")]
    if isinstance(value, torch.nn.Module):
        own = [*value.named_parameters(recurse=False), *value.named_buffers(recurse=False), *value.named_children()]
        plain = [(name, each) for name, each in vars(value).items() if not name.startswith("_")]
        return [(f".{name}", each) for name, each in [*own, *plain]]
    if isinstance(value, _LEFT_ALONE):
        return []
    slots = getattr(type(value), "__slots__", ())
    slots = (slots,) if isinstance(slots, str) else slots
    held = [(f".{name}", getattr(value, name)) for name in slots if hasattr(value, name)]
    return held + [(f".{name}", each) for name, each in getattr(value, "__dict__", {}).items()]


@functools.cache
def _assignments(path: Path) -> dict[tuple[str, str], int]:
    """The line where a function, or the module, first assigns to a name."""
    tree = parsed(path.read_text(errors="replace"))
    found: dict[tuple[str, str], int] = {}
    for scope in [] if tree is None else scopes_of(tree):
        for node in ast.walk(scope):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                key = getattr(scope, "name", "<module>"), node.id
                found[key] = min(found.get(key, node.lineno), node.lineno)
    return found


@functools.cache
def _only_printed(path: Path) -> frozenset[str]:
    """Names that a file reads in messages, and elsewhere for their next value alone: `best = max(best, score)`."""
    tree = parsed(path.read_text(errors="replace"))
    nodes = [] if tree is None else list(ast.walk(tree))
    said = {id(each) for node in nodes if called_name(node) in _MESSAGES for each in ast.walk(node)}
    own = {
        id(each) for node in nodes for name, read in _next_value(node) for each in ast.walk(read) if name == _id(each)
    }
    read = {
        _id(each) for each in nodes if isinstance(getattr(each, "ctx", None), ast.Load) and id(each) not in said | own
    }
    return frozenset({_id(each) for each in nodes if id(each) in said} - read)


def _next_value(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """A name that a statement gives another value, and nothing else, and the expression by which it does."""
    if isinstance(node, ast.Assign):
        return [(_id(node.targets[0]), node.value)]
    if not isinstance(node, ast.If) or node.orelse:
        return []
    rest = [each for each in node.body if not isinstance(each, ast.Expr) or called_name(each.value) not in _MESSAGES]
    return [(_id(each.targets[0]), node.test) for each in rest if isinstance(each, ast.Assign) and len(rest) == 1]


def _id(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _script_names(frame: types.FrameType | None, folder: Path) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """The variables of the script's functions that are running, and of its files, with file and function."""
    looked_through = set[int]()
    while frame is not None:
        if is_own(frame.f_code.co_filename, folder):
            for names in (frame.f_locals, frame.f_globals):
                if id(names) not in looked_through:
                    looked_through.add(id(names))
                    function = "<module>" if names is frame.f_globals else frame.f_code.co_name
                    yield Path(frame.f_code.co_filename), function, dict(names)
        frame = frame.f_back
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        if is_own(file, folder) and id(vars(module)) not in looked_through:
            yield Path(file), "<module>", dict(vars(module))


@functools.cache
def is_own(file: str, folder: Path) -> bool:
    """Whether a file is the script's: of its folder, and of no library."""
    return Path(file).is_absolute() and Path(file).is_relative_to(folder) and is_script(file)


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
