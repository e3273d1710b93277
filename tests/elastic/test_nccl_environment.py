"""What the launcher tells NCCL, and what it leaves to the site."""

from __future__ import annotations

import os
import subprocess
import sys

from malletrain.elastic.comm.addresses import interface_of
from malletrain.elastic.launch.launcher import WATCHDOG_OFF, nccl_environment


def test_the_watchdog_is_off_unless_the_site_says_otherwise() -> None:
    assert nccl_environment({}) == WATCHDOG_OFF
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in nccl_environment({"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"})


def test_nccl_is_bound_to_the_interface_of_the_jobs_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.77") == ""
    assert nccl_environment({"MALLETRAIN_ADDRESS": "127.0.0.1"})["NCCL_SOCKET_IFNAME"] == "=lo"
    own = {"MALLETRAIN_ADDRESS": "127.0.0.1", "NCCL_SOCKET_IFNAME": "ib"}
    assert "NCCL_SOCKET_IFNAME" not in nccl_environment(own)
    assert "NCCL_SOCKET_IFNAME" not in nccl_environment({"MALLETRAIN_ADDRESS": "203.0.113.77"})


def test_it_needs_no_torch() -> None:
    code = "import sys, malletrain.elastic.launch.launcher; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), timeout=60).returncode == 0
