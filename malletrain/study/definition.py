"""A study file: what it must hold, and what it may."""

import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import optuna

from malletrain.domain.errors import InvalidInput
from malletrain.study.trial_spec import node_range

Values = float | Sequence[float]


@dataclass(frozen=True, slots=True)
class Definition:
    """What a study file says. `pruner` is None where it names none; `nodes` the node range of trainings."""

    file: Path
    objective: Callable[[optuna.Trial], Values]
    directions: tuple[str, ...]
    sampler: optuna.samplers.BaseSampler | None
    pruner: optuna.pruners.BasePruner | None
    nodes: str

    @property
    def ends_by_itself(self) -> bool:
        """Whether the sampler has tried everything at some time."""
        return isinstance(self.sampler, optuna.samplers.GridSampler | optuna.samplers.BruteForceSampler)

    @property
    def name(self) -> str:
        return self.file.stem


def load(path: Path) -> Definition:
    """Import a study file.
    Raises InvalidInput: it cannot be imported, or something in it is missing or of the wrong kind; names the line."""
    file = path.resolve()
    if not file.is_file():
        raise InvalidInput(str(path), "there is no such study file")
    module = _import(path, file)
    objective = getattr(module, "objective", None)
    if not callable(objective):
        raise InvalidInput(str(path), "defines no objective: add `def objective(trial): ...`")
    try:
        inspect.signature(objective).bind(None)
    except TypeError as error:
        raise InvalidInput(str(path), f"objective must take one argument, the trial ({error})") from error
    return Definition(
        file=file,
        objective=objective,
        directions=_directions(module, path),
        sampler=_kind(module, path, "sampler", optuna.samplers.BaseSampler),
        pruner=_kind(module, path, "pruner", optuna.pruners.BasePruner),
        nodes=_nodes(module, path),
    )


def _import(path: Path, file: Path) -> ModuleType:
    if file.suffix != ".py":
        raise InvalidInput(str(path), "is no Python file: its name must end in .py")
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    sys.path.insert(0, str(file.parent))
    sys.modules[file.stem] = module
    try:
        # Compiled each time: bytecode caches go by whole seconds, and miss a second edit in one.
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))  # noqa: S102 - the user's own study
    except (Exception, SystemExit) as error:  # whatever the user's file raises is the user's to see
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        if isinstance(error, SyntaxError) and error.filename == str(file):
            lines = [error.lineno]
        where = f"{path}:{lines[-1]}" if lines else str(path)
        raise InvalidInput(where, f"{type(error).__name__}: {error}") from error
    return module


def _directions(module: ModuleType, path: Path) -> tuple[str, ...]:
    one, several = getattr(module, "direction", None), getattr(module, "directions", None)
    if one is not None and several is not None:
        raise InvalidInput(str(path), "names both direction and directions: keep one")
    directions = [one] if one is not None else several
    if directions is None:
        raise InvalidInput(str(path), 'names no direction: add direction = "maximize", or "minimize"')
    allowed = ("minimize", "maximize")
    if not isinstance(directions, (list, tuple)) or not directions or any(each not in allowed for each in directions):
        wanted = 'must be "minimize" or "maximize", or a list of them'
        raise InvalidInput(str(path), f"direction {directions!r}: {wanted}")
    return tuple(directions)


def _nodes(module: ModuleType, path: Path) -> str:
    nodes = str(getattr(module, "nodes", "1-4"))
    try:
        node_range(nodes)
    except InvalidInput as error:
        raise InvalidInput(str(path), str(error)) from error
    return nodes


def _kind(module: ModuleType, path: Path, name: str, kind: type) -> Any:
    value = getattr(module, name, None)
    if value is not None and not isinstance(value, kind):
        raise InvalidInput(str(path), f"{name} must be one of optuna.{name}s, not {type(value).__name__}")
    return value
