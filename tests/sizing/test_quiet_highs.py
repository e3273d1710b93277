"""HiGHS prints nothing into what programs read, whatever its release prints as a solver is made."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from malletrain.sizing.quiet_highs import new_solver, silenced
from tests.loud_highs import put
from tests.sizing.test_commands import GOOD

ROOT = Path(__file__).resolve().parents[2]


def call(code: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": f"{put(folder)}:{ROOT}"}
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=120, env=environ, check=False)


def test_the_stand_in_is_as_loud_as_highs(tmp_path: Path) -> None:
    done = call("import highspy; highspy.Highs(); print('{}')", "", tmp_path)
    assert {
        "Includes third-party software components",
        "Running HiGHS 1.16.0: Copyright (c) 2026 under MIT licence terms",
        "{}",
    } <= set(done.stdout.split("\n"))


@pytest.mark.parametrize("policy", ["auto", "milp", "lp"])
def test_a_plan_is_one_json_document(policy: str, tmp_path: Path) -> None:
    code = f"from malletrain.cli.main import main; main(['plan', '-', '--policy', {policy!r}])"
    done = call(code, json.dumps(GOOD), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["sizes"] == {"a": 8, "7": 3}


def test_solvers_are_made_in_one_place() -> None:
    """PuLP makes its own, in a class of which there is one quiet kind."""
    for path in sorted((ROOT / "malletrain").rglob("*.py")):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        made = {func.attr for func in calls if isinstance(func, ast.Attribute)} & {"Highs", "HiGHS", "HiGHS_CMD"}
        assert not made or path.name == "quiet_highs.py", path


def test_standard_output_is_what_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    """Also where solvers are made by several threads at once, and where there is no standard output."""
    threads = [threading.Thread(target=lambda: [new_solver() for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("said", flush=True)
    with silenced():
        os.write(1, b"unsaid\n")
    assert capfd.readouterr().out == "said\n"
    kept = os.dup(1)
    try:
        os.close(1)
        assert new_solver() is not None
    finally:
        os.dup2(kept, 1)
        os.close(kept)
