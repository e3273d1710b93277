"""The script of docs/how-to/admin-slurm.md: pilots get the short scripts, all other jobs the site's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from scripts.play.arm import RECIPE, epilog_wrapper


@pytest.mark.parametrize("which", ["prolog", "epilog"])
@pytest.mark.parametrize(("partition", "ran"), [("harvest", "harvest"), ("batch", "site"), (None, "site")])
def test_the_recipe_runs_the_script_of_the_partition(
    tmp_path: Path, which: str, partition: str | None, ran: str
) -> None:
    for each in ("site", "harvest"):
        script = tmp_path / f"{which}.{each}"
        script.write_text(f"#!/bin/sh\necho {each} $SLURM_JOB_ID\nexit 7\n")
        script.chmod(0o755)
    own = tmp_path / which
    own.write_text(epilog_wrapper(RECIPE.read_text(encoding="utf-8"), tmp_path, which))
    own.chmod(0o755)
    environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "12"}
    if partition is not None:
        environ["SLURM_JOB_PARTITION"] = partition
    done = subprocess.run([own], env=environ, capture_output=True, text=True, check=False, timeout=10)
    assert (done.stdout, done.returncode) == (f"{ran} 12\n", 7), "its exit status is the script's own"
