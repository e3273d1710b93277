"""Finds the usual training loop in a script's text, a loop over epochs around one over a DataLoader with `backward()`
and the optimizer's step in it; and what a session of it is made of.

The loader may be made in the loop's own line. The loop over it may stand in a function or method that the loop over
epochs calls, and a class may hold loader, model and optimizer (`self.loader`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from malletrain.script_check.script_scopes import called_name, calls, calls_of


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """The parts of a training script.

    Attributes:
        epochs, batches: the two loops.
        loader, models, optimizers: expressions ahead of the loop over epochs.
        function, call: the function or method that has the loop over batches, and its call in the loop over epochs;
            None where that loop stands there itself.
    """

    epochs: ast.For
    batches: ast.For
    loader: str
    models: list[str]
    optimizers: list[str]
    function: ast.FunctionDef | None = None
    call: ast.Call | None = None

    @property
    def in_methods(self) -> bool:
        """Whether the two loops stand in methods of one class."""
        return self.function is not None and [each.arg for each in self.function.args.args[:1]] == ["self"]


def find_loop(tree: ast.Module) -> TrainingLoop | str:
    """The first loop that trains; a sentence on what to do by hand where it is not of the usual form."""
    arguments = _class_arguments(tree)
    for epochs in _innermost_first(tree):
        for inner in _inner_loops(tree, epochs):
            found = _loop_of(tree, arguments, epochs, *inner)
            if found is not None:
                return found
    for backward in calls_of(tree, "backward"):
        return (
            f"line {backward.lineno}: backward() is not in a loop over a DataLoader inside `for epoch in range(n)`: "
            "iterate over `s.epochs(n)` and `s.batches()`, so that the body of the loop is a step (s.steps_done "
            "counts them); or keep a loop for DDP by elastic.ddp (see docs/how-to/adapters.md)"
        )
    return "no backward() is found: is this the training script? (A framework's loop: docs/how-to/adapters.md)"


def assigned(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """The names, also of `self`, that are assigned what a call returns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            yield from ((dotted(target), node.value) for target in node.targets if dotted(target))


def dotted(node: ast.AST) -> str:
    """`name` or `self.name`; "" of anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return f"self.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def iterated(node: ast.expr) -> ast.expr:
    """What is iterated over inside `enumerate` or `tqdm`."""
    while isinstance(node, ast.Call) and called_name(node) in ("enumerate", "tqdm") and node.args:
        node = node.args[0]
    return node


def loops(node: ast.AST) -> Iterator[ast.For]:
    """The `for` loops in a node, also itself."""
    return (each for each in ast.walk(node) if isinstance(each, ast.For))


# --- loops --------------------------------------------------------------------------------------------------------


def _innermost_first(tree: ast.Module) -> list[ast.For]:
    """All loops, those in others before these: a loop over folds or stages is around that over epochs."""
    within = [inside for outer in loops(tree) for inside in loops(outer)]
    return sorted(loops(tree), key=lambda loop: -within.count(loop))


def _inner_loops(
    tree: ast.Module, epochs: ast.For
) -> Iterator[tuple[ast.For, ast.FunctionDef | None, ast.Call | None]]:
    """The loops with `backward()` inside another one, or in functions of the script that it calls by name."""
    for loop in loops(epochs):
        if loop is not epochs and calls(loop, "backward"):
            yield loop, None, None
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for call in (node for node in ast.walk(epochs) if isinstance(node, ast.Call)):
        function = functions.get(dotted(call.func).removeprefix("self."))
        for loop in [] if function is None else loops(function):
            if calls(loop, "backward"):
                yield loop, function, call
                break


def _loop_of(
    tree: ast.Module,
    arguments: Mapping[str, str],
    epochs: ast.For,
    batches: ast.For,
    function: ast.FunctionDef | None,
    call: ast.Call | None,
) -> TrainingLoop | str | None:
    """A loop with its loader, models and optimizers; None if it is over no loader, text where these are not clear."""
    bound = {} if function is None or call is None else _bound(function, call)
    source = iterated(batches.iter)
    name = bound.get(dotted(source), dotted(source))
    is_made_there = called_name(source) == "DataLoader"
    made = {each for each, maker in assigned(tree) if called_name(maker) == "DataLoader"}
    if not is_made_there and arguments.get(name, name) not in made and "loader" not in name:
        return None
    optimizers, models = _optimizers_and_models(tree, batches, bound, arguments)
    if not optimizers or not models:
        return (
            f"line {batches.lineno}: the loop trains, but which model and optimizer is not clear: write "
            "`s = elastic.Session(model, optimizer, loader)` yourself"
        )
    loader = ast.unparse(source) if is_made_there else name
    return TrainingLoop(epochs, batches, loader, models, optimizers, function, call)


# --- names --------------------------------------------------------------------------------------------------------


def _bound(function: ast.FunctionDef, call: ast.Call) -> dict[str, str]:
    """The caller's name for each parameter that is given by a plain name."""
    names = [each.arg for each in function.args.args if each.arg != "self"]
    arguments = dict(zip(names, call.args, strict=False))
    arguments |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    return {name: dotted(value) for name, value in arguments.items() if dotted(value)}


def _class_arguments(tree: ast.Module) -> dict[str, str]:
    """The variable that an attribute was made from: of `self.loader = loader` in `__init__`, what its caller gave."""
    found: dict[str, str] = {}
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for begin in (each for each in owner.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"):
            kept = {
                dotted(node.value): dotted(node.targets[0])
                for node in ast.walk(begin)
                if isinstance(node, ast.Assign) and dotted(node.targets[0]).startswith("self.")
            }
            for call in calls_of(tree, owner.name):
                found |= {kept[name]: value for name, value in _bound(begin, call).items() if name in kept}
    return found


def _optimizers_and_models(
    tree: ast.Module, batches: ast.For, bound: Mapping[str, str], arguments: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """The optimizers whose step is made in a loop, and the models of which they have parameters.

    Where a function of the script or another file makes the one optimizer, its model is the one that the loop calls,
    and whose parameters or mode are asked for somewhere, or which that function was given."""
    makers = dict(assigned(tree))
    used = _methods_used(batches)
    here = {name: bound.get(name, name) for name in used}
    made = {name: arguments.get(here[name], here[name]) for name in used}
    optimizers = [name for name in used if used[name] & {"step", "zero_grad"} and _parameters_in(makers, made[name])]
    if optimizers:
        # What a class was given is named as it keeps it.
        in_class = {value: name for name, value in arguments.items()} if optimizers[0].startswith("self.") else {}
        trained = dict.fromkeys(each for name in optimizers for each in _parameters_in(makers, made[name]))
        return [here[name] for name in optimizers], [in_class.get(each, each) for each in trained]
    optimizers = [name for name, methods in used.items() if {"step", "zero_grad"} <= methods]
    asked = {
        name
        for name, methods in _methods_used(tree).items()
        if methods & {"parameters", "named_parameters", "train", "state_dict"}
    }
    for name in optimizers:
        maker = makers.get(made[name])
        asked |= {dotted(each) for each in ast.walk(maker) if dotted(each)} if maker else set()
    models = [here[name] for name in used if used[name] & {"", "forward"} and {name, here[name], made[name]} & asked]
    return ([here[optimizers[0]]], models) if len(optimizers) == len(models) == 1 else ([], [])


def _methods_used(node: ast.AST) -> dict[str, set[str]]:
    """By name, in order: its methods that are called, and "" where it is called itself."""
    found: dict[str, set[str]] = {}
    for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
        if dotted(call.func):
            found.setdefault(dotted(call.func), set()).add("")
        if isinstance(call.func, ast.Attribute) and dotted(call.func.value):
            found.setdefault(dotted(call.func.value), set()).add(call.func.attr)
    return found


def _parameters_in(makers: Mapping[str, ast.Call], name: str) -> list[str]:
    """The models whose `parameters()` something was made with."""
    found = calls_of(makers[name], "parameters") if name in makers else ()
    names = (dotted(call.func.value) for call in found if isinstance(call.func, ast.Attribute))
    return [each for each in names if each]
