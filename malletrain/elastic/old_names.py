"""Names and arguments that a session had before: read for one release, with a warning that says the new ones."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.evaluate import all_reduce
from malletrain.elastic.runtime import Options, Runtime
from malletrain.elastic.step import Step

#: What is said now in place of an attribute of a session, and what that was; those that are in its `info` now go by
#: the same name.
NEW_NAMES: dict[str, tuple[str, Callable[[Runtime], Any]]] = {
    "when_main": ("Session(..., options=elastic.Options(when_main=callback))", lambda r: r.when_main.append),
    "when_joining": ("Session(..., options=elastic.Options(when_joining=callback))", lambda r: r.when_joining.append),
    "join": ("`epochs = s.epochs(n)`, which enters the world at once", lambda r: r.join),
    "shards": ("`for part in batch:`", lambda r: iter),
    "accumulate": (
        "`with s.step() as step:` and in it `with step.accumulate():`",
        lambda r: Step(r, None, 1).accumulate,
    ),
    "inner_loop": (
        "`with s.step() as step:` and in it `with step.inner_loop():`",
        lambda r: Step(r, None, 1).inner_loop,
    ),
    "all_reduce": ('s.agree(tensor, "sum")', lambda r: functools.partial(all_reduce, r)),
    "model": ("the model that the session was given", lambda r: r.model),
    "decay": (
        "of_reference ** (s.info.batch_size / reference_batch)",
        lambda r: lambda rate: rate ** (r.session_batch.lr_scaling.batch / r.session_batch.rule.reference),
    ),
}


def old_attribute(session: Any, runtime: Runtime, name: str) -> Any:
    """What an attribute of a session was, with a warning. Raises `AttributeError` if there was none of that name."""
    if hasattr(session.info, name):
        _warn(f"s.{name}", f"s.info.{name}")
        return getattr(session.info, name)
    if name not in NEW_NAMES:
        raise AttributeError(f"{type(session).__name__!r} object has no attribute {name!r}")
    new, value_of = NEW_NAMES[name]
    _warn(f"s.{name}", new)
    return value_of(runtime)


def with_old_arguments(options: Options | None, arguments: Mapping[str, Any]) -> Options:
    """Options, with what a script gave as arguments of `Session` before, with a warning for each. Raises
    `ElasticError`: there is no such argument."""
    known = {each.name for each in dataclasses.fields(Options)}
    for name in arguments:
        if name == "check":
            _warn("Session(check=...)", "nothing: `malletrain check` tries out what a script means")
        elif name in known:
            _warn(f"Session(..., {name}=...)", f"Session(..., options=elastic.Options({name}=...))")
        else:
            raise ElasticError(f"Session(..., {name}=...): there is no such argument")
    return dataclasses.replace(options or Options(), **{name: arguments[name] for name in arguments if name in known})


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} will be gone in the next release; say {new}", DeprecationWarning, stacklevel=4)
