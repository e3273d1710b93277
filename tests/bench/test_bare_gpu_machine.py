"""`scripts/test-gpu` names every wheel that its tests import."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED: dict[str, str] = runpy.run_path(str(ROOT / "scripts" / "test-gpu"))["NEEDED"]

#: What MalleTrain or its tests use elsewhere.
OTHERS = [
    "hypothesis", "httpx", "sqlalchemy", "apscheduler", "highspy", "pulp", "structlog", "prometheus_client", "optuna",
    "plotly", "rich",
]  # fmt: skip


def test_nothing_else_is_imported() -> None:
    names = [path.stem for path in (ROOT / "tests" / "gpu").glob("test_*.py")]
    assert "test_nccl" in names
    lacking = [module for module in OTHERS if module not in NEEDED]
    code = f"""
import sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {lacking!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Lacking())
import {", ".join(f"tests.gpu.{name}" for name in names)}
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
