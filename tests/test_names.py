"""Names in docstrings and documents name something that exists: what is renamed is renamed there too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {path.name for path in (ROOT / "malletrain").iterdir() if path.is_dir()}

#: Names of others: functions of Slurm, classes of libraries, letters of a formula, placeholders.
FOREIGN = {
    *("_het_job_kill_now", "_eval_nodes_topo", "_run_now", "batch_requeue_fini", "MaxJobId", "cg_node_bitmap"),
    *("HttpParserError", "to_text", "dataset.transform.size"),
    *("het12", "level_j", "b_j", "sql/NNNN_name.sql"),
    "malletrain.policies",
}
IN_DOCSTRINGS = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")
IN_PAGES = re.compile(r"`((?:malletrain|scripts|tests|sql|site-configs|examples|docs)/[\w./-]*\w)`")
FILES = re.compile(r"malletrain\.(?:db|sysusers|nodes)|.*\.(?:py|md|toml|sql)$")
MODULES = re.compile(r"`((?:malletrain\.)?[a-z_]+(?:\.\w+)+)`")


def python_files() -> list[Path]:
    return [path for room in ("malletrain", "scripts", "tests") for path in sorted((ROOT / room).rglob("*.py"))]


class Named(NamedTuple):
    """What a file names: in its code, in words of its short strings, and in its docstrings (by where they are)."""

    names: frozenset[str]
    words: frozenset[str]
    docstrings: tuple[tuple[str, str], ...]


@cache
def files() -> dict[Path, Named]:
    return {path: _read(path) for path in python_files()}


def _read(path: Path) -> Named:
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    constants = [node for node in nodes if isinstance(node, ast.Constant)]
    documented = [
        (f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or "")
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
    ]
    return Named(
        frozenset(name for node in nodes if not isinstance(node, ast.Constant) for name in _names_of(node)),
        frozenset(name for node in constants for name in _names_of(node)),
        tuple(documented),
    )


@cache
def names() -> frozenset[str]:
    """Every name of the code: of modules, classes, functions, attributes, arguments, and words of short strings."""
    found = {part for path in files() for part in path.relative_to(ROOT).with_suffix("").parts}
    return frozenset(found.union(*(each.names | each.words for each in files().values())))


def _names_of(node: ast.AST) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            return [name]
        case ast.alias():
            return [*node.name.split("."), node.asname or ""]
        case ast.Constant(value=str(text)) if len(text) < 80:
            return re.findall(r"\w+", text)
    return []


def docstrings() -> Iterator[tuple[str, str]]:
    for path, each in files().items():
        if path.is_relative_to(ROOT / "malletrain"):
            yield from each.docstrings


def pages() -> Iterator[tuple[str, str]]:
    """Documents but for decision records, which keep the names of their day."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if path.parent.name != "adr":
            yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def is_module(token: str) -> bool:
    """Whether `token` is a module, or a room's, and then names (a class, a function, a key of the configuration)."""
    parts = token.removeprefix("malletrain.").split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath("malletrain", *parts[:length])
        if path.is_dir() or path.with_suffix(".py").exists():
            return set(parts[length:]) <= names()
    return False


def test_names_in_docstrings_exist() -> None:
    known = names() | FOREIGN | {""}
    unknown = [
        (where, token)
        for where, text in docstrings()
        for token in IN_DOCSTRINGS.findall(text)
        if token not in FOREIGN and not set(token.strip(".").split(".")) <= known
    ]
    assert unknown == []


@pytest.mark.parametrize("texts", [docstrings, pages])
def test_modules_that_are_named_exist(texts: object) -> None:
    assert callable(texts)
    unknown = [
        (where, token)
        for where, text in texts()
        for token in MODULES.findall(text)
        if token.split(".")[0] in ROOMS | {"malletrain"} and token not in FOREIGN
        if not FILES.match(token) and not is_module(token)
    ]
    assert unknown == []


def test_paths_in_the_documents_exist() -> None:
    unknown = [
        (where, token)
        for where, text in pages()
        for token in IN_PAGES.findall(text)
        if token not in FOREIGN and not (ROOT / token).exists()
    ]
    assert unknown == []


#: Words that say of a value where it came from, not what it is; and of these the names of rows, messages and events.
RIDDLES = {"given", "awaiting", "told", "heard", "turned", "met", "beside", "lately"}
PUBLISHED = {"given_curve", "GIVEN", "given_up", "MAIN_MET", "met", "deadlines_met"}


def test_names_say_what_a_value_is() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, each in files().items()
        if path.is_relative_to(ROOT / "malletrain")
        for name in each.names
        if name not in PUBLISHED and RIDDLES & set(name.lower().split("_"))
    }
    assert not found, "name what it is: `curve`, `arguments`, `available`"
