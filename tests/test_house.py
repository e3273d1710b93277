"""The house keeps its order: one name for one thing, no circle between files, wings that stay small."""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "malletrain"
FILES = sorted(PACKAGE.rglob("*.py"))

#: Module names that rooms share: each has its own of the kind.
SHARED_MODULE_NAMES = frozenset({"__init__", "__main__", "decision", "errors", "main", "ports"})

#: A folder with more modules than this is divided into subpackages (docs/contributing.md).
MAX_MODULES_IN_A_FOLDER = 20


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
        # A package names its public classes for type checkers, and loads them on demand.
        found[name] = set() if path.stem == "__init__" else used & files.keys()
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def dotted(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def test_no_two_rooms_have_a_module_of_one_name() -> None:
    rooms = defaultdict(set)
    for path in FILES:
        if path.stem not in SHARED_MODULE_NAMES:
            rooms[path.stem].add(dotted(path))
    twice = {name: sorted(places) for name, places in rooms.items() if len(places) > 1}
    assert not twice


def classes_of_one_name(root: Path, package: str) -> dict[str, list[str]]:
    """Public classes with the name of another one, in one room or in two of which one imports the other."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for name, used in imports(root, package).items():
        rooms[room_of(name)] |= {room_of(each) for each in used}
    places = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        module = ".".join([package, *path.relative_to(root).with_suffix("").parts])
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    return {
        name: modules
        for name, modules in places.items()
        for one, other in itertools.combinations(modules, 2)
        if room_of(one) in rooms[room_of(other)] | {room_of(other)} or room_of(other) in rooms[room_of(one)]
    }


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_no_two_public_classes_have_one_name_where_their_rooms_meet() -> None:
    assert classes_of_one_name(PACKAGE, "malletrain") == {}


def test_classes_of_one_name_are_found_where_their_rooms_meet(tmp_path: Path) -> None:
    for room, more in {"a": "class Own: pass", "b": "from p.a import file", "c": ""}.items():
        (tmp_path / room).mkdir()
        (tmp_path / room / "file.py").write_text(f"{more}\nclass Row: pass\n")
    (tmp_path / "a" / "other.py").write_text("class Own: pass")
    found = classes_of_one_name(tmp_path, "p")
    assert found == {"Row": ["p.a.file", "p.b.file", "p.c.file"], "Own": ["p.a.file", "p.a.other"]}
    (tmp_path / "b" / "file.py").write_text("class Row: pass\n")
    assert classes_of_one_name(tmp_path, "p").keys() == {"Own"}


def test_no_file_imports_itself_through_others() -> None:
    graph = imports(PACKAGE, "malletrain")
    assert "malletrain.elastic.resize.reconfigure" in graph["malletrain.elastic.runtime"]
    assert circle(graph) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    (tmp_path / "one.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import two\n")
    (tmp_path / "two.py").write_text("def late():\n    from p.one import thing\n")
    assert set(circle(imports(tmp_path, "p"))) == {"p.one", "p.two"}


def test_folders_stay_small() -> None:
    counts: dict[str, int] = defaultdict(int)
    for path in FILES:
        if path.stem != "__init__":
            counts[str(path.parent.relative_to(ROOT))] += 1
    large = {folder: number for folder, number in counts.items() if number > MAX_MODULES_IN_A_FOLDER}
    assert not large, "divide it into subpackages, or merge files that only make sense together"


def test_only_tables_of_rows_and_columns_are_kept_from_the_formatter() -> None:
    kept = [str(path.relative_to(PACKAGE)) for path in FILES for _ in range(path.read_text().count("# fmt: skip"))]
    batch = [f"slurm/submission/{name}.py" for name in ("batch_request", "mtbatch_options")]
    site = [f"slurm/site/{name}.py" for name in ("account_checks", "doctor", "doctor", "partition_checks")]
    others = ["config/gone.py", "slurm/pilots.py", *["cli/admin/surroundings.py"] * 3]
    assert sorted(kept) == sorted([*others, *batch, *site])


def test_no_file_of_the_elastic_runtime_reaches_into_what_another_object_keeps_private() -> None:
    files = [path for folder in ("", "resize", "link") for path in (PACKAGE / "elastic" / folder).glob("*.py")]
    private = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "os"))
    ]
    assert [line for line in private if "nn.modules." not in line] == [], "classes of torch have no other names"
