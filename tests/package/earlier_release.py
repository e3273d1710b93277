"""An earlier release of the package, built from this repository's history: for tests of two releases side by side."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.lab import LabError

ROOT = Path(__file__).resolve().parents[2]

#: The last commit whose journal had schema 3, three days of work before schema 5.
EARLIER = "35251c2"

#: What that release imports and this one does not.
ALSO = ("ClusterShell==1.10",)


def install(commit: str, target: Path) -> Path:
    """Build the wheel of a commit, and unpack it into `target`, for PYTHONPATH, with what this one needs no more.

    Raises:
        LabError: this checkout does not have the commit, or it cannot be built.
    """
    archived = subprocess.run(["git", "-C", ROOT, "archive", commit], capture_output=True, check=False)
    if archived.returncode:
        raise LabError(f"{commit} is not in this checkout: git fetch --unshallow")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=archived.stdout, check=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
        built = subprocess.run([*pip, folder, *ALSO], capture_output=True, text=True, check=False)
        if built.returncode:
            raise LabError(f"the wheel of {commit} cannot be built: {built.stderr.strip()[-500:]}")
    target.chmod(0o755)
    return target
