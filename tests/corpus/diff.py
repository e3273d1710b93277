"""What differs from a commit's behaviour, in fields: `python -m tests.corpus.diff [--against COMMIT] [GROUP ...]`.

Both trees write their cases whole (`tests.corpus.record --whole`), the commit's from a checkout of its own.
A line for each field: group/case, path of the field, before -> now.
"""

from __future__ import annotations

import argparse
import difflib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.corpus.groups import GROUPS

ROOT = Path(__file__).resolve().parents[2]
ABSENT = "-"


def fields(old: str, new: str) -> Iterator[str]:
    """The fields in which two texts of a case differ; texts that are no JSON, in lines."""
    yield from _differences(_read(old), _read(new), "")


def _read(text: str) -> object:
    """A JSON document, a list of documents (one a line), or lines of text."""
    try:
        return json.loads(text)
    except ValueError:
        lines = text.splitlines()
    return [_read_line(line) for line in lines]


def _read_line(line: str) -> object:
    """A JSON document, also one that follows its name and a colon; or the line."""
    head, _, rest = line.partition(": ")
    try:
        return json.loads(line)
    except ValueError:
        return {head: _read_line(rest)} if rest.startswith(("{", "[")) else line


def _differences(old: object, new: object, path: str) -> Iterator[str]:
    if old == new:
        return
    match old, new:
        case dict(), dict():
            for key in sorted(old.keys() | new.keys()):
                yield from _differences(old.get(key, ABSENT), new.get(key, ABSENT), f"{path}.{key}")
        case list(), list():
            yield from _of_lists(old, new, path)
        case str(), str() if not (old == _read_line(old) or new == _read_line(new)):  # a column of JSON
            yield from _differences(_read_line(old), _read_line(new), path)
        case _:
            yield f"{path.lstrip('.') or 'all'}: {_short(old)} -> {_short(new)}"


def _of_lists(old: list[object], new: list[object], path: str) -> Iterator[str]:
    """Elements that only moved are no difference; a run replaced by one as long is compared one by one."""
    matcher = difflib.SequenceMatcher(a=[*map(_short, old)], b=[*map(_short, new)], autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            continue
        for i in range(max(b - a, d - c)):
            left = old[a + i] if a + i < b else ABSENT
            right = new[c + i] if c + i < d else ABSENT
            yield from _differences(left, right, f"{path}[{c + i}]")


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def folders(before: Path, now: Path) -> Iterator[str]:
    """The differences between two folders that `tests.corpus.record --whole` wrote."""
    for name in sorted({str(p.relative_to(top)) for top in (before, now) for p in top.rglob("*") if p.is_file()}):
        old, new = before / name, now / name
        if not old.exists() or not new.exists():
            yield f"{name}: {'new' if new.exists() else 'gone'}"
            continue
        for line in fields(old.read_text("utf-8"), new.read_text("utf-8")):
            yield f"{name}: {line}"


def main() -> None:
    """The command line: exit status 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"one of {', '.join(GROUPS)}; by default all")
    parser.add_argument("--against", default="HEAD", metavar="COMMIT", help="the behaviour before (default: HEAD)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        tree, before, now = (Path(temporary) / name for name in ("tree", "before", "now"))
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(tree), given.against], check=True)
        try:
            for root, whole in ((tree, before), (ROOT, now)):
                command = [sys.executable, "-m", "tests.corpus.record", "--whole", str(whole), *given.groups]
                subprocess.run(command, cwd=root, check=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
        found = list(folders(before, now))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
