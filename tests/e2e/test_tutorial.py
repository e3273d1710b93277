"""The tutorial's commands, run as they stand, in their order, in one shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from scripts.lab import Lab, LabConfig
from scripts.lab.ports import free_port
from tests.slurm_fixtures import LabFactory

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slurm


def commands() -> list[str]:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.nightly
def test_every_command_of_the_tutorial_works(lab_factory: LabFactory, tmp_path: Path) -> None:
    shared: Lab = lab_factory(LabConfig(nodes=4, users=True))  # skips where there can be no lab
    if not shared.users:
        pytest.skip("only root can run jobs as several users")
    script = tmp_path / "tutorial.sh"
    # As typed: aliases work and jobs are numbered only in an interactive shell, or when asked for.
    end = (
        'status=$?; set +e; kill %1 2>/dev/null; "$HERE/scripts/slurm-lab" down "$LAB/lab"; '
        'cat "$LAB/daemon.log"; rm -rf "$LAB"; exit $status'
    )
    head = f"set -e\nset -m\nshopt -s expand_aliases\ntrap '{end}' EXIT\n"
    typed = "\n".join(commands()).replace("wait %1", "wait %1 || true").replace("8471", str(free_port()))
    script.write_text(f"{head}{typed}\n")
    with subprocess.Popen(
        ["bash", "-x", script], cwd=ROOT, env=os.environ | {"MALLETRAIN_VENV": str(ROOT / ".venv")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
            pytest.fail(f"the tutorial hangs:\n{output[-4000:]}")
    assert process.returncode == 0, output[-4000:]
    assert "digits" in output
