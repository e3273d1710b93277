"""What of a script's text the short epochs of a check do not meet: conditions on the number of the epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import SimpleNamespace

from malletrain.script_check.script_scopes import parsed


def unmet_conditions(text: str, epochs: range) -> list[str]:
    """The `if`s of a script that hold in some later epoch, but in none of these.

    Those that depend on more than the epoch, such as an option, are passed over."""
    tree = parsed(text)
    found = []
    for node in [] if tree is None else ast.walk(tree):
        if isinstance(node, ast.If):
            holds = [epoch for epoch in range(1000) if _holds(node.test, epoch)] if _of_epoch(node.test) else []
            if holds and not set(holds) & set(epochs):
                found.append(f"line {node.lineno}: `if {ast.unparse(node.test)}:` (--at-epoch {holds[0]})")
    return found


def _of_epoch(test: ast.expr) -> bool:
    """Whether a condition depends on the epoch alone: a variable, or an attribute of the session."""
    return {*map(_word, _names(test))} == {"epoch"}


def _names(test: ast.AST) -> Iterator[ast.expr]:
    for node in ast.iter_child_nodes(test):
        if isinstance(node, ast.Name | ast.Attribute | ast.Call):
            yield node
        else:
            yield from _names(node)


def _word(name: ast.expr) -> str:
    return "" if isinstance(name, ast.Call) else ast.unparse(name).rpartition(".")[2]


def _holds(test: ast.expr, epoch: int) -> bool:
    owners = {node.id: SimpleNamespace(epoch=epoch) for node in ast.walk(test) if isinstance(node, ast.Name)}
    try:
        return bool(eval(ast.unparse(test), {"__builtins__": {}}, {**owners, "epoch": epoch}))  # noqa: S307 - no calls
    except (ArithmeticError, TypeError, ValueError, AttributeError):
        return False
