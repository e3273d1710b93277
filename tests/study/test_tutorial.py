"""The tutorial's study and its commands, as they stand there. Nightly: those of the how-to are run by the suite."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.lab import LabConfig
from scripts.lab.ports import free_port
from tests.slurm_fixtures import LabFactory
from tests.study.tiny import ROOT, ended

TUTORIAL = ROOT / "docs" / "tutorial-study.md"
CLUSTER = "export HERE="


def typed() -> tuple[list[str], list[str]]:
    """The commands before the cluster, and with it."""
    blocks = re.findall(r"```console\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    begin = next(number for number, line in enumerate(lines) if line.startswith(CLUSTER))
    return lines[:begin], lines[begin:]


def save_study(folder: Path) -> Path:
    code = re.search(r"```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    assert code is not None
    path = folder / "search.py"
    path.write_text(code[1])
    return path


def shell(script: str, folder: Path, timeout: float) -> str:
    """Run a script as typed; its output, where it has not failed."""
    with subprocess.Popen(
        ["bash", "-x", "-c", script], cwd=folder, start_new_session=True, text=True,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
            pytest.fail(f"the tutorial hangs:\n{output[-4000:]}")
    assert process.returncode == 0, output[-4000:]
    return output


@pytest.mark.nightly
@pytest.mark.alone
def test_the_commands_for_ones_own_machine_work(tmp_path: Path) -> None:
    path = save_study(tmp_path)
    here, _ = typed()
    output = shell("set -e\n" + "\n".join(here), tmp_path, 300)
    assert "study search:" in output
    counted = ended(path)
    assert counted.get("completed", 0) + counted.get("pruned", 0) == 6
    assert set(counted) <= {"completed", "pruned", "interrupted"}
    assert (tmp_path / "search.html").is_file()


@pytest.mark.nightly
@pytest.mark.slurm
def test_the_commands_for_a_cluster_work(lab_factory: LabFactory, tmp_path: Path) -> None:
    if not lab_factory(LabConfig(nodes=4, users=True)).users:
        pytest.skip("only root can run jobs as several users")
    save_study(tmp_path)
    _, there = typed()
    # The tutorial is followed in the checkout; here its scripts are linked to.
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    end = (
        'status=$?; set +e; kill %2 %1 2>/dev/null; "$HERE/scripts/slurm-lab" down "$LAB/lab"; '
        'cat "$LAB/daemon.log"; rm -rf "$LAB"; exit $status'
    )
    head = f"set -e\nset -m\nshopt -s expand_aliases\ntrap '{end}' EXIT\n"
    script = (
        "\n".join(there).replace("kill %1; wait %1", "kill %1; wait %1 || true").replace("8472", str(free_port()))
    )
    assert "trial" in shell(head + script, tmp_path, 400)
