"""What the launcher tells NCCL, and what it leaves to the site."""

from __future__ import annotations

import os
import subprocess
import sys

from malletrain.elastic.launch.launcher import WATCHDOG_OFF, with_defaults


def test_the_watchdog_is_off_unless_the_site_says_otherwise() -> None:
    assert with_defaults({}).items() >= WATCHDOG_OFF.items()
    assert with_defaults({"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"})["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"


def test_it_needs_no_torch() -> None:
    code = "import sys, malletrain.elastic.launch.launcher; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), timeout=60).returncode == 0
