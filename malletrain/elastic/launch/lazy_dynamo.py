"""torch's compiler, imported when something is compiled rather than with the first optimizer.

`torch.optim` asks `torch._dynamo` to leave some of its functions alone when it compiles, and imports it to ask: two
seconds of processor time and 900 modules, nearly as much as `import torch` itself, before the first step of every
worker, also of those that compile nothing (torch 2.7 to 2.13; docs/adr/0007). Until `torch._dynamo` is imported
nothing can be compiled, so these functions are called as they are; from then on torch's own way is taken.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

COMPILER = "torch._dynamo"

#: Set to 1, the compiler is imported with the first optimizer, as torch does it.
EAGER = "MALLETRAIN_EAGER_COMPILER"

#: `torch._compile._disable_dynamo` keeps its answer here and asks the compiler only where there is none.
_ANSWER = "__dynamo_disable"


def is_imported() -> bool:
    """Whether anything can be compiled yet."""
    return COMPILER in sys.modules


def defer_import() -> None:
    """Let `torch.optim` do without the compiler until somebody imports it. Again is harmless; with a release of torch
    whose optimizers look otherwise nothing is changed."""
    if is_imported() or os.environ.get(EAGER) == "1":
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
    """An answer that takes itself back when the compiler is there, so that it is asked."""
    plain = asking.__wrapped__

    def until_compiled(*args: Any, **kwargs: Any) -> Any:
        if not is_imported():
            return plain(*args, **kwargs)
        if getattr(plain, _ANSWER, None) is until_compiled:
            delattr(plain, _ANSWER)
        return asking(*args, **kwargs)

    if getattr(plain, _ANSWER, None) is None:
        setattr(plain, _ANSWER, until_compiled)


def _without_import(importing: Any) -> Callable[..., Any]:
    """`torch.optim`'s step of an optimizer, less the marks it sets for a compiler that is not there."""
    import torch

    plain = importing.__wrapped__

    @functools.wraps(plain)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_imported():
            return importing(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return plain(self, *args, **kwargs)

    return step
