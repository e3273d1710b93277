"""Finds, in a script's text, what a worker alone has and its loss is made with.

- A number read from this worker's part of the batch (`ratio = a.item() / b.item()`) that weighs or divides a loss: a
  static run has another one, of the whole batch. `s.agree(a.item())` gives all workers the same.
- The number of samples of a worker, which its mean or a penalty is multiplied by (`loss * len(x) / 64`), or which a
  learning rate follows (`lr * len(x) / 64`, `seen += len(x)`).
- The number of workers, by which a loss, gradients or a learning rate are multiplied or divided, as in a script that
  sums gradients itself, or which the length of a schedule follows.
- A collection that the loop fills and the loss is computed from (a replay buffer): workers have different ones, and a
  worker that joins begins with an empty one.

What is only printed, or cleared in each step, does not count. Functions of the same file are followed where a loss
passes through them; what lies in other files is not found.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from malletrain.script_check.carried_names import renewed_names
from malletrain.script_check.script_scopes import Function, Scope, first_line, parsed, scopes_of

NUMBER = "a number read from a worker's part of the batch, with which its loss is weighed or divided"
COLLECTION = "a collection that a worker fills by itself (a replay buffer), and with which no newcomer begins"

LENGTH = "the number of a worker's samples, by which its mean is multiplied"
SIZE = "the number of workers, by which its mean is multiplied"
SAMPLES_RATE = "a learning rate that follows the number of a worker's samples"

REMEDIES = {
    SIZE: "Gradients are means over the batch of all workers already: leave it out",
    LENGTH: 'The session weighs means by samples itself: leave it out, or say Session(..., reduction="sum"); the '
    "weight of a penalty follows from s.batch_size",
    SAMPLES_RATE: "Those of all workers are s.samples_done and s.batch_size",
    NUMBER: "The number of all workers: s.agree(...) after the block of the step before; or virtual_shards=N",
    COLLECTION: "Keep what is learned from in the data set, or generate it there by index",
}

#: What is wrong at every number of workers but one, with the cure.
DIVIDED_LOSS = "the loss is divided by the number of workers"
SCALED_GRADIENTS = "gradients are multiplied or divided by the number of workers"
SCALED_RATE = "the learning rate follows the number of workers, and the batch does not"

SCALED_SCHEDULE = "the length of a schedule follows the number of workers, and the batch does not"

#: Errors that are none where the batch grows with the workers.
OF_FIXED_BATCH = frozenset({SCALED_RATE, SCALED_SCHEDULE})

ERRORS = {
    DIVIDED_LOSS: "gradients are means over the batch of all workers already: leave it out",
    SCALED_GRADIENTS: "after backward() they are means over the batch of all workers: leave it out",
    SCALED_RATE: "batch_size is of all workers together: leave it out, or let the batch grow with the workers, "
    "Session(..., batch_size=elastic.PerWorker(n, limit))",
    SCALED_SCHEDULE: "an epoch has as many steps at every number of workers: len(dataset) / batch_size",
}

_Loop = ast.For | ast.While | ast.AsyncFor

_READS = frozenset({"item", "tolist"})
_AGREES = frozenset({"agree", "all_reduce", "evaluate"})
_GROWS = frozenset({"append", "appendleft", "extend", "add", "push", "store", "put", "remember", "insert"})
_ARITHMETIC_CALLS = frozenset(
    {"sum", "min", "max", "abs", "scale", "stack", "tensor", "mean", "clamp", "clamp_min", "clamp_max", "detach",
     "exp", "log", "sqrt", "pow", "float", "double", "to"}
)  # fmt: skip
#: Names of sessions in functions that are given one, and calls that return the number of workers.
_SESSIONS = frozenset({"s", "session", "self.s", "self.session"})
_SIZES = frozenset({"get_world_size"})
#: Variables of the environment with the number of workers.
_SIZE_VARIABLES = frozenset(
    {"WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "OMPI_COMM_WORLD_SIZE"}
)
#: Calls that leave a number what it is.
_NUMBERS = frozenset({"int", "float", "max"})
_RATES = frozenset({"lr", "learning_rate", "max_lr", "base_lr"})
#: Parameters of functions that are no part of a batch, by the end of their names.
_OF_ALL = re.compile(r"(loader|sets?|data|batches|optimizer|model)$")

#: How often a loss is followed from a function to another.
MAX_CALLS = 4


def loss_sources(text: str) -> dict[int, dict[str, int]]:
    """What a worker alone has and a loss is made with, with its first line, by the first line of the function that
    calls `backward`; 0 is the module itself.

    Args:
        text: of the script. Text that is no Python has none.
    """
    tree = parsed(text)
    if tree is None:
        return {}
    return _File(tree, renewed_names(text)).find()


class _File:
    def __init__(self, tree: ast.Module, renewed: frozenset[str]) -> None:
        self._renewed = renewed
        self._scopes = scopes_of(tree)
        self._nodes = {scope: list(_own(scope.body)) for scope in self._scopes}
        named = [scope for scope in self._scopes if isinstance(scope, Function)]
        names = Counter(scope.name for scope in named)
        self._functions = {scope.name: scope for scope in named if names[scope.name] == 1}
        self._emptied = self._emptied_anywhere()
        self._sessions = _SESSIONS | {
            _dotted(target)
            for nodes in self._nodes.values()
            for node in nodes
            for target, value in _assignments(node)
            if isinstance(value, ast.Call) and _method(value) == "Session"
        }
        self._own = {scope: self._own_names(scope) for scope in self._scopes}
        self._size_names: set[str] = set()
        for nodes in self._nodes.values():
            pairs = [pair for node in nodes for pair in _assignments(node)]
            self._size_names |= {_dotted(target) for target, value in pairs if self._is_size(value)} - {""}
        self._found: dict[str, int] = {}

    def find(self) -> dict[int, dict[str, int]]:
        found = {}
        grown = list(self._grown())
        for scope in self._scopes:
            self._look_at_rates(scope)
        rates = self._found
        for scope in self._scopes:
            self._found = dict(rates) if _has_backward(self._nodes[scope]) else {}
            for loss in self._losses(scope):
                self._follow(scope, [loss], self._weights(scope), MAX_CALLS)
                needed, own = self._needed(scope, loss), self._made(scope)
                for other, name, line in grown:
                    if name in needed and (other is scope or name not in own):
                        self._note(COLLECTION, line)
            if _has_backward(self._nodes[scope]):
                self._look_at_scaling(scope)
            if self._found:
                found[first_line(scope)] = self._found
        return found

    def _made(self, scope: Scope) -> set[str]:
        """The variables that are assigned in a scope, and its parameters."""
        made = {
            _dotted(each)
            for node in self._nodes[scope]
            if not isinstance(node, ast.Expr)
            for each, _ in _assignments(node)
        }
        if isinstance(scope, Function):
            made |= {each.arg for each in [*scope.args.args, *scope.args.kwonlyargs] if each.arg != "self"}
        return made

    def _note(self, what: str, line: int) -> None:
        self._found[what] = min(line, self._found.get(what, line))

    def _losses(self, scope: Scope) -> Iterator[ast.expr]:
        """What `backward` is called on, or with."""
        for node in self._nodes[scope]:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
                yield from node.args if _dotted(node.func.value) in ("accelerator", "fabric") else [node.func.value]

    def _weights(self, scope: Scope) -> frozenset[str]:
        """Names that the session has been given as a step's weight."""
        calls = [node for node in self._nodes[scope] if isinstance(node, ast.Call) and _method(node) == "step"]
        given = [*(each.value for call in calls for each in call.keywords if each.arg == "weight")]
        given += [each for call in calls for each in call.args]
        return frozenset(name for each in given for name in _names(each))

    # --- the number of workers --------------------------------------------------------------------------------

    def _is_size(self, node: ast.AST) -> bool:
        """Whether an expression is the number of workers."""
        if isinstance(node, ast.Call):
            name = _method(node)
            return name in _SIZES or _is_variable(node) or (name in _NUMBERS and any(map(self._is_size, node.args)))
        name = _dotted(node)
        owner, _, last = name.rpartition(".")
        of_session = last == "size" and owner in self._sessions
        return of_session or last == "world_size" or name in self._size_names or _is_variable(node)

    def _sizes(self, node: ast.expr, *, divides: bool) -> Iterator[bool]:
        """Numbers of workers among the factors of an expression: whether it is divided by each."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
            yield from self._sizes(node.left, divides=divides)
            yield from self._sizes(node.right, divides=divides != isinstance(node.op, ast.Div))
        elif isinstance(node, ast.UnaryOp):
            yield from self._sizes(node.operand, divides=divides)
        elif self._is_size(node):
            yield divides

    def _look_at_scaling(self, scope: Scope) -> None:
        """Find gradients and learning rates that are scaled by the number of workers."""
        for node in self._nodes[scope]:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                if (
                    node.func.attr in ("div_", "mul_")
                    and _is_gradient(node.func.value)
                    and self._scales(node.args[0])
                ):
                    self._note(SCALED_GRADIENTS, node.lineno)
            elif isinstance(node, ast.Assign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if not self._scales(node.value):
                    continue
                if any(_is_gradient(target) for target in targets):
                    self._note(SCALED_GRADIENTS, node.lineno)
                elif any(_is_rate(target) for target in targets):
                    self._note(SCALED_RATE, node.lineno)

    def _scales(self, node: ast.expr) -> bool:
        return any(True for _ in self._sizes(node, divides=False))

    # --- learning rates ---------------------------------------------------------------------------------------

    def _look_at_rates(self, scope: Scope) -> None:
        """Find learning rates and schedules that follow the number of workers, or of a worker's samples."""
        calls = [node for node in self._nodes[scope] if isinstance(node, ast.Call)]
        for node in self._nodes[scope]:
            if isinstance(node, ast.Assign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(map(_is_rate, targets)) and self._leads_to(scope, node.value, self._counts_samples):
                    self._note(SAMPLES_RATE, node.lineno)
        for call in [] if self._grows_with_workers() else calls:
            rates = [each.value for each in call.keywords if each.arg in _RATES]
            if any(self._leads_to(scope, each, self._has_size) for each in rates):
                self._note(SCALED_RATE, call.lineno)
            elif _is_schedule(call):
                given = [*call.args, *(each.value for each in call.keywords)]
                if any(self._leads_to(scope, each, self._has_size) for each in given):
                    self._note(SCALED_SCHEDULE, call.lineno)

    def _grows_with_workers(self) -> bool:
        """Whether a batch is said to follow the number of workers."""
        return any(
            each.arg == "batch_size" and self._leads_to(scope, each.value, self._has_size)
            for scope in self._scopes
            for node in self._nodes[scope]
            if isinstance(node, ast.Call) and _method(node) == "Session"
            for each in node.keywords
        )

    def _has_size(self, scope: Scope, node: ast.AST) -> bool:
        return self._is_size(node)

    def _counts_samples(self, scope: Scope, node: ast.AST) -> bool:
        """Whether an expression is a number of this worker's samples, or of values that a test leaves of them."""
        return isinstance(node, ast.expr) and (self._is_own_length(scope, node) or _counts_tests(node))

    def _leads_to(
        self,
        scope: Scope,
        value: ast.AST,
        found: Callable[[Scope, ast.AST], bool],
        seen: set[tuple[int, str]] | None = None,
    ) -> bool:
        """Whether something is in an expression, in what was assigned to its names, or in what a function is given
        for its parameters."""
        seen = set() if seen is None else seen
        if found(scope, value):
            return True
        if isinstance(value, ast.Call) and _method(value) in _AGREES:
            return False
        behind = [(scope, each) for each in ast.iter_child_nodes(value)]
        name = _dotted(value)
        if name and (id(scope), name) not in seen:
            seen.add((id(scope), name))
            # (A switch, `distributed = world_size > 1`, is no number.)
            given = [assigned for assigned, _ in self._assigned(scope, name)]
            behind += [(scope, each) for each in given if not isinstance(each, ast.Compare)]
            behind += self._arguments(scope, name)
        return any(self._leads_to(other, each, found, seen) for other, each in behind)

    def _arguments(self, scope: Scope, name: str) -> Iterator[tuple[Scope, ast.expr]]:
        """What the functions of this file give for a parameter."""
        if not isinstance(scope, Function) or self._functions.get(scope.name) is not scope:
            return
        names = [each.arg for each in scope.args.args if each.arg != "self"]
        if name not in names:
            return
        for other, nodes in self._nodes.items():
            for node in nodes:
                if isinstance(node, ast.Call) and _method(node) == scope.name:
                    given = dict(zip(names, node.args, strict=False)) | {
                        str(each.arg): each.value for each in node.keywords
                    }
                    if name in given:
                        yield other, given[name]

    # --- lengths ----------------------------------------------------------------------------------------------

    def _own_names(self, scope: Scope) -> set[str]:
        """Variables that may hold a worker's part of the batch: a function's, and those of the loop over batches."""
        if isinstance(scope, Function) and not any(
            isinstance(each, _Loop) and _has_batches(each) for each in scope.body
        ):
            return {name for name in self._made(scope) if not _OF_ALL.search(name)}
        loops = [node for node in self._nodes[scope] if isinstance(node, _Loop) and _has_batches(node)]
        pairs = [pair for loop in loops for node in [loop, *_own(loop.body)] for pair in _assignments(node)]
        return {_dotted(target) for target, _ in pairs}

    def _is_own_length(self, scope: Scope, node: ast.expr) -> bool:
        if not _is_length(node):
            return False
        measured = node.value.value if isinstance(node, ast.Subscript) else None  # type: ignore[attr-defined]
        if isinstance(node, ast.Call):
            measured = node.args[0] if _method(node) == "len" and node.args else getattr(node.func, "value", None)
        return bool(set(_names(measured)) & self._own[scope]) if measured is not None else False

    def _lengths(self, scope: Scope, node: ast.expr, *, divides: bool) -> Iterator[bool]:
        """Sizes of a worker's tensors that an expression is multiplied by, or divided by: whether it is divided."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
            yield from self._lengths(scope, node.left, divides=divides)
            yield from self._lengths(scope, node.right, divides=divides != isinstance(node.op, ast.Div))
        elif isinstance(node, ast.UnaryOp):
            yield from self._lengths(scope, node.operand, divides=divides)
        elif self._is_own_length(scope, node):
            yield divides

    # --- numbers ----------------------------------------------------------------------------------------------

    def _follow(self, scope: Scope, losses: list[ast.expr], known: frozenset[str], calls: int) -> None:
        """Look at the operands of a loss, at what was assigned to them, and at the functions that return them."""
        queue, seen = [(each, False) for each in losses], set[str]()
        while queue:
            loss, divides = queue.pop()
            for term in _terms(loss):
                lengths = list(self._lengths(scope, term, divides=divides))
                if lengths and not any(lengths):
                    self._note(LENGTH, term.lineno)
            sizes = list(self._sizes(loss, divides=False))
            if any(sizes):
                self._note(DIVIDED_LOSS, loss.lineno)
            elif sizes:
                self._note(SIZE, loss.lineno)
            for operand, inverse in _operands(loss, divides=divides):
                name = _dotted(operand)
                if _reads_number(operand):
                    self._note(NUMBER, operand.lineno)
                elif isinstance(operand, ast.Call) and calls and _method(operand) in self._functions:
                    called = self._functions[_method(operand)]
                    returned = [each.value for each in self._nodes[called] if isinstance(each, ast.Return)]
                    self._follow(called, [each for each in returned if each is not None], frozenset(), calls - 1)
                elif name and name not in seen and name not in known:
                    seen.add(name)
                    for value, test in self._assigned(scope, name):
                        if test is not None and (_reads_number(test) or _limits(test, name)):
                            self._note(NUMBER, test.lineno)
                        elif _reads_number(value) or (name in self._renewed and _is_detached(value)):
                            self._note(NUMBER, value.lineno)
                        else:
                            queue.append((value, inverse))

    def _assigned(self, scope: Scope, name: str) -> Iterator[tuple[ast.expr, ast.expr | None]]:
        """Values of a variable, each with the condition of the `if` around it.

        Attributes may be assigned anywhere.
        """
        for each in self._scopes if "." in name else [scope]:
            tests = {
                inner: node.test
                for node in self._nodes[each]
                if isinstance(node, ast.If)
                for inner in _own([*node.body, *node.orelse])
            }
            for node in self._nodes[each]:
                for target, value in _assignments(node):
                    if _dotted(target) == name:
                        yield value, tests.get(node)

    # --- collections ------------------------------------------------------------------------------------------

    def _needed(self, scope: Scope, loss: ast.expr) -> set[str]:
        """The variables of which a loss is computed in this scope."""
        assigned = [pair for node in self._nodes[scope] for pair in _assignments(node)]
        needed: set[str] = set()
        new = set(_names(loss))
        while new:
            needed |= new
            new = {
                name
                for target, value in assigned
                if needed & set(_names(target))
                for name in _names(value)
                if name not in needed
            }
        return needed

    def _grown(self) -> Iterator[tuple[Scope, str, int]]:
        """Collections that outlive the step that adds to them."""
        for scope in self._scopes:
            loops = [node for node in self._nodes[scope] if isinstance(node, _Loop) and _has_batches(node)]
            inner = [loop for loop in loops if not any(loop is not other and _inside(other, loop) for other in loops)]
            bodies = [list(_own(loop.body)) for loop in inner] or [
                [] if isinstance(scope, ast.Module) else self._nodes[scope]
            ]
            for body in bodies:
                plain = [node for node in body if not isinstance(node, ast.Expr)]
                made = {_dotted(target) for node in plain for target, _ in _assignments(node)}
                if not inner:
                    made |= self._made(scope)
                for node in body:
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                        name = _dotted(node.func.value)
                        if node.func.attr in _GROWS and name and name not in made | self._emptied:
                            yield scope, name, node.lineno

    def _emptied_anywhere(self) -> set[str]:
        """What is emptied, or made anew outside `__init__`, in any function: attributes and globals."""
        found: set[str] = set()
        for scope in self._scopes:
            found |= set(_emptied(self._nodes[scope]))
            if isinstance(scope, Function) and scope.name != "__init__":
                made = {_dotted(target) for node in self._nodes[scope] for target, _ in _assignments(node)}
                found |= {name for name in made if "." in name}
        return found


def _own(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of a scope, without those of functions and classes in it."""
    for statement in body:
        if isinstance(statement, Function | ast.ClassDef):
            continue
        queue: list[ast.AST] = [statement]
        while queue:
            node = queue.pop()
            yield node
            queue += [each for each in ast.iter_child_nodes(node) if not isinstance(each, Function | ast.ClassDef)]


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    """What an expression is the sum of."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from _terms(node.left)
        yield from _terms(node.right)
    else:
        yield node


def _operands(node: ast.expr, *, divides: bool) -> Iterator[tuple[ast.expr, bool]]:
    """What an expression is made of by arithmetic; and whether it is divided by it."""
    parts: Iterable[ast.expr]
    if isinstance(node, ast.BinOp):
        yield from _operands(node.left, divides=divides)
        yield from _operands(node.right, divides=divides != isinstance(node.op, ast.Div))
        return
    if isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, ast.IfExp):
        parts = [node.test, node.body, node.orelse]
    elif isinstance(node, ast.List | ast.Tuple):
        parts = node.elts
    elif isinstance(node, ast.GeneratorExp | ast.ListComp):
        iterated = [each.iter for each in node.generators]
        parts = [node.elt, *(part for each in iterated for part in _iterated(each))]
    elif isinstance(node, ast.Subscript):
        parts = [node.value]
    elif isinstance(node, ast.Call) and _method(node) in _ARITHMETIC_CALLS:
        parts = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
    else:
        yield node, divides
        return
    for part in parts:
        yield from _operands(part, divides=divides)


def _iterated(node: ast.expr) -> list[ast.expr]:
    """What is iterated over, alone or several together."""
    return node.args if isinstance(node, ast.Call) and _method(node) in ("zip", "enumerate") else [node]


def _is_length(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        first = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        return _method(node) in ("len", "numel") or (_method(node) == "size" and first)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        return isinstance(node.slice, ast.Constant) and node.slice.value == 0
    return False


def _is_variable(node: ast.AST) -> bool:
    """Whether the number of workers is read from the environment."""
    if isinstance(node, ast.Subscript):
        key: ast.AST | None = node.slice
    else:
        key = (
            node.args[0] if isinstance(node, ast.Call) and _method(node) in ("get", "getenv") and node.args else None
        )
    return isinstance(key, ast.Constant) and key.value in _SIZE_VARIABLES


def _is_schedule(call: ast.Call) -> bool:
    """Whether a call makes a learning-rate schedule, by its name."""
    return _method(call).endswith(("LR", "Scheduler")) or "schedule" in _method(call)


def _counts_tests(node: ast.expr) -> bool:
    """`(y >= 0).sum()`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sum"
        and isinstance(node.func.value, ast.Compare)
    )


def _reads_number(node: ast.AST) -> bool:
    """Whether a number is read from a tensor in an expression, and not agreed on by the workers."""
    if isinstance(node, ast.Call):
        if _method(node) in _AGREES:
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr in _READS and not node.args:
            return True
        if (
            isinstance(node.func, ast.Name)
            and node.func.id == "float"
            and node.args
            and _looks_like_loss(node.args[0])
        ):
            return True
    return any(_reads_number(each) for each in ast.iter_child_nodes(node))


def _limits(test: ast.AST, name: str) -> bool:
    """Whether a loss decides about itself: `if loss > 1: loss = 2 * loss`."""
    last = name.rpartition(".")[2]
    return (last == "loss" or last.endswith("_loss")) and any(
        isinstance(node, ast.Compare)
        and all(isinstance(each, ast.Gt | ast.GtE | ast.Lt | ast.LtE) for each in node.ops)
        and name in (_dotted(node.left), *map(_dotted, node.comparators))
        for node in ast.walk(test)
    )


def _has_backward(nodes: list[ast.AST]) -> bool:
    return any(isinstance(node, ast.Call) and _method(node) == "backward" for node in nodes)


def _is_gradient(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and (
        node.attr == "grad" or (node.attr == "data" and _is_gradient(node.value))
    )


def _is_rate(node: ast.AST) -> bool:
    """Whether a learning rate of an optimizer's group: `group["lr"]`."""
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == "lr"


def _is_detached(node: ast.AST) -> bool:
    """Whether a running mean in a tensor is made of something of the step."""
    return any(isinstance(each, ast.Call) and _method(each) == "detach" for each in ast.walk(node))


def _looks_like_loss(node: ast.expr) -> bool:
    return any("loss" in name.lower() for name in _names(node))


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets and values of a statement; a call that adds to a collection assigns to it."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            if both and len(target.elts) == len(node.value.elts):  # type: ignore[attr-defined]
                yield from zip(target.elts, node.value.elts, strict=True)  # type: ignore[attr-defined]
            elif isinstance(target, ast.Tuple):
                yield from ((each, node.value) for each in target.elts)
            else:
                yield target.value if isinstance(target, ast.Subscript) else target, node.value
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.AnnAssign) and node.value is not None):
        target = node.target
        yield target.value if isinstance(target, ast.Subscript) else target, node.value  # type: ignore[misc]
    elif isinstance(node, ast.NamedExpr):
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.comprehension):
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        yield from ((each, node.iter) for each in targets)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        func = node.value.func
        if isinstance(func, ast.Attribute) and func.attr == "append" and node.value.args:
            yield func.value, node.value.args[0]


def _emptied(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "clear":
            yield _dotted(node.func.value)
        elif isinstance(node, ast.Delete):
            yield from (_dotted(each.value) for each in node.targets if isinstance(each, ast.Subscript))


def _has_batches(loop: _Loop) -> bool:
    return any(isinstance(node, ast.Call) and _method(node) in ("batches", "backward") for node in ast.walk(loop))


def _inside(node: ast.AST, other: ast.AST) -> bool:
    return any(each is node for each in ast.walk(other))


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name | ast.Attribute):
            name = _dotted(each)
            if name:
                yield name


def _dotted(node: ast.AST) -> str:
    """`name` or `self.name`; "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
