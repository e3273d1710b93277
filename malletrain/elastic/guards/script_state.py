"""State that the script holds outside the session, which a worker that joins would not get.

Plain variables that steer training are compared between workers (`compared`); schedulers and the like that are not
tracked, and files that every worker would write, are named in the log as training begins (`warn_untracked`,
`warn_writes`); averaged copies of the model that change while it trains are an error (`CopyWatch`).
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any
from weakref import ref

import torch
from torch.utils._pytree import tree_leaves

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.guards.script_place import is_script, script_frames
from malletrain.elastic.guards.script_text.carried_names import CarriedName, carried_names, renewed_names
from malletrain.elastic.guards.script_text.loss_sources import loss_sources
from malletrain.elastic.guards.script_text.own_collections import own_collections
from malletrain.elastic.guards.script_text.script_writes import unguarded_writes
from malletrain.elastic.guards.script_text.unseeded_draws import unseeded_draws
from malletrain.elastic.state.training_state import TrainingState

log = logging.getLogger("malletrain.elastic")

#: How deep attributes, lists and dictionaries are looked into, and how many entries of each.
MAX_DEPTH, MAX_ENTRIES = 3, 1000

#: Numbers of an array in which a change is looked for.
MAX_NUMBERS = 256

#: A container is a copy of the model if so large a share of the model's parameters has a tensor of its shape in it.
COPY_SHARE = 0.5

_KINDS = (torch.optim.lr_scheduler.LRScheduler, torch.optim.Optimizer, torch.amp.GradScaler)
_PLAIN = (bool, int, float, str, type(None))


# --- variables that steer -----------------------------------------------------------------------------------------


def compared() -> dict[str, Any]:
    """The script's variables that workers must have in common, by name, as they are now."""
    found: dict[str, Any] = {}
    for frame in script_frames():
        for each in _carried(frame.f_code):
            value = _value(frame, each.name)
            if isinstance(value, _PLAIN):
                found.setdefault(f"{each.name} ({Path(frame.f_code.co_filename).name}:{each.line})", value)
    return found


def generators(known: Iterable[Any]) -> dict[str, str]:
    """States of the script's own random generators by name, without `known` ones and those that its text seeds."""
    ids = {id(each) for each in known}
    found: dict[str, str] = {}
    for name, thing in _reachable(variables()):
        state = "" if id(thing) in ids or thing is torch.default_generator else _generator_state(thing)
        if state and not _is_seeded(name):
            found[f"{name} (a random generator)"] = state
    return found


def _generator_state(thing: Any) -> str:
    numpy = sys.modules.get("numpy")
    if isinstance(thing, torch.Generator):
        return hashlib.sha256(thing.get_state().numpy().tobytes()).hexdigest()
    if isinstance(thing, random.Random):
        return hashlib.sha256(repr(thing.getstate()).encode()).hexdigest()
    if numpy is not None and isinstance(thing, numpy.random.Generator):
        return repr(thing.bit_generator.state)
    if numpy is not None and isinstance(thing, numpy.random.RandomState) and thing is not numpy.random.mtrand._rand:
        name, key, *rest = thing.get_state()
        return hashlib.sha256(repr((name, key.tobytes(), rest)).encode()).hexdigest()
    return ""


def _is_seeded(name: str) -> bool:
    """Whether the script's text seeds a generator, as by the number of the step."""
    last = re.escape(name.rpartition(".")[2].partition("[")[0])
    return any(re.search(rf"\b{last}\.(manual_seed|seed)\(", _text_of(frame)) for frame in script_frames())


def _text_of(frame: FrameType) -> str:
    return _read(frame.f_code.co_filename)


@lru_cache(maxsize=64)
def _read(filename: str) -> str:
    try:
        return Path(filename).read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _texts() -> Iterator[tuple[str, str]]:
    """Name and text of each file of the functions being called."""
    for filename in dict.fromkeys(frame.f_code.co_filename for frame in script_frames()):
        yield Path(filename).name, _read(filename)


def warn_writes() -> None:
    """Log a warning for each file that every worker of the script would write."""
    for name, text in _texts():
        for each in unguarded_writes(text):
            log.warning(
                "%s:%d: every worker calls %s, and those that train together would write one file at the same time: "
                "put it under `if s.is_main:`, or into s.when_main(callback)",
                *(name, each.line, each.call),
            )


def warn_draws() -> None:
    """Log a warning for each generator of the script that the system, the clock or the worker's rank seeds."""
    for name, text in _texts():
        for each in unseeded_draws(text):
            runs = ", by its rank" if each.by_rank else " and in each run"
            log.warning(
                "%s:%d: %s gives other random numbers on each worker%s: give it a seed, the same on every worker",
                *(name, each.line, each.call, runs),
            )


def warn_collections() -> None:
    """Log a warning for each collection that the script fills while the workers evaluate together."""
    for name, text in _texts():
        for each in own_collections(text):
            log.warning(
                "%s:%d: in evaluate() a worker sees its own part of the data set, and %s has what this one has seen: "
                "return sums, or loop over the data set yourself where every worker needs all of it",
                *(name, each.line, each.name),
            )


def sources_of_losses() -> dict[str, str]:
    """What a worker alone has and makes its loss with, in the files of the functions being called, with the line."""
    found: dict[str, str] = {}
    for frame in script_frames():
        code = frame.f_code
        scope = 0 if code.co_name == "<module>" else code.co_firstlineno
        for what, line in _losses_of_file(code.co_filename).get(scope, {}).items():
            found.setdefault(what, f"{Path(code.co_filename).name}:{line}")
    return found


@lru_cache(maxsize=64)
def _losses_of_file(filename: str) -> dict[int, dict[str, int]]:
    try:
        return loss_sources(Path(filename).read_text())
    except (OSError, UnicodeDecodeError):
        return {}


@lru_cache(maxsize=256)
def _carried(code: CodeType) -> frozenset[CarriedName]:
    scopes = _of_file(code.co_filename)
    return scopes.get(0 if code.co_name == "<module>" else code.co_firstlineno, frozenset())


@lru_cache(maxsize=64)
def _of_file(filename: str) -> dict[int, frozenset[CarriedName]]:
    try:
        return carried_names(Path(filename).read_text())
    except (OSError, UnicodeDecodeError):
        return {}


def _value(frame: FrameType, name: str) -> Any:
    """The value of a dotted name in a frame; the frame itself, which is not plain, where there is none."""
    root, *attributes = name.split(".")
    value = frame.f_locals.get(root, frame.f_globals.get(root, frame))
    for attribute in attributes:
        fields = getattr(value, "__dict__", {})  # no property is called
        value = fields.get(attribute, frame) if isinstance(fields, Mapping) else frame
    return value


# --- objects with state -------------------------------------------------------------------------------------------


def variables() -> dict[str, Any]:
    """The script's variables, of all its functions that are being called and of its modules."""
    found: dict[str, Any] = {}
    for frame in script_frames():
        for name, value in [*frame.f_locals.items(), *frame.f_globals.items()]:
            if not name.startswith("__"):
                found.setdefault(name, value)
    return found


def warn_untracked(state: TrainingState) -> None:
    """Log a warning for each object of the script that looks untracked."""
    for name, thing in untracked(state, variables()):
        log.warning(
            "%s (%s) has state that newcomers will not get: s.track(%s=%s) before the first epoch, if training "
            "changes it",
            *(name, type(thing).__name__, _keyword(name), _bare(name)),
        )


def _keyword(name: str) -> str:
    """A name for `track` from the path of an object: of `trainer.parts['warm'][0]`, `warm_0`."""
    return "_".join(re.findall(r"\w+", _bare(name).rpartition(".")[2])) or "thing"


def _bare(name: str) -> str:
    """A name as the script writes it where the thing is made: of `teacher (in loss_of)`, `teacher`."""
    return re.sub(r" \(in [^()]*\)+", "", name)


def untracked(state: TrainingState, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Schedulers, gradient scalers, optimizers and trainable modules that are not part of the training state,
    wherever the script's objects, lists and dictionaries hold them."""
    known = {id(thing) for thing in [*state.optimizers, *state.tracked.values()]}
    parameters = {id(parameter) for parameter in state.model.parameters()}
    for thing in state.tracked.values():
        if isinstance(thing, torch.nn.Module):
            parameters |= {id(parameter) for parameter in thing.parameters()}
    for name, thing in _reachable(given):
        if id(thing) in known:
            continue
        if isinstance(thing, torch.optim.Optimizer) and id(getattr(thing, "optimizer", None)) in known:
            continue  # some libraries wrap the optimizer
        if (
            isinstance(thing, _KINDS)
            or _schedules(thing)
            or (isinstance(thing, torch.nn.Module) and _trains(thing, parameters))
        ):
            known.add(id(thing))
            yield name, thing


def _schedules(thing: Any) -> bool:
    """Whether a thing looks like a scheduler that is none of torch's, as timm's."""
    fields = getattr(thing, "__dict__", {})
    holds = isinstance(fields, Mapping) and any(isinstance(each, torch.optim.Optimizer) for each in fields.values())
    return holds and all(
        callable(getattr(type(thing), name, None)) for name in ("state_dict", "load_state_dict", "step")
    )


def _trains(module: torch.nn.Module, parameters: set[int]) -> bool:
    """Whether a module has trainable parameters of its own; a frozen one is built alike on every worker."""
    return any(each.requires_grad and id(each) not in parameters for each in module.parameters())


def _reachable(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Objects by path, nearest first: of the script's own classes the attributes, of its functions what they close
    over, of lists and dictionaries the entries."""
    seen: set[int] = set()
    level = [(name, thing) for name, thing in given.items()]
    for _ in range(MAX_DEPTH + 1):
        following: list[tuple[str, Any]] = []
        for name, thing in level:
            if isinstance(thing, (*_PLAIN, type, torch.Tensor, CodeType, ModuleType)) or id(thing) in seen:
                continue
            seen.add(id(thing))
            yield name, thing
            following += _entries(name, thing)
        level = following


def _entries(name: str, thing: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(thing, dict):
        return [(f"{name}[{key!r}]", value) for key, value in list(thing.items())[:MAX_ENTRIES]]
    if isinstance(thing, list | tuple):
        return [(f"{name}[{place}]", value) for place, value in enumerate(thing[:MAX_ENTRIES])]
    if isinstance(thing, FunctionType) and is_script(thing.__code__.co_filename):
        return [(f"{key} (in {name})", value) for key, value in _closed_over(thing)]
    if isinstance(thing, torch.nn.Module) or not _is_own(thing):
        return []
    return [(f"{name}.{key}", value) for key, value in list(vars(thing).items())[:MAX_ENTRIES]]


def _closed_over(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Variables of the functions around this one, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has no value yet
            yield name, cell.cell_contents


def _is_own(thing: Any) -> bool:
    """Whether an object's class is the script's own."""
    module = sys.modules.get(type(thing).__module__)
    filename = getattr(module, "__file__", None)
    return isinstance(filename, str) and is_script(filename) and isinstance(getattr(thing, "__dict__", None), dict)


# --- copies of the model ------------------------------------------------------------------------------------------


class CopyWatch:
    """Notices copies of the model, such as moving averages, that training changes and the session does not have.

    Args:
        state: the training state.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        #: By name: a reference to a module, the place of a list or dictionary, or the name itself of a variable that
        #: the script makes of itself; and marks of its tensors.
        self._before: dict[str, tuple[ref[Any] | int | str, tuple[int, ...]]] | None = None

    def forget(self) -> None:
        """Some steps are not looked at: a new list may lie where one was that is gone."""
        if self._before is not None:
            self._before = {name: kept for name, kept in self._before.items() if isinstance(kept[0], ref)}

    def look(self, batch: Any = None) -> None:
        """Look at the copies that the script holds. Call it at the same place of two steps, at least.

        Args:
            batch: of the step that begins: no copy, whatever its shapes are.

        Raises:
            ElasticError: one has changed since the last look.
        """
        found = self._copies(variables(), {id(each) for each in tree_leaves(batch)})
        renewed = _renewed()
        now = {
            name: (name if name in renewed else _identity(thing), _fingerprint(tensors))
            for name, thing, tensors in found
        }
        before, self._before = self._before, now
        for name, (identity, marks) in now.items():
            # (A list that each step makes anew, such as one of gradients, carries nothing over.)
            earlier = (before or {}).get(name)
            if earlier is not None and earlier[0] == identity and earlier[1] != marks:
                raise ElasticError(
                    f"{name} is a copy of the model that training changes, and a worker that joins would not have "
                    f"it: s.track(average={_bare(name)}) if it has state_dict and load_state_dict, else keep it in "
                    's.state["average"], as tensors, before the first epoch'
                )

    def _copies(self, given: Mapping[str, Any], own: set[int]) -> Iterator[tuple[str, Any, list[Any]]]:
        own |= {id(each) for each in [*self._state.model.parameters(), *self._state.model.buffers()]}
        for thing in self._state.tracked.values():
            own |= {id(tensor) for tensor in [*_tensors(thing), *_kept(thing)]}
        shapes = Counter(tuple(each.shape) for each in self._state.model.parameters())
        modules = {id(module) for module in self._state.model.modules()}
        modules |= {id(thing) for thing in self._state.tracked.values()}
        many = sum(shapes.values())
        total = sum(each.numel() for each in self._state.model.parameters())
        for name, thing in given.items():
            if many > 1 and _is_array(thing) and thing.ndim == 1 and thing.shape[0] == total and id(thing) not in own:
                yield name, thing, [thing]
        for name, thing in _reachable(given):
            if id(thing) in modules or isinstance(thing, torch.optim.Optimizer):
                continue
            tensors = [tensor for tensor in _tensors(thing) if id(tensor) not in own]
            alike = shapes & Counter(tuple(tensor.shape) for tensor in tensors)
            if many > 1 and sum(alike.values()) >= COPY_SHARE * many:
                yield name, thing, tensors


def _identity(thing: Any) -> ref[Any] | int:
    if isinstance(thing, tuple):  # it holds the same tensors as long as it lives, and a new one may lie in its place
        return hash(tuple(id(each) for each in thing))
    return ref(thing) if isinstance(thing, torch.nn.Module) else id(thing)


def _renewed() -> set[str]:
    """The script's variables that its loops only ever make of themselves."""
    return set().union(*(_renewed_in_file(frame.f_code.co_filename) for frame in script_frames()))


@lru_cache(maxsize=64)
def _renewed_in_file(filename: str) -> frozenset[str]:
    return renewed_names(_read(filename))


def _is_array(thing: Any) -> bool:
    """Whether a thing is a tensor, or an array of numpy's."""
    numpy = sys.modules.get("numpy")
    return isinstance(thing, torch.Tensor) or (numpy is not None and isinstance(thing, numpy.ndarray))


def _tensors(thing: Any) -> list[Any]:
    """The tensors and arrays that a module, list or dictionary holds itself."""
    if isinstance(thing, torch.nn.Module):
        return [*thing.parameters(), *thing.buffers()]
    if isinstance(thing, dict):
        thing = list(thing.values())[:MAX_ENTRIES]
    if isinstance(thing, list | tuple):
        return [each for each in thing[:MAX_ENTRIES] if _is_array(each)]
    return []


def _kept(tracked: Any) -> list[Any]:
    """The tensors that a tracked object of the script's own class holds, if its state has as many of these shapes."""
    held = [tensor for _, thing in _reachable({"": tracked}) for tensor in _tensors(thing)]
    saved = [each for each in tree_leaves(tracked.state_dict()) if _is_array(each)] if held else []
    shapes = [Counter(tuple(each.shape) for each in tensors) for tensors in (held, saved)]
    return held if shapes[0] <= shapes[1] else []


def _fingerprint(arrays: list[Any]) -> tuple[int, ...]:
    """Numbers that change when a tensor or array is changed in place or replaced."""
    return tuple(number for each in arrays for number in (id(each), _version(each)))


def _version(array: Any) -> int:
    if isinstance(array, torch.Tensor):
        return array._version
    flat = array.reshape(-1)  # numpy counts no changes
    return hash(flat[:: max(1, flat.size // MAX_NUMBERS)].tobytes())
