"""What a daemon that starts does not wait for."""

from __future__ import annotations

import subprocess
import sys


def test_a_start_does_not_import_what_is_needed_later() -> None:
    later = ("scipy", "highspy", "pulp", "optuna", "torch", "httpx", "plotly")
    program = f"import sys, malletrain.daemon.service; print([name for name in {later} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"
