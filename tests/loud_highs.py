"""A highspy that prints as 1.16 does while a solver is made: through C's standard output, and past it."""

from __future__ import annotations

from pathlib import Path

_TEXT = """\
import ctypes, importlib, os, sys
_here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_own = sys.modules.pop(__name__)
sys.path.remove(_here)
_real = importlib.import_module("highspy")
sys.path.insert(0, _here)


class Highs(_real.Highs):
    def __init__(self, *args, **more):
        ctypes.CDLL(None).puts(b"Running HiGHS 1.16.0: Copyright (c) 2026 under MIT licence terms")
        os.write(1, b"Includes third-party software components\\n")
        super().__init__(*args, **more)


_real.Highs = Highs
"""


def put(folder: Path) -> Path:
    """Write it to `folder`, which goes first into PYTHONPATH; the folder."""
    package = folder / "highspy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_TEXT)
    return folder
