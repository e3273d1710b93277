"""Finds, in a script's text, random numbers that are others on each worker: generators that the system, the clock or
the worker's rank seeds."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from malletrain.elastic.guards.script_text.script_scopes import parsed

#: Calls that take their seed from the system where they are given none.
_MAKERS = frozenset({"default_rng", "RandomState", "Random", "seed"})

#: What is another on each worker or in each run, whatever it is given.
_OTHERS = frozenset({"SystemRandom", "urandom"})

#: What no seed may be made of: the clock, the process.
_CLOCKS = frozenset({"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "getpid", "now", "urandom"})
_RANKS = frozenset({"rank", "local_rank", "global_rank", "world_rank", "get_rank", "slurm_procid"})
_SEEDING = frozenset({"manual_seed", "manual_seed_all", "seed", "seed_everything", "set_seed", *_MAKERS})


@dataclass(frozen=True, slots=True, order=True)
class UnseededDraw:
    """A call, by line and name: `np.random.default_rng`; `by_rank`: whether the rank seeds it."""

    line: int
    call: str
    by_rank: bool


def unseeded_draws(text: str) -> list[UnseededDraw]:
    """The calls of a script; none of a text that is no Python."""
    tree = parsed(text)
    if tree is None:
        return []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sorted(
        UnseededDraw(call.lineno, ast.unparse(call.func), not _is_unseeded(call))
        for call in calls
        if _is_unseeded(call) or _is_seeded_by_rank(call)
    )


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


def _is_seeded_by_rank(call: ast.Call) -> bool:
    given = [*call.args, *(each.value for each in call.keywords)]
    names = {_name(node).lower() for each in given for node in ast.walk(each)}
    return _last(call) in _SEEDING and bool(names & _RANKS)


def _name(node: ast.AST) -> str:
    """Of a variable, an attribute, or a variable of the environment."""
    found = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "value", None)
    return found if isinstance(found, str) else ""


def _last(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
