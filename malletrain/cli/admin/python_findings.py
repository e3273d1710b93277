"""What `malletrain doctor` finds of the Python that the site names for pilots (client.toml): tried on a node."""

from __future__ import annotations

from collections.abc import Iterator

from malletrain.domain.errors import ClusterUnavailable
from malletrain.slurm.command import Commands
from malletrain.slurm.site.site_facts import Finding, Harvest, Level
from malletrain.slurm.submission.job_python import PROBE

#: Seconds that srun may wait for an idle node, and for all of it.
NODE_S, TRIAL_S = 10, 60.0

#: What srun, the loader and Python say where the interpreter cannot run a pilot.
_FAULTS = (
    "No such file", "execve", "No module named", "nknown option", "Permission denied", "SyntaxError", "ImportError",
    "shared libraries", "GLIBC", "Exec format", "Illegal instruction", "Segmentation fault",
)  # fmt: skip


def python_findings(commands: Commands, harvest: Harvest, python: str) -> Iterator[Finding]:
    """Run `python` once on an idle node of the harvest partition; nothing where the site names none."""
    if not python:
        return
    names = {"partition": harvest.partition, "account": harvest.account, "qos": harvest.qos}
    where = [f"--{name}={value}" for name, value in names.items() if value]
    fixed = [
        "--nodes=1",
        "--ntasks=1",
        "--time=1",
        f"--immediate={NODE_S}",
        "--mpi=none",
        "--job-name=doctor",
    ]
    try:
        why = commands.run(["srun", *where, *fixed, python, "-P", "-c", PROBE], TRIAL_S).error
    except ClusterUnavailable as error:
        why = str(error)
    if not why:
        yield Finding(Level.OK, f"{python} (client.toml) runs pilots: tried on a node")
    elif any(words in why for words in _FAULTS):
        yield Finding(
            Level.ERROR,
            f"{python} (client.toml) cannot run a pilot on a node: {why[:300]}",
            "install malletrain where compute nodes have it, and name its Python in client.toml",
        )
    else:
        yield Finding(Level.WARNING, f"{python} (client.toml) could not be tried on a node: {why[:300]}")
