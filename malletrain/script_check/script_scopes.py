"""A script's text as a tree, and its scopes: the module, and each function. Guards name one by its first line."""

from __future__ import annotations

import ast

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


def first_line(scope: Scope) -> int:
    """The line of a function, or of its first decorator, as code objects have it; 0 of the module."""
    if isinstance(scope, ast.Module):
        return 0
    return min([scope.lineno, *(decorator.lineno for decorator in scope.decorator_list)])
