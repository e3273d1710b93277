"""Finds, in a script's text, random numbers that are others on each worker and in each run: generators that the
system or the clock seeds."""

from __future__ import annotations

import ast
from dataclasses import dataclass

#: Calls that take their seed from the system where they are given none.
_MAKERS = frozenset({"default_rng", "RandomState", "Random", "seed"})

#: What is another on each worker or in each run, whatever it is given.
_OTHERS = frozenset({"SystemRandom", "urandom"})

#: What no seed may be made of: the clock, the process.
_CLOCKS = frozenset({"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "getpid", "now", "urandom"})
_SEEDING = frozenset({"manual_seed", "manual_seed_all", "seed", "seed_everything", "set_seed", *_MAKERS})


@dataclass(frozen=True, slots=True, order=True)
class UnseededDraw:
    """A call, by line and name: `np.random.default_rng`."""

    line: int
    call: str


def unseeded_draws(text: str) -> list[UnseededDraw]:
    """The calls of a script; none of a text that is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sorted({UnseededDraw(call.lineno, ast.unparse(call.func)) for call in calls if _is_unseeded(call)})


def _is_unseeded(call: ast.Call) -> bool:
    name = _last(call)
    if name in _OTHERS:
        return True
    given = [*call.args, *(each.value for each in call.keywords)]
    if name in _MAKERS and not given:
        # (`seed` alone may be the script's own function.)
        return name != "seed" or isinstance(call.func, ast.Attribute)
    return name in _SEEDING and any(
        isinstance(node, ast.Call) and _last(node) in _CLOCKS for each in given for node in ast.walk(each)
    )


def _last(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
