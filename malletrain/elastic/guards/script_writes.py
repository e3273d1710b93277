"""Finds, in a script's text, files that every worker would write: models saved outside `if s.is_main:`."""

from __future__ import annotations

import ast
from dataclasses import dataclass

#: Calls that write a model: by their last name, and the names that must stand before it ("" for any).
_WRITERS = {
    "save": ("torch",),
    "save_file": ("", "safetensors.torch"),
    "save_pretrained": ("",),
    "save_model": ("", "safetensors.torch"),
    "savefig": ("",),
}

#: Conditions of one worker.
_MAIN = (
    "is_main",
    "get_rank",
    "is_main_process",
    "is_world_process_zero",
    "is_global_zero",
    "rank",
    "local_rank",
    "global_rank",
)


@dataclass(frozen=True, slots=True, order=True)
class UnguardedWrite:
    """A call that writes a file on every worker: its line and name, `torch.save`."""

    line: int
    call: str


def unguarded_writes(text: str) -> list[UnguardedWrite]:
    """The calls of a script that trains with a session; none of a text that is no Python, or has no session."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found: list[UnguardedWrite] = []
    _walk(tree, found, guarded=False)
    return sorted(found)


def _walk(node: ast.AST, found: list[UnguardedWrite], *, guarded: bool) -> None:
    if isinstance(node, ast.If | ast.IfExp) and _names_one(node.test):
        guarded = True
    if isinstance(node, ast.Call) and not guarded:
        call = ast.unparse(node.func)
        before, _, last = call.rpartition(".")
        owners = _WRITERS.get(last)
        if owners is not None and (before in owners or ("" in owners and before)):
            found.append(UnguardedWrite(node.lineno, call))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _returns_early(node):
        guarded = True
    for child in ast.iter_child_nodes(node):
        _walk(child, found, guarded=guarded)


def _names_one(test: ast.AST) -> bool:
    """Whether a condition asks which worker this is."""
    return any(
        (isinstance(each, ast.Attribute) and each.attr in _MAIN) or (isinstance(each, ast.Name) and each.id in _MAIN)
        for each in ast.walk(test)
    )


def _returns_early(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function begins by `if not s.is_main: return`."""
    return any(
        isinstance(each, ast.If) and _names_one(each.test) and any(isinstance(x, ast.Return) for x in each.body)
        for each in function.body
    )
