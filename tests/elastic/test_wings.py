"""No two files of the elastic runtime import each other in a circle; `lint-imports` checks the order of its wings."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import malletrain.elastic

ROOT = Path(malletrain.elastic.__file__).parent
PACKAGE = "malletrain.elastic"


def imports(root: Path, package: str) -> dict[str, set[str]]:
    """Modules of a package, and what each imports of it, for types only included."""
    files = {
        ".".join([package, *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__"): path
        for path in root.rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        used: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    used.add(inner if inner in files else node.module)
            elif isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
        # The package itself names its public classes for type checkers, and loads them on demand.
        found[name] = used & files.keys() - {package} if name != package else set()
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_file_imports_itself_through_others() -> None:
    graph = imports(ROOT, PACKAGE)
    assert f"{PACKAGE}.resize.reconfigure" in graph[f"{PACKAGE}.runtime"]
    assert circle(graph) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    (tmp_path / "one.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import two\n")
    (tmp_path / "two.py").write_text("def late():\n    from p.one import thing\n")
    assert set(circle(imports(tmp_path, "p"))) == {"p.one", "p.two"}


def test_no_file_reaches_into_what_another_object_keeps_private() -> None:
    files = [*ROOT.glob("*.py"), *(ROOT / "resize").glob("*.py"), *(ROOT / "link").glob("*.py")]
    private = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "os"))
    ]
    assert [line for line in private if "nn.modules." not in line] == [], "classes of torch have no other names"
