"""Proposes the changed lines that make a plain PyTorch training script malleable.

It reads the usual shape: a DataLoader, a loop over epochs around a loop over the loader, `backward()` and the
optimizer's step in it. The loader may be made in the loop's own line, the loop over it may stand in a function or
method that the loop over epochs calls, and a class may hold loader, model and optimizer (`self.loader`). Whatever
else the script does is left as it is, or named in a note. Nothing is run.
"""

from __future__ import annotations

import ast
import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from malletrain.script_check.backward_passes import backward_passes, sums_over_samples
from malletrain.script_check.proposed_state import with_state
from malletrain.script_check.script_scopes import called_name, calls, calls_of
from malletrain.script_check.script_writes import unguarded_writes

_TRACKED = ("LR", "Scheduler", "Restarts", "Plateau", "GradScaler", "AveragedModel")

#: What is imported, what takes its place, and the section of the page about it.
_ADAPTERS = (
    ("lightning", "Trainer(..., strategy=ElasticStrategy(dataset, batch_size=...))", "lightning"),
    ("pytorch_lightning", "Trainer(..., strategy=ElasticStrategy(dataset, batch_size=...))", "lightning"),
    ("transformers.Trainer", "ElasticTrainer in its place", "hugging-face-trainer"),
    ("transformers.Seq2SeqTrainer", "ElasticTrainer in its place", "hugging-face-trainer"),
    ("accelerate.Accelerator", "ElasticAccelerator in its place, and a Session", "accelerate"),
)

_Loop = ast.For | ast.AsyncFor
_Import = ast.Import | ast.ImportFrom


@dataclass(frozen=True, slots=True)
class Proposal:
    """Changed lines of a script.

    Attributes:
        text: the changed script; the script itself where nothing could be changed.
        notes: what to look at by hand, with lines.
    """

    text: str
    notes: list[str] = field(default_factory=list)

    def diff(self, before: str, name: str) -> str:
        """The change as a unified diff; "" if there is none."""
        lines = difflib.unified_diff(
            before.splitlines(keepends=True), self.text.splitlines(keepends=True), name, f"{name} (malleable)"
        )
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


@dataclass(slots=True)
class _Found:
    """The parts of a training script.

    Attributes:
        loader: the expression that is the loader where the session is made: its name, or what makes it.
        function, called: that hold the loop over batches, and its call in the loop over epochs; None where it stands
            there itself.
        session: what the session is called: `s`, or `self.s` where methods share it.
    """

    loader: str
    epochs: ast.For
    batches: ast.For
    optimizers: list[str]
    models: list[str]
    function: ast.FunctionDef | None = None
    called: ast.Call | None = None
    session: str = "s"


def propose(text: str) -> Proposal:
    """Propose the changes for a script. Text that is no Python, or has no such loop, gets notes alone."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        return Proposal(text, [f"this is no Python that can be read: {error}"])
    if any(isinstance(node, ast.Attribute) and node.attr == "Session" for node in ast.walk(tree)):
        return Proposal(text, ["the script has a Session already: malletrain check says whether it is right"])
    adapter = _adapter(tree) or _other_loader(tree)
    if adapter:
        return Proposal(text, [adapter])
    found = _find(tree)
    if isinstance(found, str):
        return Proposal(text, [found])
    name = _free_name(tree, "s", "session")
    return _change(text, tree, replace(found, session=f"self.{name}" if found.session == "self.s" else name))


def _adapter(tree: ast.Module) -> str:
    """What to do with a script whose loop is a framework's; "" for others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{each.name}" for each in node.names]
        else:
            continue
        for framework, adapter, section in _ADAPTERS:
            if any(name == framework or name.startswith(f"{framework}.") for name in names):
                return f"line {node.lineno}: {framework}: {adapter}, see docs/how-to/adapters.md#{section}"
    return ""


def _other_loader(tree: ast.Module) -> str:
    """What to do with a script whose DataLoader is not torch's; "" for others."""
    modules = {
        (each.asname or each.name).partition(".")[0]: getattr(node, "module", None) or each.name
        for node in ast.walk(tree)
        if isinstance(node, _Import)
        for each in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            is_other = node.name == "DataLoader"
        elif isinstance(node, ast.ImportFrom):
            is_torchs = (node.module or "").partition(".")[0] == "torch"
            is_other = not is_torchs and "DataLoader" in {each.name for each in node.names}
        elif isinstance(node, ast.Attribute) and node.attr == "DataLoader":
            owner = modules.get(ast.unparse(node).partition(".")[0], "torch")
            is_other = owner.partition(".")[0] != "torch"
        else:
            continue
        if is_other:
            return (
                f"line {node.lineno}: this DataLoader is not torch's: give Session its map-style data set and "
                "batch_size, or elastic.Streams (see docs/how-to/researcher-data.md)"
            )
    return ""


def _free_name(tree: ast.Module, *wanted: str, attributes: bool = True) -> str:
    """One of these names, or one like the last, that the script does not use, also for no attribute."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    used |= {node.attr for node in ast.walk(tree) if attributes and isinstance(node, ast.Attribute)}
    used |= {each.asname or each.name for node in ast.walk(tree) if isinstance(node, _Import) for each in node.names}
    numbered = (f"{wanted[-1]}{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain(wanted, numbered) if name not in used)


# --- finding ------------------------------------------------------------------------------------------------------


def _find(tree: ast.Module) -> _Found | str:
    loaders = {
        _dotted(node.targets[0]): node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and _dotted(node.targets[0])
        if called_name(node.value) == "DataLoader"
    }
    inline = [loop for loop in _loops(tree) if _inline(loop.iter) is not None]
    unseen = [loop for loop in _loops(tree) if "loader" in _iterated(loop.iter) and calls(loop, "backward")]
    if not loaders and not inline and not unseen:
        return (
            "no `loader = DataLoader(...)` is found: give Session the data set, see docs/how-to/researcher-script.md"
        )
    given = _given_to_classes(tree)
    for epochs in _innermost_first(tree):
        for batches in (loop for loop in _loops(epochs) if loop is not epochs):
            if calls(batches, "backward"):
                name = _iterated(batches.iter)
                found = _with_models(tree, epochs, batches, name, loaders.get(given.get(name, name)), given)
                if found is not None:
                    return found
        for function, called, batches in _training_calls(tree, epochs):
            bound = given | _bound(function, called)
            name = _iterated(batches.iter)
            passed = bound.get(name, name)
            loader = loaders.get(given.get(passed, passed))
            found = _with_models(tree, epochs, batches, name if _is_method(function) else passed, loader, bound)
            if isinstance(found, str):
                return found
            if found is not None and _is_method(function):
                held = next((each for each in (name, passed) if each.startswith("self.")), found.loader)
                return replace(found, loader=held, session="self.s", function=function)
            if found is not None:
                if function.args.kwonlyargs or function.args.vararg or function.args.kwarg or function.args.defaults:
                    return (
                        f"line {function.lineno}: give {function.name}() the session as a parameter `s`, and iterate "
                        "over `s.batches()` in it and over `s.epochs(n)` around its call"
                    )
                return replace(found, function=function, called=called)
    for loop in _loops(tree):
        if calls(loop, "backward"):
            return (
                f"line {loop.lineno}: a loop that trains, but not inside `for epoch in range(...)` in the same "
                "function over a loader made by `loader = DataLoader(...)`: pass the session to it, and iterate over "
                "`s.epochs(n)` and `s.batches()`"
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and calls(node, "backward"):
            return (
                f"line {node.lineno}: a `while` loop that trains: iterate over `for epoch in s.epochs(n):` and `for "
                "batch in s.batches():`, with `with s.step():` around the step; its counter becomes s.steps_done"
            )
    for call in calls_of(tree, "backward"):
        return (
            f"line {call.lineno}: backward() stands in a function that the loop over batches calls: "
            "put `with s.step():` around that call, s.batches() in the place of the loader, s.epochs(n) in "
            "that of the epochs; or keep a loop for DDP by elastic.ddp (see docs/how-to/adapters.md)"
        )
    return "no loop with backward() is found: is this the training script?"


def _with_models(
    tree: ast.Module,
    epochs: ast.For,
    batches: ast.For,
    name: str,
    loader: ast.Assign | None,
    given: Mapping[str, str],
) -> _Found | str | None:
    """The parts around a loop over batches; None if it is over no loader, text where something is not clear.

    Args:
        name: of what is iterated over, where the loop over epochs stands.
        loader: the statement that makes it, if that is seen. (Another function or file may make it.)
        given: what the caller's names are for the parameters of the function that the loop stands in.
    """
    inline = _inline(batches.iter)
    is_named_so = "loader" in name and not name.startswith("self.")
    if loader is None and inline is None and not is_named_so:
        return None
    optimizers = _optimizers(tree, batches, given)
    models = _models(tree, optimizers)
    if not optimizers or not models:
        optimizers, models = _called_in(tree, batches, given)
    if not optimizers or not models:
        return (
            f"line {batches.lineno}: the loop trains, but which model and optimizer is not clear: write "
            "`s = elastic.Session(model, optimizer, dataset, batch_size=...)` yourself"
        )
    held = _attributes(given)
    optimizers, models = ([held.get(name, name) for name in names] for names in (optimizers, models))
    return _Found(name if inline is None else ast.unparse(inline), epochs, batches, optimizers, models)


def _attributes(given: Mapping[str, str]) -> dict[str, str]:
    """The attribute that holds what a class was given, by the giver's name."""
    return {value: name for name, value in given.items() if name.startswith("self.")}


def _training_calls(tree: ast.Module, epochs: ast.For) -> Iterator[tuple[ast.FunctionDef, ast.Call, ast.For]]:
    """The functions of the script that a loop over epochs calls by name and that have a loop with `backward()`."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(epochs):
        called = _dotted(node.func).removeprefix("self.") if isinstance(node, ast.Call) else ""
        function = functions.get(called)
        if isinstance(node, ast.Call) and function is not None:
            for loop in _loops(function):
                if calls(loop, "backward"):
                    yield function, node, loop
                    break


def _bound(function: ast.FunctionDef, called: ast.Call) -> dict[str, str]:
    """The caller's name for each parameter that is given by a plain name."""
    names = [each.arg for each in function.args.args if each.arg != "self"]
    given = dict(zip(names, called.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in called.keywords if keyword.arg}
    return {name: _dotted(value) for name, value in given.items() if _dotted(value)}


def _inline(node: ast.AST) -> ast.Call | None:
    """A DataLoader that is made where it is iterated over, also inside `enumerate` or `tqdm`."""
    made = _unwrapped(node)
    return made if isinstance(made, ast.Call) and called_name(made) == "DataLoader" else None


def _unwrapped(node: ast.AST) -> ast.AST:
    """What is iterated over inside `enumerate` or `tqdm`."""
    while isinstance(node, ast.Call) and called_name(node) in ("enumerate", "tqdm") and node.args:
        node = node.args[0]
    return node


def _loops(node: ast.AST) -> Iterator[ast.For]:
    return (each for each in ast.walk(node) if isinstance(each, ast.For))


def _innermost_first(tree: ast.Module) -> list[ast.For]:
    """All loops, those in others before these: a loop over folds or stages is around that over epochs."""
    within = [inside for outer in _loops(tree) for inside in _loops(outer)]
    return sorted(_loops(tree), key=lambda loop: -within.count(loop))


def _iterated(node: ast.AST) -> str:
    """The name that is iterated over."""
    return _dotted(_unwrapped(node))


def _dotted(node: ast.AST) -> str:
    """`name` or `self.name`; "" of anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return f"self.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _is_method(function: ast.FunctionDef) -> bool:
    return bool(function.args.args) and function.args.args[0].arg == "self"


def _given_to_classes(tree: ast.Module) -> dict[str, str]:
    """The variable that an attribute was made from: of `self.loader = loader` in `__init__`, what its caller gave."""
    found: dict[str, str] = {}
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for begin in (each for each in owner.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"):
            kept = {
                _dotted(node.value): _dotted(node.targets[0])
                for node in ast.walk(begin)
                if isinstance(node, ast.Assign) and _dotted(node.targets[0]).startswith("self.")
            }
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                if _dotted(call.func) == owner.name:
                    bound = _bound(begin, call)
                    found |= {kept[name]: value for name, value in bound.items() if name in kept}
    return found


def _optimizers(tree: ast.Module, loop: ast.For, given: Mapping[str, str]) -> list[str]:
    """Names whose `step()` is called in the loop and that were made with parameters of a model."""
    made = [name for name, call in _assigned(tree) if calls(call, "parameters")]
    stepped = [
        given.get(_dotted(node.func.value), _dotted(node.func.value))
        for node in ast.walk(loop)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("step", "zero_grad")
        if _dotted(node.func.value)
    ]
    return [name for name in dict.fromkeys(made) if name in stepped]


def _called_in(tree: ast.Module, loop: ast.For, given: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """An optimizer and a model that a function of the script or another file has made.

    One name's `step()` and `zero_grad()` are called in the loop. Another one is called there itself, and its
    parameters or mode are asked for or changed somewhere, or the optimizer was made with it. Nothing if there are
    several of either."""
    used: dict[str, set[str]] = {}
    called = set[str]()
    for node in (each for each in ast.walk(loop) if isinstance(each, ast.Call)):
        if isinstance(node.func, ast.Attribute) and _dotted(node.func.value):
            used.setdefault(_dotted(node.func.value), set()).add(node.func.attr)
        if _dotted(node.func):
            called.add(_dotted(node.func))
    called |= {name for name, methods in used.items() if "forward" in methods}
    optimizers = [given.get(name, name) for name, methods in used.items() if {"step", "zero_grad"} <= methods]
    known = {
        _dotted(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("parameters", "named_parameters", "train", "state_dict") and _dotted(node.func.value)
    }
    given_to = {
        _dotted(argument)
        for name, call in _assigned(tree)
        if name in optimizers
        for argument in [*call.args, *(each.value for each in call.keywords)]
    }
    models = sorted({given.get(name, name) for name in called if {name, given.get(name, name)} & (known | given_to)})
    return (optimizers, models) if len(optimizers) == len(models) == 1 else ([], [])


def _models(tree: ast.Module, optimizers: Sequence[str]) -> list[str]:
    names = []
    for name, call in _assigned(tree):
        if name in optimizers:
            names += [
                _dotted(node.func.value)
                for node in ast.walk(call)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "parameters"
                if _dotted(node.func.value)
            ]
    return list(dict.fromkeys(names))


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for target in node.targets:
                if _dotted(target):
                    yield _dotted(target), node.value


# --- changing -----------------------------------------------------------------------------------------------------


def _change(text: str, tree: ast.Module, found: _Found) -> Proposal:
    lines = text.splitlines()
    notes: list[str] = []
    body = found.batches.body
    indent = " " * body[0].col_offset
    steps = [each for each in body if any(calls(each, name) for name in ("step", "update", "backward"))]
    last = max(each.end_lineno or each.lineno for each in steps)
    first = body[0].lineno
    inserts: dict[int, list[str]] = {}  # before this line, from 1

    outer = " " * found.epochs.col_offset
    passes = backward_passes(body, found.optimizers)
    session = [outer + _session(found, sums=sums_over_samples(tree, body))]
    if passes is None:
        notes += _unclear_passes(found)
    tracked = dict.fromkeys(name for name, call in _assigned(tree) if called_name(call).endswith(_TRACKED))
    unset, conditions = _may_be_none(tree), _conditions(tree)
    absent = [name for name in tracked if name in unset]
    always = [name for name in tracked if name not in unset and name not in conditions]
    if always:
        session.append(f"{outer}{found.session}.track({', '.join(f'{_word(name)}={name}' for name in always)})")
    for name in absent:
        session.append(f"{outer}if {name} is not None:")
        session.append(f"{outer}    {found.session}.track({_word(name)}={name})")
    for name in tracked:
        if name in conditions and name not in unset:
            notes.append(
                f"line {conditions[name]}: {name} is made under a condition: put {found.session}.track("
                f"{_word(name)}={name}) under the same one, after {found.session} is made"
            )
    for number in range(first, last + 1):
        if lines[number - 1].strip():
            lines[number - 1] = "    " + lines[number - 1]
    count = "" if passes is None or passes.count == 1 else f"backwards={passes.count}"
    parts = [] if passes is None else passes.held
    step = _free_name(tree, "step", "one_step", attributes=False)
    named = f" as {step}" if parts else ""
    inserts.setdefault(first, []).append(f"{indent}with {found.session}.step({count}){named}:")
    for held in parts:
        inserts.setdefault(held.lineno, []).append(f"{indent}    with {step}.accumulate():")
        for number in range(held.lineno, (held.end_lineno or held.lineno) + 1):
            lines[number - 1] = "    " + lines[number - 1]
    _replace(lines, found.batches.iter, _with_batches(found.batches.iter, found.session))
    _replace(lines, found.epochs.iter, _with_epochs(found.epochs.iter, notes, found.session))
    inserts.setdefault(found.epochs.lineno, []).extend(session)
    end = found.epochs.end_lineno or found.epochs.lineno
    inserts.setdefault(end + 1, []).append(f"{outer}{found.session}.finish()")
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    after = max((node.end_lineno or node.lineno for node in imports), default=0)
    inserts.setdefault(after + 1, []).append("from malletrain import elastic")
    if found.function is not None and found.called is not None:  # (Methods have it as an attribute.)
        _insert(
            lines,
            found.called.keywords[-1].value if found.called.keywords else found.called.args[-1],
            f", {found.session}={found.session}",
        )
        _insert(lines, found.function.args.args[-1], f", {found.session}")

    changed: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        changed += inserts.get(number, [])
        if number <= len(lines) and line != "\0":
            changed.append(line)
    notes += _notes(text, tree, found.session)
    notes += _further_loops(tree, found)
    malleable, of_state = with_state("\n".join(changed) + "\n", found.session)
    return Proposal(malleable, notes + of_state)


def _further_loops(tree: ast.Module, found: _Found) -> Iterator[str]:
    """Other loops that train, which are left as they are: a stage after this one, say."""
    parts = [part for part in (found.epochs, found.function) if part is not None]
    changed = {id(loop) for part in parts for loop in _loops(part)}
    for node in tree.body:
        others = [loop for loop in _loops(node) if not changed & {id(each) for each in _loops(loop)}]
        training = next((loop for loop in others if calls(loop, "backward")), None)
        if training is not None:
            yield f"line {training.lineno}: another loop that trains: it needs a Session of its own, after finish()"


def _may_be_none(tree: ast.Module) -> set[str]:
    """Names that are set to None somewhere: `scheduler = None`, before an option decides."""
    return {
        _dotted(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None
        for target in node.targets
    }


def _conditions(tree: ast.Module) -> dict[str, int]:
    """Names that are made in branches only, of which none need run -> the line of the last one."""
    functions = [each.body for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    certain = set[str]().union(*map(_certainly_made, [tree.body, *functions]))
    return {
        _dotted(target): node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if _dotted(target) not in certain
    }


def _certainly_made(body: Sequence[ast.stmt]) -> set[str]:
    """Names that are assigned whichever branch of an `if` is taken."""
    made = set[str]()
    for node in body:
        if isinstance(node, ast.Assign):
            made |= {_dotted(target) for target in node.targets}
        elif isinstance(node, ast.If):
            made |= _certainly_made(node.body) & _certainly_made(node.orelse)
        elif isinstance(node, ast.For | ast.While | ast.With | ast.Try):
            made |= _certainly_made(node.body)
    return made


def _unclear_passes(found: _Found) -> Iterator[str]:
    """What to look at where it is not clear which `backward()` has a step of its own."""
    for node in ast.walk(found.batches):
        if (
            isinstance(node, ast.If)
            and calls(node, "step")
            and any(isinstance(each, ast.Mod) for each in ast.walk(node.test))
        ):
            yield (
                f"line {node.lineno}: gradients are added up over several batches: give Session a batch_size so many "
                "times as large, and make the optimizer's step for each"
            )
            return
    if len(found.optimizers) > 1:
        yield (
            f"line {found.batches.lineno}: several optimizers: `with {found.session}.step(backwards=N):` with the "
            "number of backward() calls that have a step of their own"
        )


def _word(name: str) -> str:
    return name.removeprefix("self.")


def _session(found: _Found, *, sums: bool) -> str:
    model = found.models[0] if len(found.models) == 1 else f"[{', '.join(found.models)}]"
    optimizer = found.optimizers[0] if len(found.optimizers) == 1 else f"[{', '.join(found.optimizers)}]"
    reduction = ', reduction="sum"' if sums else ""
    return f"{found.session} = elastic.Session({model}, {optimizer}, {found.loader}{reduction})"


def _insert(lines: list[str], after: ast.expr | ast.arg, text: str) -> None:
    """Insert text after an expression or parameter, on a line of its own whose columns have not changed."""
    number = (after.end_lineno or after.lineno) - 1
    line = lines[number].encode()
    at = after.end_col_offset or 0
    lines[number] = (line[:at] + text.encode() + line[at:]).decode()


def _with_batches(node: ast.expr, session: str) -> str:
    inline = _inline(node)
    if inline is not None:
        return ast.unparse(node).replace(ast.unparse(inline), f"{session}.batches()", 1)
    name = _iterated(node)
    return (
        ast.unparse(node).replace(name, f"{session}.batches()", 1)
        if _dotted(node) != name
        else f"{session}.batches()"
    )


def _with_epochs(node: ast.expr, notes: list[str], session: str) -> str:
    arguments = node.args if isinstance(node, ast.Call) and called_name(node) == "range" and not node.keywords else []
    if len(arguments) == 1:
        return f"{session}.epochs({ast.unparse(arguments[0])})"
    if len(arguments) == 2:
        begin = ast.unparse(arguments[0])
        return f"(epoch + {begin} for epoch in {session}.epochs({_count(begin, arguments[1])}))"
    notes.append(f"line {node.lineno}: iterate over `{session}.epochs(n)` instead of {ast.unparse(node)}")
    return ast.unparse(node)


def _count(begin: str, end: ast.expr) -> str:
    """How many there are from `begin` up to `end`: n of `begin + n`."""
    if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add):
        parts = ast.unparse(end.left), ast.unparse(end.right)
        if begin in parts:
            return parts[parts.index(begin) - 1]
    return f"{ast.unparse(end)} - {begin}"


def _replace(lines: list[str], node: ast.expr, by: str) -> None:
    """Replace an expression on one line; one over several lines is joined into the first."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    # Columns count bytes.
    start = lines[first].encode()[: node.col_offset].decode()
    rest = lines[last].encode()[node.end_col_offset or 0 :].decode()
    shift = len(lines[first]) - len(lines[first].lstrip())
    if shift > len(start):  # the line was indented further meanwhile
        return
    lines[first] = start + by + rest
    for number in range(first + 1, last + 1):
        lines[number] = "\0"


def _notes(text: str, tree: ast.Module, session: str) -> Iterator[str]:
    for write in unguarded_writes(text):
        yield f"line {write.line}: {write.call}: put it under `if {session}.is_main:`"
    for node in calls_of(tree, "DistributedDataParallel", "DDP", "init_process_group"):
        yield f"line {node.lineno}: {ast.unparse(node.func)}: leave it out, the session sums gradients itself"
    for node in calls_of(tree, "set_epoch"):
        yield f"line {node.lineno}: set_epoch: leave it out, the session orders the data itself"
