"""The elastic runtime's files use each other's public parts only; `lint-imports` checks the order of its wings."""

from __future__ import annotations

import ast
from pathlib import Path

import malletrain.elastic

ROOT = Path(malletrain.elastic.__file__).parent


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
