"""Finds, in a script's text, collections that a function given to `evaluate` fills: workers share the data set, and
each fills its own with its own part."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from malletrain.elastic.guards.script_text.script_scopes import Function, parsed

_FILLS = frozenset({"append", "extend", "add", "update", "insert", "setdefault", "appendleft"})


@dataclass(frozen=True, slots=True, order=True)
class FilledCollection:
    """Where a collection is filled, and its name."""

    line: int
    name: str


def own_collections(text: str) -> list[FilledCollection]:
    """Those of a script; none of a text that is no Python."""
    tree = parsed(text)
    if tree is None:
        return []
    nodes = list(ast.walk(tree))
    functions = {node.name: node for node in nodes if isinstance(node, Function)}
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    given = {
        first.id
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "evaluate" and call.args
        for first in call.args[:1]
        if isinstance(first, ast.Name)
    }
    return sorted({each for name in given & functions.keys() for each in _filled(functions[name])})


def _filled(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[FilledCollection]:
    """Names from outside of a function that it stores into."""
    nodes = list(ast.walk(function))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            target: ast.expr = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
            target = node.func.value
        else:
            continue
        if isinstance(target, ast.Name) and target.id not in own:
            yield FilledCollection(node.lineno, target.id)
