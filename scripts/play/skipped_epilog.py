"""Pilots skip a lab's prolog and epilog, by the script of docs/how-to/admin-slurm.md."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from scripts.lab import Lab

RECIPE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "admin-slurm.md"


def wrapper(text: str, scripts: Path, which: str) -> str:
    """The document's script for `which` (prolog or epilog), its folder /etc/slurm put at `scripts`."""
    found = re.search(r"```sh\n( *#!/bin/sh\n *# /etc/slurm/epilog.*?)```", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"{RECIPE} has no script that begins with `# /etc/slurm/epilog`")
    return textwrap.dedent(found[1]).rstrip(" ").replace("epilog", which).replace("/etc/slurm", str(scripts))


def install(lab: Lab) -> None:
    """Put the script before the lab's own prolog and epilog; slurmd reads them at each job."""
    scripts = lab.path / "scripts"
    for which in ("prolog", "epilog"):
        own = scripts / which
        own.rename(scripts / f"{which}.site")
        quick = scripts / f"{which}.harvest"
        quick.write_text("#!/bin/sh\nexit 0\n")
        own.write_text(wrapper(RECIPE.read_text(encoding="utf-8"), scripts, which))
        for each in (own, quick):
            each.chmod(0o755)
