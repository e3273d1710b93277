"""Finds autograd functions of the script whose `backward` is not linear in the gradients that it is given.

A derivative multiplies and sums gradients. One that divides them by their norm, or cuts them, gives other results for
a part of a batch than for all of it, as a hook does: gradients of a mean are the larger the fewer samples a worker
has.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from malletrain.elastic.guards.loss_graph import nodes_behind
from malletrain.elastic.guards.script_place import is_script

FUNCTION = "an autograd.Function whose backward() is not linear in the gradients of a worker's own samples"

#: Nodes of a loss's graph that are looked at, nearest first.
MAX_NODES = 16384

#: Methods and functions that are not linear.
_BENDS = frozenset(
    {"norm", "normalize", "clamp", "clamp_", "clamp_min", "clamp_max", "clip", "clip_", "sign", "sgn", "std", "var",
     "abs", "amax", "amin", "max", "min", "pow", "square", "sqrt", "rsqrt", "tanh", "sigmoid", "softmax", "relu",
     "vector_norm", "renorm", "nan_to_num"}
)  # fmt: skip


def gradient_functions(loss: Any) -> dict[str, str]:
    """What was found behind a loss, with the script's line; empty if there is none."""
    roots = [each.grad_fn for each in tree_leaves(loss) if isinstance(each, torch.Tensor)]
    for node in nodes_behind(roots, MAX_NODES):
        code = getattr(getattr(getattr(node, "_forward_cls", None), "backward", None), "__code__", None)
        if code is not None and is_script(code.co_filename) and _bends(code):
            return {FUNCTION: f"{Path(code.co_filename).name}:{code.co_firstlineno}"}
    return {}


@functools.lru_cache(maxsize=256)
def _bends(code: CodeType) -> bool:
    """Whether a `backward(ctx, *gradients)` calls what is not linear with one of its gradients."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError, ValueError):
        return False  # its text is not to be had
    function = tree.body[0]
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    given = [*function.args.args[1:], *([function.args.vararg] if function.args.vararg else [])]
    gradients = {each.arg for each in given}
    for node in ast.walk(function):  # in the order of the text, for statements of one block
        if isinstance(node, ast.Assign) and _uses(node.value, gradients):
            names = [each for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            gradients |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
    return any(
        isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) in _BENDS
        and _uses(node, gradients)
        for node in ast.walk(function)
    )


def _uses(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))
