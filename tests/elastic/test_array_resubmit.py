"""The environment in which sbatch runs to submit more tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.elastic.launch.array_resubmit import (
    ArrayResubmitter,
    comment_of_script,
    environment_outside_pilot,
)
from malletrain.slurm.submission.sbatch import BatchRequest
from malletrain.wire.errors import WireError


def test_new_tasks_inherit_the_cluster_but_no_variable_of_this_pilot() -> None:
    environ = {
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "1",
        "SBATCH_ACCOUNT": "x",
        "MALLETRAIN_STEP_OF": "7",
        "PMI_RANK": "0",
        "PATH": "/usr/bin",
        "PYTHONPATH": "/opt/lib",
        "MALLETRAIN_PYTHONPATH": "src:/opt/lib",
        "MUNGE_SOCKET": "/run/munge",
    }
    assert environment_outside_pilot(environ) == {
        "PYTHONPATH": "src:/opt/lib",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "PATH": "/usr/bin",
        "MUNGE_SOCKET": "/run/munge",
    }


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Fakes of Slurm's commands that note how they were called; squeue shows what sbatch was called with."""
    programs = {"sbatch": "cat DIR/printed; exit $(cat DIR/status)", "squeue": "cat DIR/shown", "scancel": ""}
    note = 'for word in "$@"; do case "$word" in --comment=*) echo "78 ${word#*=}" > DIR/shown;; esac; done\n'
    for name, body in programs.items():
        text = f'#!/bin/sh\necho "{name} $*" >> DIR/asked\n{note if name == "sbatch" else ""}{body}\n'
        (tmp_path / name).write_text(text.replace("DIR", str(tmp_path)))
        (tmp_path / name).chmod(0o755)
    request = BatchRequest("a", 1, 2, "harvest", "/", b"true\n", passed=(("comment", 'a "quoted" \\ sweep'),))
    script = request.materialize(7, "http://127.0.0.1:1", "/python", {}, mark="aa").script
    (tmp_path / "train.sh").write_bytes(script)
    return tmp_path


@pytest.mark.parametrize(
    ("printed", "status", "found"),
    [
        ("77;alpha", 0, 77),
        ("77\nYour project has 99% of its budget left.", 0, 78),
        ("Job 77 submitted", 0, 78),
        ("", 0, 78),
        ("budget: no such project", 1, 78),
    ],
)
def test_no_array_stays_that_the_daemon_does_not_know(tools: Path, printed: str, status: int, found: int) -> None:
    """The daemon takes none here. The array goes, whatever a site's sbatch prints of it."""
    (tools / "printed").write_text(f"{printed}\n")
    (tools / "status").write_text(str(status))
    environ = {"PATH": f"{tools}:/usr/bin:/bin", "MALLETRAIN_BATCH_SCRIPT": f"{tools}/train.sh"}
    with pytest.raises(WireError):
        ArrayResubmitter("http://127.0.0.1:1", 7, environ).submit(4)
    asked = (tools / "asked").read_text().splitlines()
    assert '--comment=malletrain job 7; aa; a "quoted" \\ sweep; ' in asked[0]
    assert asked[-1] == f"scancel {found}"


def test_a_script_without_a_comment_is_submitted_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/bash\n")
    assert comment_of_script(str(tmp_path / "train.sh")) == ""
    assert comment_of_script(str(tmp_path / "none.sh")) == ""
