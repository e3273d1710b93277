"""Importing the runtime leaves the garbage collector as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest

TEXT = """
import gc, sys
import malletrain.elastic as elastic
if sys.argv[1] == "off":
    gc.disable()
seen = []
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "malletrain.elastic.errors":
            seen.append(gc.isenabled())
sys.meta_path.insert(0, Finder())
elastic.ElasticError
print(seen, gc.isenabled())
"""


@pytest.mark.parametrize(("before", "after"), [("on", True), ("off", False)])
def test_no_garbage_is_collected_while_the_runtime_imports(before: str, after: bool) -> None:
    done = subprocess.run([sys.executable, "-c", TEXT, before], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"[False] {after}"
