"""Assertions pin facts, not prose: a sentence for people can be said better without a test that fails (ADR 25)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent

#: Assertions that pin prose: this number only goes down.
MOST = 60

#: Three plain lower-case words in a row.
_PROSE = re.compile(r"(?<![\w.=<>{}$/-])[a-z]+(?: [a-z]+){2,}(?![\w=<>{}/-])")
#: What is no prose: code in backquotes, and a command line, from its program to the end of the sentence.
_COMMAND = re.compile(
    r"`[^`]*`|\b(?:sacctmgr|scontrol|squeue|sbatch|scancel|systemctl|pip|malletrain|mtbatch)\b[^:;,`()]*"
)
#: Functions that look for a text in another.
_SEARCHES = {"says", "naming", "startswith", "endswith", "search", "match", "fullmatch", "findall", "count"}

Known = Mapping[str, list[ast.expr]]


class Counted(NamedTuple):
    """Assertions of a file, and the lines of those that pin prose."""

    assertions: int
    prose: list[int]


def is_prose(text: str) -> bool:
    """A text of several lines is a file, a script or a page, and no sentence."""
    plain = text.replace("\\", "").replace(".*", " . ")
    return "\n" not in text.strip() and _PROSE.search(_COMMAND.sub(" . ", plain)) is not None


def strings(node: ast.AST, known: Known) -> Iterator[str]:
    """Strings of an expression, by names and parametrized arguments too; a dict's keys are names, as of JSON."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name):
        for value in known.get(node.id, []):
            yield from strings(value, {})
    else:
        for part in node.values if isinstance(node, ast.Dict) else ast.iter_child_nodes(node):
            yield from strings(part, known)


def constants(body: list[ast.stmt]) -> dict[str, list[ast.expr]]:
    """Names that a block gives a text, or a table of texts."""
    found: dict[str, list[ast.expr]] = {}
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name, value = statement.targets[0].id, statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            name, value = statement.target.id, statement.value
        else:
            continue
        if not isinstance(value, (ast.Call, ast.Name, ast.Attribute)):
            found.setdefault(name, []).append(value)
    return found


def bound(names: list[str], table: ast.expr) -> dict[str, list[ast.expr]]:
    """What each name stands for, row by row."""
    found: dict[str, list[ast.expr]] = {}
    for row in table.elts if isinstance(table, (ast.List, ast.Tuple)) else [table]:
        values = row.args if isinstance(row, ast.Call) else getattr(row, "elts", [row])
        whole = len(names) == 1 or len(values) != len(names)
        for name, value in zip(names, [row] * len(names) if whole else values, strict=True):
            found.setdefault(name, []).append(value)
    return found


def rows(node: ast.AST) -> Iterator[dict[str, list[ast.expr]]]:
    """Values of a function's parametrized arguments, and of what its loops go over."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("parametrize"):
                given, table = mark.args[:2]
                yield bound([each.strip() for text in strings(given, {}) for each in text.split(",")], table)
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield bound([each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)], node.iter)


def sides(assertion: ast.AST) -> Iterator[ast.expr]:
    """What an assertion compares, looks for or searches with."""
    for node in ast.walk(assertion):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn, ast.Eq, ast.NotEq)):
            yield from (node.left, *node.comparators)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _SEARCHES:
            yield from node.args
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield node.value


def is_assertion(node: ast.AST) -> bool:
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return isinstance(node, ast.Assert) or called.endswith((".raises", ".warns"))


def helpers(tree: ast.Module) -> dict[str, set[int]]:
    """Functions of a file that assert with an argument of theirs, and the places of such arguments."""
    found: dict[str, set[int]] = {}
    for function in tree.body:
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and not function.name.startswith("test_"):
            pinned = {
                name.id for node in ast.walk(function) if is_assertion(node)
                for side in sides(node) for name in ast.walk(side) if isinstance(name, ast.Name)
            }  # fmt: skip
            places = {n for n, each in enumerate(function.args.args) if each.arg in pinned}
            rest = function.args.vararg
            if rest and any(
                rest.arg in ast.unparse(node.iter) for node in ast.walk(function) if isinstance(node, ast.For)
            ):
                places |= set(range(len(function.args.args), 20))
            found[function.name] = places
    return found


def counted(source: str) -> Counted:
    tree = ast.parse(source)
    own, lines, total = helpers(tree), [], 0

    def visit(node: ast.AST, known: Known) -> None:
        nonlocal total
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            known = {**known, **constants([each for each in ast.walk(node) if isinstance(each, ast.stmt)])}
            for part in ast.walk(node):
                for each in rows(part):
                    known = {**known, **each}
        pinned: list[ast.expr] = []
        if is_assertion(node):
            total += 1
            pinned = list(sides(node.test if isinstance(node, ast.Assert) else node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and own.get(node.func.id):
            total += 1
            pinned = [each for n, each in enumerate(node.args) if n in own[node.func.id]]
        prose = any(is_prose(text) for each in pinned for text in strings(each, known))
        if prose and isinstance(node, (ast.Assert, ast.Call)):
            lines.append(node.lineno)
        for child in ast.iter_child_nodes(node):
            visit(child, known)

    visit(tree, constants(tree.body))
    return Counted(total, lines)


def test_assertions_pin_no_prose() -> None:
    """Counted are `assert`, `pytest.raises`, `pytest.warns`, and calls of a file's own functions that assert with
    what they are given. One pins prose if a string with three plain lower-case words in a row is its `match=`, is
    on a side of `in`, `not in`, `==` or `!=`, or is searched for; also by a name, or an argument of a parametrized
    test or a loop. Commands, code in backquotes, keys of a dict and texts of several lines are not prose."""
    found = {path: counted(path.read_text()) for path in sorted(TESTS.rglob("*.py"))}
    prose = [f"{path.relative_to(TESTS)}:{line}" for path, each in found.items() for line in each.prose]
    assert len(prose) <= MOST, "\n".join(prose)
    assert sum(each.assertions for each in found.values()) > 6000, "the count sees assertions"


def test_prose_is_found_where_it_is_pinned() -> None:
    source = """
SAID = "this is prose too"
def refused(done, words): assert words in done
@pytest.mark.parametrize(("n", "said"), [(1, "no such words here"), (2, "x")])
def test_it(n, said):
    assert "the daemon is gone" in out
    assert out == SAID
    with pytest.raises(Error, match="it says (so|no) and more words"): pass
    assert said in out
    refused(out, "all of this is prose")
    assert says(out, "three plain words")
    assert ran == {"a key of it": 1}, "a message of the test"
    assert "sacctmgr modify user ann" in out and "`git add this file`" in out and "n1 n2" in out
    assert out == "[a]\\nfile of several lines"
"""
    assert counted(source).prose == [6, 7, 8, 9, 10, 11]
    assert counted(source).assertions == 10
