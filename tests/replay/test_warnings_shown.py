"""Every warning that a replay can print is explained in the reference, and nothing else is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def sentences() -> list[str]:
    """The words of each warning in the source, with a blank for what is filled in."""
    found = []
    for path in sorted((ROOT / "malletrain" / "replay").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "sentence" and path.name == "likely_outages.py":
                found.append(" ".join(str(p.value) for p in ast.walk(node) if isinstance(p, ast.Constant)))
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            if node.func.attr == "warn" or ast.unparse(node.func) == "warnings.append":
                parts = ast.walk(node.args[0])
                found.append(" ".join(str(p.value) for p in parts if isinstance(p, ast.Constant)))
    return found


def explained() -> list[str]:
    page = (ROOT / "docs" / "reference" / "replay.md").read_text(encoding="utf-8")
    section = page.partition("## Warnings")[2].partition("\n## ")[0]
    return re.findall(r"^\| \*(.+?)\* \|", section, re.MULTILINE)


def test_every_warning_is_explained_once() -> None:
    phrases, said = explained(), sentences()
    assert len(said) == len(phrases)
    for sentence in said:
        assert sum(phrase in sentence for phrase in phrases) == 1, sentence
    for phrase in phrases:
        assert any(phrase in sentence for sentence in said), phrase
