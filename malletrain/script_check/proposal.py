"""Proposes the lines that make a plain PyTorch training script malleable: the session, and the two loops.

Whatever else the script does is left as it is, or named in a note; what a changed script does otherwise at other
sizes is for `malletrain check` to find. Nothing is run.
"""

from __future__ import annotations

import ast
import difflib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from malletrain.script_check.script_scopes import called_name, calls, calls_of, parsed
from malletrain.script_check.training_loop import TrainingLoop, assigned, find_loop, iterated, loops

#: How the names of classes end whose objects belong to the training state.
_TRACKED = ("LR", "Scheduler", "Restarts", "Plateau", "GradScaler", "AveragedModel")

_GUIDE = "docs/how-to/researcher-script.md"

_Import = ast.Import | ast.ImportFrom


@dataclass(frozen=True, slots=True)
class Proposal:
    """Changed lines of a script. `text`: the changed script; the script itself where nothing could be changed.
    `notes`: what to look at by hand, with lines."""

    text: str
    notes: list[str] = field(default_factory=list)

    def diff(self, before: str, name: str) -> str:
        """The change as a unified diff; "" if there is none."""
        lines = difflib.unified_diff(
            before.splitlines(keepends=True), self.text.splitlines(keepends=True), name, f"{name} (malleable)"
        )
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def propose(text: str) -> Proposal:
    """Propose the changes for a script. Text that is no Python, or has no such loop, gets notes alone."""
    tree = parsed(text)
    if tree is None:
        return Proposal(text, ["this is no Python that can be read"])
    if any(isinstance(node, ast.Attribute) and node.attr == "Session" for node in ast.walk(tree)):
        return Proposal(text, ["the script has a Session already: malletrain check says whether it is right"])
    loop = _other_loader(tree) or find_loop(tree)
    if isinstance(loop, str):
        return Proposal(text, [loop])
    name = _free_name(tree, "s", "session")
    session = f"self.{name}" if loop.in_methods else name
    changed = _Change(text, tree, loop, session).text()
    if parsed(changed) is None:
        return Proposal(text, [f"line {loop.batches.lineno}: this loop is to be changed by hand, by {_GUIDE}"])
    return Proposal(changed, list(_notes(tree, loop, session)))


# --- scripts that are left alone ----------------------------------------------------------------------------------


def _other_loader(tree: ast.Module) -> str:
    """What to do with a script whose DataLoader is not torch's; "" for others."""
    for node in ast.walk(tree):
        own = isinstance(node, ast.ClassDef) and node.name == "DataLoader"
        imported = isinstance(node, ast.ImportFrom) and "DataLoader" in {each.name for each in node.names}
        if own or (imported and not (getattr(node, "module", None) or "").startswith("torch.")):
            return (
                f"line {getattr(node, 'lineno', 0)}: this DataLoader is not torch's: give Session its map-style data "
                "set and batch_size, or elastic.Streams (see docs/how-to/researcher-data.md)"
            )
    return ""


def _free_name(tree: ast.Module, *wanted: str) -> str:
    """One of these names, or one like the last, that the script does not use, also for no attribute."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {each.asname or each.name for node in ast.walk(tree) if isinstance(node, _Import) for each in node.names}
    numbered = (f"{wanted[-1]}{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain(wanted, numbered) if name not in used)


# --- changing -----------------------------------------------------------------------------------------------------


class _Change:
    """The edits of a script's text. Columns of a tree count bytes, as these do."""

    def __init__(self, text: str, tree: ast.Module, loop: TrainingLoop, session: str) -> None:
        self._data = (text if text.endswith("\n") else f"{text}\n").encode()
        self._begins = [0, *(at + 1 for at, byte in enumerate(self._data) if byte == ord("\n"))]
        self._edits: list[tuple[int, int, str]] = []  # from one byte to another, this text
        imports = [node for node in tree.body if isinstance(node, _Import)]
        self._insert_line(imports[-1] if imports else None, "", "from malletrain import elastic")
        self._session(tree, loop, session)
        self._loops(loop, session)
        if loop.function is not None and loop.call is not None and not loop.in_methods:
            self._give(loop.function, loop.call, session)

    def text(self) -> str:
        """The changed script."""
        parts, done = [], 0
        for begin, end, text in sorted(self._edits, key=lambda each: each[:1]):
            parts += [self._data[done:begin], text.encode()]
            done = end
        return b"".join([*parts, self._data[done:]]).decode()

    def _session(self, tree: ast.Module, loop: TrainingLoop, session: str) -> None:
        models, optimizers = (", ".join(each) for each in (loop.models, loop.optimizers))
        models = f"[{models}]" if len(loop.models) > 1 else models
        optimizers = f"[{optimizers}]" if len(loop.optimizers) > 1 else optimizers
        self._insert_before(loop.epochs, f"{session} = elastic.Session({models}, {optimizers}, {loop.loader})")
        conditional = _under_conditions(tree)
        tracked = [f"{word}={name}" for name, (word, _) in _tracked(tree).items() if name not in conditional]
        if tracked:
            self._insert_before(loop.epochs, f"{session}.track({', '.join(tracked)})")
        self._insert_line(loop.epochs, self._indent(loop.epochs), f"{session}.finish()")

    def _loops(self, loop: TrainingLoop, session: str) -> None:
        self._replace(iterated(loop.batches.iter), f"{session}.batches()")
        count = _range_of(loop.epochs)
        if count is not None and len(count.args) == 1:
            self._replace(count, f"{session}.epochs({ast.unparse(count.args[0])})")
        elif count is not None:
            begin = ast.unparse(count.args[0])
            self._replace(count, f"(epoch + {begin} for epoch in {session}.epochs({_count(begin, count.args[1])}))")

    def _give(self, function: ast.FunctionDef, call: ast.Call, session: str) -> None:
        """Pass the session to a function, as its first argument."""
        name = self._begins[function.lineno - 1] + function.col_offset
        for begin, has_more in (
            (self._data.index(b"(", name), bool(ast.unparse(function.args))),
            (self._data.index(b"(", self._end(call.func)), bool(call.args or call.keywords)),
        ):
            self._edits.append((begin + 1, begin + 1, f"{session}, " if has_more else session))

    def _replace(self, node: ast.expr, text: str) -> None:
        self._edits.append((self._begins[node.lineno - 1] + node.col_offset, self._end(node), text))

    def _insert_before(self, node: ast.stmt, line: str) -> None:
        begin = self._begins[node.lineno - 1]
        self._edits.append((begin, begin, f"{self._indent(node)}{line}\n"))

    def _insert_line(self, after: ast.stmt | None, indent: str, line: str) -> None:
        begin = self._begins[(after.end_lineno or 0) if after else 0]
        self._edits.append((begin, begin, f"{indent}{line}\n"))

    def _indent(self, node: ast.stmt) -> str:
        begin = self._begins[node.lineno - 1]
        return self._data[begin : begin + node.col_offset].decode()

    def _end(self, node: ast.expr) -> int:
        return self._begins[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)


def _range_of(epochs: ast.For) -> ast.Call | None:
    """The plain `range(n)` or `range(begin, end)` that a loop iterates over, also inside `tqdm`."""
    found = iterated(epochs.iter)
    plain = isinstance(found, ast.Call) and called_name(found) == "range" and not found.keywords
    return found if isinstance(found, ast.Call) and plain and 1 <= len(found.args) <= 2 else None


def _count(begin: str, end: ast.expr) -> str:
    """How many there are from `begin` up to `end`: n of `begin + n`."""
    if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add):
        parts = ast.unparse(end.left), ast.unparse(end.right)
        if begin in parts:
            return parts[parts.index(begin) - 1]
    return f"{ast.unparse(end)} - {begin}"


def _tracked(tree: ast.Module) -> dict[str, tuple[str, int]]:
    """The names of what belongs to the training state, what to call it, and the line where it is made."""
    made = ((name, call) for name, call in assigned(tree) if called_name(call).endswith(_TRACKED))
    return {name: (name.removeprefix("self."), call.lineno) for name, call in made}


def _under_conditions(tree: ast.Module) -> set[str]:
    """Names that are made under an `if`."""
    conditions = (
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "__name__" not in ast.unparse(node.test)
    )
    return {name for each in conditions for name, _ in assigned(each)}


# --- notes --------------------------------------------------------------------------------------------------------


def _notes(tree: ast.Module, loop: TrainingLoop, session: str) -> Iterator[str]:
    """What to look at by hand."""
    if _range_of(loop.epochs) is None:
        now = ast.unparse(loop.epochs.iter)
        yield f"line {loop.epochs.lineno}: iterate over `{session}.epochs(n)` instead of {now}"
    conditional = _under_conditions(tree)
    for name, (word, line) in _tracked(tree).items():
        if name in conditional:
            yield (
                f"line {line}: {name} is made under a condition: put {session}.track({word}={name}) under the "
                f"same one, after {session} is made"
            )
    yield from _notes_of_step(loop, session)
    for call in calls_of(tree, "DistributedDataParallel", "DDP", "init_process_group"):
        yield f"line {call.lineno}: {ast.unparse(call.func)}: leave it out, the session sums gradients itself"
    for call in calls_of(tree, "set_epoch"):
        yield f"line {call.lineno}: set_epoch: leave it out, the session orders the data itself"
    changed = {each for part in (loop.epochs, loop.function) if part is not None for each in loops(part)}
    for node in tree.body:
        others = (each for each in loops(node) if calls(each, "backward") and not changed & set(loops(each)))
        for other in itertools.islice(others, 1):
            yield f"line {other.lineno}: another loop that trains: it needs a Session of its own, after finish()"


def _notes_of_step(loop: TrainingLoop, session: str) -> Iterator[str]:
    """What a step may need beside the body of the loop."""
    tests = [node for node in ast.walk(loop.batches) if isinstance(node, ast.If) and calls(node, "step")]
    for node in tests:
        if any(isinstance(each, ast.Mod) for each in ast.walk(node.test)):
            yield (
                f"line {node.lineno}: gradients are added up over several batches: give Session a batch_size so many "
                "times as large, and make the optimizer's step for each"
            )
    if _most_calls(loop.batches, "backward") > 1:
        yield (
            f"line {loop.batches.lineno}: several backward() calls: parts of one loss, all but the last, each in "
            f"`with step.accumulate():` of `with {session}.step() as step:`; several that have an optimizer's step "
            f"each, `with {session}.step(backwards=N):`"
        )


def _most_calls(node: ast.AST, name: str) -> int:
    """The most calls of this name on one way through a node: of an `if`'s branches one is taken."""
    if isinstance(node, ast.If):
        return max(sum(_most_calls(each, name) for each in branch) for branch in (node.body, node.orelse))
    own = isinstance(node, ast.Call) and called_name(node) == name
    return own + sum(_most_calls(each, name) for each in ast.iter_child_nodes(node))
