"""Finds, in a script's text, the plain variables that carry something from step to step and steer the training.

A worker that joins begins with the script's first values of such variables: `iter_num = 0`, `best = 0`, or the index
of `enumerate(s.batches())`. A variable counts if

- the loop over batches (of a session, or of `elastic.ddp`'s loader) adds a constant to it, or counts by `enumerate`,
  or keeps the best of it
  (`if score > best: best = score`, `best = max(best, score)`), and
- it is used for more than messages: not only in `print`, in a logger's or progress bar's calls, or in an `if` around
  such.

Sums over a worker's own data (`total += loss.item()`) differ between workers by right and do not count.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from malletrain.script_check.script_scopes import Function, called_name, calls, first_line, parsed, scopes_of

#: Calls that change nothing in the training: plain names, and methods by their last name.
_MESSAGE_NAMES = frozenset({"print", "display", "tqdm", "len", "str", "int", "float", "round", "format", "repr"})
_MESSAGE_METHODS = frozenset(
    {
        "info", "debug", "warning", "error", "log", "write", "flush", "set_postfix", "set_postfix_str",
        "set_description", "update", "report", "display", "print", "add_scalar", "add_scalars", "add_text",
        "add_image", "add_histogram", "log_metric", "log_metrics", "log_value", "append", "item", "format", "join",
        "time", "perf_counter", "monotonic",
    }
)  # fmt: skip

_Loop = ast.For | ast.While | ast.AsyncFor


@dataclass(frozen=True, slots=True, order=True)
class CarriedName:
    """A variable, and where it is assigned: `iter_num`, or with dots, `self.best`."""

    name: str
    line: int


def carried_names(text: str) -> dict[int, frozenset[CarriedName]]:
    """The variables by the first line of the function that holds them; 0 is the module itself.

    Attributes (`self.best`) count for every function, because a loop in one changes them in another.

    Args:
        text: of the script. Text that is no Python has none.
    """
    tree = parsed(text)
    if tree is None:
        return {}
    loaders = frozenset(_loaders(tree))
    whole = frozenset(each for each in _of_statements(tree.body, loaders, deep=True) if "." in each.name)
    found = {}
    for scope in scopes_of(tree):
        loops = [node for node in _statements(scope.body) if isinstance(node, _Loop) and _trains(node, loaders)]
        outer = [loop for loop in loops if not any(loop is not other and _inside(loop, other) for other in loops)]
        names = frozenset(each for loop in outer for each in _of_statements([loop], loaders) if "." not in each.name)
        if names | whole:
            found[first_line(scope)] = names | whole
    return found


def _of_statements(body: list[ast.stmt], loaders: frozenset[str], *, deep: bool = False) -> Iterator[CarriedName]:
    """Variables that `body` carries and whose use in it steers training."""
    nodes = list(ast.walk(ast.Module(body, []))) if deep else list(_statements(body))
    carried: dict[str, int] = {}
    for node in nodes:
        for name in _carries(node, loaders):
            carried.setdefault(name, getattr(node, "lineno", 0))
    if carried:
        steering = _steering(body, deep=deep)
        yield from (CarriedName(name, line) for name, line in carried.items() if name in steering)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a scope, without those of functions and classes in it."""
    for node in body:
        yield node
        if isinstance(node, Function | ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, name, []))
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body)


def _trains(loop: _Loop, loaders: frozenset[str]) -> bool:
    """Whether batches are trained on in the loop: it calls `.batches()`; in a script with `elastic.ddp`, `.epochs()`
    or `.backward()`."""
    names = ("batches", "epochs", "backward") if loaders else ("batches",)
    return calls(loop, *names)


def _loaders(tree: ast.AST) -> Iterator[str]:
    """The names of the loaders that `elastic.ddp` returned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and called_name(node.value) == "ddp":
            for target in node.targets:
                if isinstance(target, ast.Tuple) and len(target.elts) == 2:
                    yield from _name(target.elts[1])


def _inside(node: ast.AST, other: ast.AST) -> bool:
    return any(each is node for each in ast.walk(other))


# --- what is carried ----------------------------------------------------------------------------------------------


def _carries(node: ast.AST, loaders: frozenset[str]) -> Iterator[str]:
    if isinstance(node, ast.AugAssign) and _is_constant(node.value):
        yield from _name(node.target)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        for name in _name(node.targets[0]):
            value = node.value
            if isinstance(value, ast.BinOp) and (_is_constant(value.right) or _is_constant(value.left)):
                if name in {*_name(value.left), *_name(value.right)}:
                    yield name
            elif _is_best(value) and any(name in _name(each) for each in getattr(value, "args", [])):
                yield name
    elif isinstance(node, ast.If):
        tested = set(Counter(_loads(node.test)) - Counter(_unset_options(node.test)))
        for inner in _statements(node.body):
            if isinstance(inner, ast.Assign):
                yield from (name for target in inner.targets for name in _name(target) if name in tested)
    elif isinstance(node, ast.For) and isinstance(node.target, ast.Tuple) and _enumerates_batches(node.iter, loaders):
        yield from _name(node.target.elts[0])


def _unset_options(test: ast.AST) -> Iterator[str]:
    """Attributes that a test asks whether they have been given: `options.rank == -1`, `not options.seed`.

    Each as often as it is asked: one that the test has besides is more than an option (`kept.best is None or
    score < kept.best`). What an object keeps of itself, `self.best is None`, is none."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.Is):
            asked = [node.left] if _is_constant(node.comparators[0]) or _is_none(node.comparators[0]) else []
        else:
            asked = [node.operand] if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else []
        for each in asked:
            yield from (name for name in _name(each) if "." in name and not name.startswith("self."))


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _enumerates_batches(node: ast.AST, loaders: frozenset[str]) -> bool:
    return called_name(node) == "enumerate" and any(
        (isinstance(each, ast.Attribute) and each.attr == "batches")
        or (isinstance(each, ast.Name) and each.id in loaders)
        for each in ast.walk(node)
    )


def _is_best(node: ast.AST) -> bool:
    return called_name(node) in ("max", "min")


def _is_constant(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _name(node: ast.AST) -> list[str]:
    """The name of a variable or of an attribute of one, `self.best`."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [f"{base}.{node.attr}" for base in _name(node.value)]
    return []


def _targets(node: ast.Assign) -> list[str]:
    return [name for target in node.targets for name in _name(target)]


# --- what steers --------------------------------------------------------------------------------------------------


def _steering(body: list[ast.stmt], *, deep: bool) -> set[str]:
    """Names that are read for more than messages and their own update."""
    found: set[str] = set()
    for node in body:
        found |= _reads(node, deep=deep)
    return found


def _reads(node: ast.AST, *, deep: bool) -> set[str]:
    if isinstance(node, Function | ast.ClassDef) and not deep:
        return set()
    if isinstance(node, ast.Expr) and _is_message(node.value):
        return set()
    if isinstance(node, ast.If) and all(_is_harmless(each) for each in [*node.body, *node.orelse]):
        # Only messages, and figures for them; unless the figure is what the next test compares with, and no message.
        if any(isinstance(each, ast.Expr) and _is_message(each.value) for each in node.body):
            return set()
        figures = {name for each in ast.walk(node) if isinstance(each, ast.Assign) for name in _targets(each)}
        return figures & set(_loads(node.test))
    if isinstance(node, ast.AugAssign):
        return _reads(node.value, deep=deep) - set(_name(node.target))
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        own = set(_name(node.targets[0]))
        if own and isinstance(node.value, ast.BinOp | ast.Constant | ast.Call):
            return _reads(node.value, deep=deep) - own
    found: set[str] = set()
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        found.update(_name(node))
    for child in ast.iter_child_nodes(node):
        found |= _reads(child, deep=deep)
    return found


def _loads(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name | ast.Attribute):
            yield from _name(each)


def _is_harmless(node: ast.stmt) -> bool:
    """Whether a statement only writes messages."""
    if isinstance(node, ast.Pass):
        return True
    if isinstance(node, ast.If):
        # (An end that an option alone decides, `if options.dry_run: break`, comes with the first message or never.)
        ends = isinstance(node.test, ast.Name | ast.Attribute) and isinstance(node.body[0], ast.Break | ast.Return)
        return (ends and not node.orelse) or all(_is_harmless(each) for each in [*node.body, *node.orelse])
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _is_message(node.value)
    if isinstance(node, ast.Assign):  # figures for a message: `speed = steps / passed`, `running = 0.0`
        return not any(isinstance(each, ast.Call) and not _is_message(each) for each in ast.walk(node.value)) and all(
            isinstance(target, ast.Name) for target in node.targets
        )
    return False


def _is_message(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id in _MESSAGE_NAMES
    return isinstance(node.func, ast.Attribute) and node.func.attr in _MESSAGE_METHODS
