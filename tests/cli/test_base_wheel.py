"""`malletraind` where only the base package is installed."""

from __future__ import annotations

import subprocess
import sys

from malletrain import pip_install
from tests.messages import says
from tests.test_house import ROOT


def test_malletraind_says_what_to_install() -> None:
    hidden = "import sys; sys.modules['structlog'] = None; from malletrain.daemon.entry import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert says(done.stderr, "malletraind: structlog", pip_install("daemon"))


def test_an_old_python_is_named() -> None:
    old = "import sys; sys.version_info = (3, 10, 4); from malletrain.daemon.entry import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", old], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr
