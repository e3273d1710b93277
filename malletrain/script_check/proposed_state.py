"""Moves what a script counts and keeps into `s.state`, where that is certainly the same: `iter_num` becomes
`s.state["iter_num"]` from the session on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from malletrain.script_check.carried_names import carried_names
from malletrain.script_check.script_scopes import Function, Scope, first_line, scopes_of


def with_state(text: str, session: str) -> tuple[str, list[str]]:
    """A malleable script whose counters and best scores are part of the training state.

    Args:
        text: of a script that makes a session.
        session: its name.

    Returns:
        The changed text, and what to look at by hand.
    """
    notes: list[str] = []
    for scope_line, names in sorted(carried_names(text).items()):
        for each in sorted(names):
            changed = _moved(text, scope_line, each.name, session) if "." not in each.name else None
            if changed is None:
                notes.append(
                    f"{each.name} steers what follows, and a worker that joins begins with its first value: keep it "
                    f'in {session}.state["{each.name.rpartition(".")[2]}"], or use {session}.steps_done'
                )
            else:
                text = changed
    return text, list(dict.fromkeys(notes))


def _moved(text: str, scope_line: int, name: str, session: str) -> str | None:
    """The text with one variable moved; None where it is not certain that it does the same."""
    tree = ast.parse(text)
    # (A line that an earlier move has added comes after the first line of a function.)
    scope = next(each for each in scopes_of(tree) if first_line(each) == scope_line)
    made = next((each for each in _own(scope.body) if isinstance(each, ast.Assign) and _makes(each, session)), None)
    if made is None or _used_by_others(tree, scope, name):
        return None
    line = made.end_lineno or made.lineno
    nodes = [each for each in _own(scope.body) if isinstance(each, ast.Name) and each.id == name]
    first = [
        node
        for node in scope.body
        if isinstance(node, ast.Assign) and node.lineno < line and ast.unparse(node.targets[0]) == name
    ]
    later = [each for each in nodes if each.lineno > line]
    if not first or not all(_is_number(each.value) for each in first) or not _assigns_plainly(scope, name, line):
        return None
    lines = text.splitlines()
    quoted = _in_strings(scope, lines)
    for node in sorted(later, key=lambda each: (each.lineno, each.col_offset), reverse=True):
        row = lines[node.lineno - 1].encode()
        quote = quoted.get(id(node), '"')
        by = f"{session}.state[{quote}{name}{quote}]".encode()
        if row[node.col_offset : node.end_col_offset] != name.encode():
            return None
        lines[node.lineno - 1] = (row[: node.col_offset] + by + row[node.end_col_offset :]).decode()
    lines.insert(line, " " * made.col_offset + f'{session}.state["{name}"] = {name}')
    changed = "\n".join(lines) + "\n"
    return changed if _does_the_same(changed, text, later, name, session, line) else None


def _does_the_same(changed: str, text: str, later: list[ast.Name], name: str, session: str, line: int) -> bool:
    """Whether the changed text is the former one with these names replaced and a line added, and nothing else."""
    places = {(each.lineno, each.col_offset) for each in later}

    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            if node.id != name or (node.lineno, node.col_offset) not in places:
                return node
            made = ast.parse(f"{session}.state['{name}']", mode="eval").body
            if isinstance(made, ast.Subscript):
                made.ctx = node.ctx
            return made

    try:
        found = ast.parse("\n".join(row for at, row in enumerate(changed.splitlines()) if at != line) + "\n")
    except SyntaxError:
        return False
    return ast.dump(found) == ast.dump(Replace().visit(ast.parse(text)))


def _assigns_plainly(scope: Scope, name: str, line: int) -> bool:
    """Whether all that is assigned to a variable after a line is by `=` or `+=` and the like."""
    stored = [
        each
        for each in _own(scope.body)
        if isinstance(each, ast.Name)
        and each.id == name
        and each.lineno > line
        and not isinstance(each.ctx, ast.Load)
    ]
    plain = 0
    for node in _own(scope.body):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AugAssign) else targets
        if getattr(node, "lineno", 0) > line:
            plain += sum(
                isinstance(each, ast.Name) and each.id == name for target in targets for each in ast.walk(target)
            )
    return plain == len(stored)


def _used_by_others(tree: ast.Module, scope: Scope, name: str) -> bool:
    """Whether a function other than the variable's own, or one inside it, has its name."""
    own = set(map(id, _own(scope.body)))
    others = ast.walk(tree) if isinstance(scope, ast.Module) else ast.walk(scope)
    return any(
        (isinstance(node, ast.Name) and node.id == name and id(node) not in own)
        or (isinstance(node, ast.Global | ast.Nonlocal) and name in node.names)
        or (isinstance(node, ast.arg) and node.arg == name)
        for node in others
    )


def _is_number(value: ast.expr) -> bool:
    text = ast.unparse(value).removeprefix("-")
    if text in ("math.inf", "np.inf", "float('inf')", "float('-inf')", "torch.inf"):
        return True
    constant = value.operand if isinstance(value, ast.UnaryOp) else value
    return isinstance(constant, ast.Constant) and isinstance(constant.value, int | float)


def _in_strings(scope: Scope, lines: list[str]) -> dict[int, str]:
    """For each name inside an f-string, the quote that may stand in it."""
    found = {}
    for string in (each for each in _own(scope.body) if isinstance(each, ast.JoinedStr)):
        begun = lines[string.lineno - 1].encode()[string.col_offset :].decode().lstrip("rRfFbB")
        for node in ast.walk(string):
            if isinstance(node, ast.Name):
                found[id(node)] = "'" if begun.startswith('"') else '"'
    return found


def _makes(node: ast.Assign, session: str) -> bool:
    return (
        ast.unparse(node.targets[0]) == session
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "elastic.Session"
    )


def _own(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of a scope, without those of functions, classes and lambdas in it."""
    queue: list[ast.AST] = list(body)
    while queue:
        node = queue.pop()
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            yield node
            queue += ast.iter_child_nodes(node)
