"""Where a script that trains otherwise at another size may depend on how samples lie on workers: rules over the text
of the lines that it has executed, each for one kind of habit. They are asked only once a difference is found, and say
where to look, not what is certain."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

from malletrain.script_check.script_scopes import called_name, calls, parsed

#: A worker draws these for itself.
_DRAWS = frozenset(
    {
        "rand",
        "randn",
        "randint",
        "randperm",
        "rand_like",
        "randn_like",
        "randint_like",
        "normal_",
        "uniform_",
        "bernoulli",
        "bernoulli_",
        "multinomial",
        "random",
        "choice",
        "choices",
        "sample",
        "rsample",
        "permutation",
        "uniform",
        "beta",
        "gumbel_softmax",
    }
)

_STATISTICS = frozenset({"std", "var", "cov", "corrcoef", "quantile", "median", "batch_norm", "var_mean", "std_mean"})
_ORDERED = frozenset({"topk", "sort", "argsort", "kthvalue", "cdist", "pdist", "roll", "amax", "amin", "outer"})
_ROOTS = frozenset({"sqrt", "log", "exp", "norm", "logsumexp", "reciprocal"})
_CLOCKS = frozenset({"time", "monotonic", "perf_counter", "time_ns", "now", "process_time"})
_MEANS = frozenset({"mean", "mse_loss", "cross_entropy", "nll_loss", "l1_loss", "smooth_l1_loss"})
_LOSSES = _MEANS | {"binary_cross_entropy", "binary_cross_entropy_with_logits", "BCEWithLogitsLoss", "NLLLoss"}
_COMPARED = ast.Gt | ast.Lt | ast.GtE | ast.LtE | ast.NotEq


@dataclass(frozen=True, slots=True)
class LikelyCause:
    """A line of the script, its text, and what in it may depend on the workers."""

    line: int
    text: str
    why: str


def likely_causes(text: str, lines: Collection[int], *, joined: bool) -> list[LikelyCause]:
    """The likely causes of a difference, the likeliest first; nothing where no rule knows one.

    Args:
        text: of the script.
        lines: that it has executed since its session was made.
        joined: whether what differs begins where workers join, and not with the same workers from the start.
    """
    tree = parsed(text)
    if tree is None:
        return []
    rows, masks = text.splitlines(), _masks(tree)
    found: list[tuple[int, str]] = []
    nodes = [node for node in ast.walk(tree) if getattr(node, "lineno", 0) in lines]
    rules = (*_OF_JOINING, *_OF_SIZE) if joined else (*_OF_SIZE, *_OF_JOINING)
    for why, rule in rules:
        found += [(node.lineno, why) for node in nodes if isinstance(node, ast.expr | ast.stmt) and rule(node, masks)]
    causes: dict[int, LikelyCause] = {}
    for line, why in found:
        if line in lines and line not in causes:
            causes[line] = LikelyCause(line, rows[line - 1].strip(), why)
    return list(causes.values())


# --- what a node is -----------------------------------------------------------------------------------------------


def _masks(tree: ast.Module) -> frozenset[str]:
    """Names that are made by comparing: which rows or elements count."""
    return frozenset(
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Compare)
        if isinstance(node.value.ops[0], _COMPARED)
        for target in node.targets
        if isinstance(target, ast.Name)
    )


def _called(*names: str) -> Callable[[ast.AST, frozenset[str]], bool]:
    """The rule that one of these is called."""
    return lambda node, _: called_name(node) in names


def _own_count(node: ast.AST, masks: frozenset[str]) -> bool:
    """A mean over what a mask leaves, over targets that count, or by class weights."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Compare) or (isinstance(node.slice, ast.Name) and node.slice.id in masks)
    if not isinstance(node, ast.Call):
        return False
    weighted = {"weight", "ignore_index", "pos_weight"} & {each.arg or "" for each in node.keywords}
    name = called_name(node)
    if name in _LOSSES or name.lower().replace("loss", "_loss").replace("__", "_") in _LOSSES:
        return bool(weighted) or (name in ("cross_entropy", "nll_loss") and len(node.args) > 2)
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return name in ("masked_fill", "masked_select") or (name in ("div", "sum") and bool(names & masks))


def _own_sum(node: ast.AST, _: frozenset[str]) -> bool:
    """A sum over samples, or one that is divided by a number."""
    if not isinstance(node, ast.Call | ast.BinOp):
        return False
    if isinstance(node, ast.BinOp):
        factors = [node.left, node.right] + (
            [node.left.left, node.left.right] if isinstance(node.left, ast.BinOp) else []
        )
        return isinstance(node.op, ast.Mult | ast.Div) and any(called_name(each) == "len" for each in factors)
    sums = any(
        each.arg == "reduction" and isinstance(each.value, ast.Constant) and each.value.value == "sum"
        for each in node.keywords
    )
    of_each = any(isinstance(each, ast.Constant) and each.value == "none" for each in ast.walk(node.func))
    return sums or (called_name(node) == "sum" and of_each)


def _statistic(node: ast.AST, _: frozenset[str]) -> bool:
    """A statistic over the rows."""
    if called_name(node) in _STATISTICS:
        return True
    if called_name(node) not in ("mean", "sum", "softmax", "normalize") or not isinstance(node, ast.Call):
        return False
    over = [*node.args, *(each.value for each in node.keywords if each.arg in ("dim", "axis"))]
    return any(isinstance(each, ast.Constant) and each.value == 0 and each.value is not False for each in over[:2])


def _compares(node: ast.AST, _: frozenset[str]) -> bool:
    """Rows that are compared with, or chosen among, each other."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        right = node.right
        while isinstance(right, ast.Call | ast.BinOp):
            right = right.func if isinstance(right, ast.Call) else right.left
        return isinstance(right, ast.Attribute) and right.attr in ("T", "mT", "t", "transpose")
    return called_name(node) in _ORDERED


def _root(node: ast.AST, _: frozenset[str]) -> bool:
    """A function of a mean: the mean of its parts is another one."""
    of_loss = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called_name(node.func.value) in _MEANS
    )
    power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and called_name(node.left) in _MEANS
    return power or (of_loss and called_name(node) in _ROOTS)


def _item(node: ast.AST, _: frozenset[str]) -> bool:
    """A number of this worker's samples that decides further on: divides, multiplies or is compared."""
    if not isinstance(node, ast.BinOp | ast.Compare):
        return False
    return any(called_name(each) == "item" for each in ast.walk(node))


def _hook(node: ast.AST, _: frozenset[str]) -> bool:
    return called_name(node).startswith("register_") and "hook" in called_name(node)


def _keeps(node: ast.AST, _: frozenset[str]) -> bool:
    """A value that follows from its own last one, and is no plain count."""
    if called_name(node) in ("lerp_", "index_add_", "index_copy_", "extend", "appendleft"):
        return True
    if isinstance(node, ast.AugAssign):
        return not isinstance(node.value, ast.Constant)
    if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Name | ast.Constant):
        return False
    target = ast.unparse(node.targets[0])
    return any(
        isinstance(each, ast.Name | ast.Attribute | ast.Subscript) and ast.unparse(each) == target
        for each in ast.walk(node.value)
    )


def _counts(node: ast.AST, _: frozenset[str]) -> bool:
    """A count, the index of a batch, or the best so far."""
    if isinstance(node, ast.For):
        return called_name(node.iter) == "enumerate" and calls(node.iter, "batches")
    if isinstance(node, ast.If):
        tested = {ast.unparse(each) for each in ast.walk(node.test) if isinstance(each, ast.Name | ast.Attribute)}
        return any(
            ast.unparse(target) in tested
            for each in node.body
            if isinstance(each, ast.Assign)
            for target in each.targets
        )
    return isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant)


def _changes_data(node: ast.AST, _: frozenset[str]) -> bool:
    """The data set, its labels, or its order."""
    targets = (
        node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    )
    of_data = any(
        isinstance(each, ast.Attribute | ast.Subscript) and "data" in ast.unparse(each).lower() for each in targets
    )
    arguments = node.args if isinstance(node, ast.Call) and called_name(node) == "shuffle" else []
    return of_data or any("data" in ast.unparse(each).lower() for each in arguments)


def _clock(node: ast.AST, _: frozenset[str]) -> bool:
    return called_name(node) in _CLOCKS and isinstance(node, ast.Call) and not node.args


_Rule = tuple[str, Callable[[ast.AST, frozenset[str]], bool]]

#: What depends on the part of a batch that a worker has.
_OF_SIZE: tuple[_Rule, ...] = (
    ("rows are compared with those of this worker's part of the batch alone: s.gather() has all", _compares),
    ("a mean over this worker's own count: s.step(weight=...) says over how much", _own_count),
    ("a root or another function of a mean: the mean over workers is another one", _root),
    ("a statistic over this worker's part of the batch: s.gather(), or virtual_shards=N", _statistic),
    ('a sum over samples, or a mean with a factor: the session takes means, or reduction="sum"', _own_sum),
    ("an own number of this worker's samples decides: s.agree() makes it everyone's", _item),
    ("a hook changes gradients before they are summed over workers: do it after backward()", _hook),
    ("gradients of this worker's samples alone: see step.inner_loop()", _called("grad")),
    ("other data, which each worker reads by itself", _called("next")),
    ("random numbers, which depend on the worker: draw them in the data set's __getitem__", _called(*_DRAWS)),
)

#: What a worker that joins has missed.
_OF_JOINING: tuple[_Rule, ...] = (
    ("the data set is changed while training goes on: by s.epoch, or in Options(when_joining=...)", _changes_data),
    ("an own generator: a worker that joins begins it anew; s.state keeps it", _called(*_DRAWS)),
    ("what is kept from step to step is this worker's own: s.state, or s.track(...)", _keeps),
    (
        "made anew between steps: a worker that joins has missed it; s.track(...)",
        _called("load_state_dict", "deepcopy", "update_parameters"),
    ),
    ("what is read from one step to the next begins anew on a worker that joins", _called("next")),
    ("a worker that joins begins this anew: s.state keeps it, and s.steps_done counts steps", _counts),
    ("a clock decides: use s.steps_done or s.epoch", _clock),
)


# --- what the short epochs of a check do not meet -----------------------------------------------------------------


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
