"""Defers the import of torch's compiler (`torch._dynamo`) from the first optimizer to the first compilation.

`torch.optim` excludes some of its functions from compilation, and imports the compiler for that: two seconds of CPU
time and 900 modules, nearly as much as `import torch`, before the first step of every worker, whether it compiles
anything or not (torch 2.7 to 2.13; docs/adr/0007). Nothing can be compiled until `torch._dynamo` is imported, so
until then these functions run as they are; afterwards torch's own code runs.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

COMPILER_MODULE = "torch._dynamo"

#: Environment variable: 1 imports the compiler with the first optimizer, as torch does.
EAGER_VARIABLE = "MALLETRAIN_EAGER_COMPILER"

#: Attribute in which `torch._compile._disable_dynamo` caches the compiler's answer.
_CACHE_ATTRIBUTE = "__dynamo_disable"


def is_imported() -> bool:
    """Whether the compiler is imported."""
    return COMPILER_MODULE in sys.modules


def defer_import() -> None:
    """Patch torch's optimizers to run without the compiler until something imports it.

    May be called again, after new optimizer classes were defined. With a release of torch whose optimizers are built
    otherwise it changes nothing.
    """
    if is_imported() or os.environ.get(EAGER_VARIABLE) == "1":
        return
    from torch.optim import Optimizer

    for kind in _with_subclasses(Optimizer):
        for name, function in list(vars(kind).items()):
            if _asks_on_call(function):
                _answer_for_now(function)
            elif _imports_on_call(function):
                setattr(kind, name, _without_import(function))


def _with_subclasses(kind: type[Any]) -> set[type[Any]]:
    found: set[type[Any]] = {kind}
    for each in kind.__subclasses__():
        found |= _with_subclasses(each)
    return found


def _code_of(function: object) -> str:
    return getattr(getattr(function, "__code__", None), "co_qualname", "")


def _asks_on_call(function: object) -> bool:
    return _code_of(function) == "_disable_dynamo.<locals>.inner"


def _imports_on_call(function: object) -> bool:
    return _code_of(function) == "_use_grad_for_differentiable.<locals>._use_grad"


def _answer_for_now(asking: Any) -> None:
    """Cache an answer that removes itself once the compiler is imported, so that torch asks the compiler then."""
    plain = asking.__wrapped__

    def until_compiled(*args: Any, **kwargs: Any) -> Any:
        if not is_imported():
            return plain(*args, **kwargs)
        if getattr(plain, _CACHE_ATTRIBUTE, None) is until_compiled:
            delattr(plain, _CACHE_ATTRIBUTE)
        return asking(*args, **kwargs)

    if getattr(plain, _CACHE_ATTRIBUTE, None) is None:
        setattr(plain, _CACHE_ATTRIBUTE, until_compiled)


def _without_import(importing: Any) -> Callable[..., Any]:
    """`torch.optim`'s wrapper of an optimizer's step, without the graph breaks it sets for the compiler."""
    import torch

    plain = importing.__wrapped__

    @functools.wraps(plain)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_imported():
            return importing(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return plain(self, *args, **kwargs)

    return step
