"""A script's text as a tree, its scopes (the module, and each function, known by its first line), and its calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | Function


def parsed(text: str) -> ast.Module | None:
    """The tree of a script's text; None of a text that is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def scopes_of(tree: ast.Module) -> list[Scope]:
    """The module, and all functions in it."""
    return [tree, *(node for node in ast.walk(tree) if isinstance(node, Function))]


def called_name(node: ast.AST) -> str:
    """The last name of what a node calls: `step` of `step()` and of `optimizer.step()`; "" of anything else."""
    called = getattr(node, "func", None)
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def calls_of(node: ast.AST, *names: str) -> Iterator[ast.Call]:
    """The calls of these names anywhere in a node."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and called_name(each) in names:
            yield each


def calls(node: ast.AST, *names: str) -> bool:
    """Whether something of one of these names is called anywhere in a node."""
    return any(calls_of(node, *names))
