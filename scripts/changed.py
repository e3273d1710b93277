"""Which tests a change concerns: `python -m scripts.changed [COMMIT]`, a line for each test file, the nearest first.

A test file is concerned where it imports what differs from COMMIT (HEAD unless named), directly or through other
modules, or where its text names a changed file that is not Python (by its path, if it has no suffix). Used by
`scripts/test --changed`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import grimp

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("malletrain", "tests", "scripts")


def module_of(path: PurePosixPath) -> str:
    """The dotted name of a Python file, relative to the root."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def distances(importers: Mapping[str, Iterable[str]], changed: Iterable[str]) -> dict[str, int]:
    """How many imports lie between each module and the nearest changed one; modules that reach none are left out."""
    found = dict.fromkeys(changed, 0)
    frontier = list(found)
    while frontier:
        reached = [(up, found[name] + 1) for name in frontier for up in importers.get(name, ())]
        frontier = []
        for module, distance in reached:
            if module not in found:
                found[module] = distance
                frontier.append(module)
    return found


def tests_for(changed: Iterable[PurePosixPath], texts: Mapping[PurePosixPath, str]) -> list[PurePosixPath]:
    """The test files that `changed` concerns, the nearest first. `texts`: all test files, with what they say."""
    changed = set(changed)
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    importers = {module: graph.find_modules_that_directly_import(module) for module in graph.modules}
    far = distances(importers, sorted({module_of(path) for path in changed if path.suffix == ".py"} & graph.modules))
    others = {path.name if path.suffix else str(path) for path in changed if path.suffix != ".py"}
    found = {}
    for path, text in texts.items():
        if module_of(path) in far:
            found[path] = far[module_of(path)]
        elif any(name in text for name in others):
            found[path] = 1
    return sorted(found, key=lambda path: (found[path], path))


def differing(commit: str) -> list[PurePosixPath]:
    """Files that differ from `commit` in the working tree, and those that git does not know yet.

    Raises:
        subprocess.CalledProcessError: git knows no such commit.
    """
    asked = (["diff", "--name-only", commit], ["ls-files", "--others", "--exclude-standard"])
    said = (subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True) for words in asked)
    return [PurePosixPath(line) for answer in said for line in answer.stdout.splitlines()]


def main() -> None:
    """The command line."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    texts = {PurePosixPath(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}
    print(*tests_for(differing(*(sys.argv[1:] or ["HEAD"])), texts), sep="\n")


if __name__ == "__main__":
    main()
