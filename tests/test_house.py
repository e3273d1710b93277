"""The house keeps its order: one name for one thing, no circle between files, wings that stay small."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "malletrain"
FILES = sorted(PACKAGE.rglob("*.py"))

#: Module names that rooms share because each has its own of the kind, as the name says.
SHARED_MODULE_NAMES = frozenset({"__init__", "__main__", "errors", "main", "ports"})

#: A folder with more modules than this is divided into wings (docs/contributing.md).
MAX_MODULES_IN_A_FOLDER = 20


def dotted(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def test_no_two_rooms_have_a_module_of_one_name() -> None:
    rooms = defaultdict(set)
    for path in FILES:
        if path.stem not in SHARED_MODULE_NAMES:
            rooms[path.stem].add(dotted(path))
    twice = {name: sorted(places) for name, places in rooms.items() if len(places) > 1}
    assert not twice


def test_no_two_public_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(dotted(path))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice


def test_no_two_files_import_each_other_in_a_circle() -> None:
    """Imports for types alone count too: what cannot be read without the other belongs together with it."""
    names = {dotted(path) for path in FILES}
    graph: dict[str, set[str]] = {}
    for path in FILES:
        used = graph.setdefault(dotted(path), set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names} & names
                used |= inside
                if node.module in names and len(inside) < len(node.names):
                    used.add(node.module)
            elif isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names} & names
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {' -> '.join(error.args[1])}") from None


def test_folders_stay_small() -> None:
    counts: dict[str, int] = defaultdict(int)
    for path in FILES:
        if path.stem != "__init__":
            counts[str(path.parent.relative_to(ROOT))] += 1
    large = {folder: number for folder, number in counts.items() if number > MAX_MODULES_IN_A_FOLDER}
    assert not large, "divide it into wings, or merge files that only make sense together"
