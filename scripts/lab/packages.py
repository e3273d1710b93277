"""Slurm's programs: those of Debian's packages on this machine, installed when they are missing."""

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.lab.errors import LabError, UsageError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE_PROGRAMS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sinfo": "slurm-client"}
ACCOUNTING_PROGRAMS = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "mariadb": "mariadb-client-core",
}
_POLICY = Path("/usr/sbin/policy-rc.d")


@dataclass(frozen=True)
class Toolchain:
    """Where one release of Slurm is. The defaults are the machine's own."""

    path: str = SYSTEM_PATH
    plugin_directory: Path | None = None
    stepd: Path | None = None
    base: Path = Path("/usr")  # below it MariaDB finds its own files

    def program(self, name: str) -> str:
        """The absolute path of `name`; LabError if there is none."""
        found = shutil.which(name, path=self.path)
        if found is None:
            raise LabError(f"{name}: no such program in {self.path}")
        return found


def host_release() -> str:
    """The code name of this machine's Debian release; empty where it is none."""
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""


def missing_packages(accounting: bool) -> list[str]:
    """The packages that a lab needs and this machine lacks."""
    wanted = BASE_PROGRAMS | (ACCOUNTING_PROGRAMS if accounting else {})
    return sorted({package for name, package in wanted.items() if not shutil.which(name, path=SYSTEM_PATH)})


def host_toolchain(accounting: bool) -> Toolchain:
    """The machine's own Slurm, installed first if it is missing; UsageError where that needs rights one lacks."""
    if missing := missing_packages(accounting):
        if shutil.which("apt-get") is None:
            raise UsageError(
                f"missing: {', '.join(missing)}: this machine has no apt-get; install Slurm and munge first"
            )
        if os.geteuid() != 0:
            raise UsageError(
                f"missing packages: run as root: apt-get install --no-install-recommends {' '.join(missing)} "
                "(or give --release bookworm, which needs no root)"
            )
        install(missing)
    return Toolchain()


def install(packages: list[str]) -> None:
    """Installs Debian packages without starting their services (the lab runs its own daemons). As root only."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # invoke-rc.d asks this script before it starts a service; 101 means no. A site's own one is left alone.
    own_policy = not _POLICY.exists()
    if own_policy:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    try:
        get = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-q", "-y"]
        command = [*get, "install", "--no-install-recommends", *packages]
        try:
            run(command, environment)
        except LabError:  # the lists may be old or absent, as in a fresh container
            subprocess.run([*get, "update"], env=environment, capture_output=True)
            run(command, environment)
    finally:
        if own_policy:
            _POLICY.unlink(missing_ok=True)


def run(
    command: list[str],
    environment: Mapping[str, str] | None,
    *,
    cwd: Path | None = None,
    input: str | None = None,
    timeout_s: float | None = None,
) -> None:
    """Runs a program to its end; LabError with its last words if it fails."""
    stdin = subprocess.DEVNULL if input is None else None
    done = subprocess.run(
        command,
        env=environment,
        cwd=cwd,
        stdin=stdin,
        input=input,
        timeout=timeout_s,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise LabError(f"{' '.join(command[:4])}: {last_line(done.stderr.strip() or done.stdout)}")


def last_line(text: str) -> str:
    """The last line of `text` that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")
