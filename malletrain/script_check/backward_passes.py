"""Which `backward()` calls in a loop's body are parts of one loss, and which have an optimizer step of their own."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.script_check.script_scopes import called_name


@dataclass(frozen=True, slots=True)
class Passes:
    """The `backward()` calls of a step.

    Attributes:
        count: how many have optimizers' steps of their own: N of `s.step(backwards=N)`.
        held: those that another one of the same pass follows: each belongs into `with step.accumulate():`.
    """

    count: int
    held: tuple[ast.stmt, ...]


def backward_passes(body: Sequence[ast.stmt], optimizers: Sequence[str]) -> Passes | None:
    """Tell the passes of a loop's body apart.

    Args:
        optimizers: names whose `step()` counts; so does that of any name that is called like an optimizer.

    Returns:
        None where it is not clear: a `backward()` or a step is not a statement of the body itself (an `if` is around
        it, or a function has it), or steps do not follow.
    """
    groups: list[list[ast.stmt]] = []
    stepped = True
    for statement in body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and _is_backward(call):
            if stepped:
                groups.append([])
            groups[-1].append(statement)
            stepped = False
        elif isinstance(call, ast.Call) and _is_step(call, optimizers):
            if not groups:
                return None
            stepped = True
        elif any(
            isinstance(node, ast.Call) and (_is_backward(node) or _is_step(node, optimizers))
            for node in ast.walk(statement)
        ):
            return None
    if not groups or not stepped:
        return None
    return Passes(len(groups), tuple(each for group in groups for each in group[:-1]))


def sums_over_samples(tree: ast.AST, body: Sequence[ast.stmt]) -> bool:
    """Whether every loss of a loop's body is certainly a sum over samples: made in it by one call with
    `reduction="sum"`, or of what was made with that."""
    assigned = _assigned_once(tree)
    losses = [
        call.func.value
        for statement in body
        for call in ast.walk(statement)
        if isinstance(call, ast.Call) and _is_backward(call) and isinstance(call.func, ast.Attribute)
    ]
    return bool(losses) and all(_is_sum(loss, assigned) for loss in losses)


def _is_sum(loss: ast.expr, assigned: dict[str, ast.expr]) -> bool:
    made = assigned.get(loss.id) if isinstance(loss, ast.Name) else loss
    if not isinstance(made, ast.Call):
        return False
    by = assigned.get(ast.unparse(made.func))
    return any(
        keyword.arg == "reduction" and isinstance(keyword.value, ast.Constant) and keyword.value.value == "sum"
        for call in (made, by)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
    )


def _assigned_once(tree: ast.AST) -> dict[str, ast.expr]:
    """The values of names, also with dots, that are assigned in one place alone."""
    found: dict[str, ast.expr] = {}
    several = set[str]()
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AugAssign) else targets
        for target in targets:
            name = ast.unparse(target)
            several |= {name} & found.keys()
            found[name] = node.value  # type: ignore[attr-defined]
    return {name: value for name, value in found.items() if name not in several}


def _is_backward(call: ast.Call) -> bool:
    return called_name(call) == "backward" and isinstance(call.func, ast.Attribute)


def _is_step(call: ast.Call, optimizers: Sequence[str]) -> bool:
    if called_name(call) != "step" or not isinstance(call.func, ast.Attribute):
        return False
    names = [ast.unparse(each) for each in (call.func.value, *call.args)]  # (`scaler.step(optimizer)`)
    return any(name in optimizers or "opt" in name.lower() for name in names)
