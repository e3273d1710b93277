"""Which Python a job's pilots run: that of the researcher's own environment, which compute nodes have too; and a
check of the job's script by it (`mtbatch --check`).

`mtbatch` may come from a package that is installed where users log in, and nowhere else. Standard library only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.submission.sbatch import BatchRequest

#: What a pilot's Python must be able to do; it prints whether torch is there as well, without importing it.
PROBE = (
    "import importlib.util as u, malletrain.elastic.launch.launcher; "
    "print('torch' if u.find_spec('torch') else 'plain')"
)

#: The module that a pilot's launcher checks with, too.
CHECK = "malletrain.elastic.launch.own_check"

#: Seconds for a probe: a cold file system is slow.
PROBE_TIMEOUT_S = 60.0


class Probed(NamedTuple):
    """What is known of a Python. `fault`: why it cannot run a pilot; empty where it can."""

    path: str
    fault: str
    torch: bool = False


def probe(python: str, environ: Mapping[str, str]) -> Probed:
    """Try a Python here."""
    try:
        done = _run([python, "-P", "-c", PROBE], environ, "/", PROBE_TIMEOUT_S)
    except OSError as error:
        return Probed(python, os.strerror(error.errno or 0))
    except subprocess.TimeoutExpired:
        return Probed(python, f"no answer in {PROBE_TIMEOUT_S:.0f} s")
    if done.returncode == 0:
        return Probed(python, "", "torch" in done.stdout.split())
    said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
    old = any("unknown option" in line.lower() for line in said)
    return Probed(python, "it is older than 3.11" if old else said[-1].strip()[:200])


def _run(
    command: list[str], environ: Mapping[str, str], cwd: str, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command without input, and keep what it prints."""
    return subprocess.run(
        command,
        env=dict(environ),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


def find(environ: Mapping[str, str], chosen: str = "", site: str = "") -> str:
    """The Python that pilots run: `chosen` by --python, else that of an active environment (VIRTUAL_ENV,
    CONDA_PREFIX), python3 on PATH or the one that runs this, those with torch first, else the `site`'s default.
    Raises `InvalidInput`: there is none; names each that was tried, and what it lacks."""
    if chosen:
        return _checked(chosen, "--python", environ)
    tried: dict[str, Probed] = {}
    for python in _own(environ):
        found = tried[python] = _probed(python, environ)
        if found.torch:
            return python
    plain = next((each.path for each in tried.values() if not each.fault and _is_callers(each.path, environ)), "")
    if plain:
        return plain
    if site:
        return _checked(site, "client.toml: python", environ)
    lacks = "; ".join(f"{each.path}: {each.fault or 'has no torch'}" for each in tried.values())
    why = f"no Python here can run the job's pilots ({lacks or 'none is on PATH'})"
    remedy = "activate the environment that has your torch, with malletrain installed in it, or give --python=PATH"
    raise InvalidInput("--python", f"{why}: {remedy}; compute nodes must have it too")


def _checked(python: str, where: str, environ: Mapping[str, str]) -> str:
    found = probe(python, environ)
    if found.fault:
        raise InvalidInput(where, f"{python} cannot run a pilot: {found.fault}; install malletrain there")
    return python


def _own(environ: Mapping[str, str]) -> Iterator[str]:
    """Pythons to look at, best first, each once."""
    active = [f"{environ[name]}/bin/python" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    on_path = shutil.which("python3", path=environ.get("PATH", "")) or ""
    for python in dict.fromkeys([*active, on_path, sys.executable]):
        if python.startswith("/") and Path(python).exists():
            yield python


def _probed(python: str, environ: Mapping[str, str]) -> Probed:
    if python == sys.executable:
        return Probed(python, "", importlib.util.find_spec("torch") is not None)
    return probe(python, environ)


def _is_callers(python: str, environ: Mapping[str, str]) -> bool:
    """Whether a Python without torch is of an environment of the caller's own: active, or in a folder of theirs."""
    home = Path(python).parents[1]
    active = [Path(environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    return home in active or home.stat().st_uid == os.getuid()


def checked_here(
    request: BatchRequest, environ: Mapping[str, str], warn: Callable[[str], None]
) -> tuple[str, str, str]:
    """The digest, verdict and first sentence of a check of `request.to_check`. `warn` is called with what follows for
    the job, if its script is not equal. Raises `InvalidInput`: the job's Python cannot check."""
    command = [request.python, "-P", "-m", CHECK, *request.to_check]
    done = _run(command, environ, request.chdir)
    try:
        found = json.loads(done.stdout)
        digest, verdict, text = str(found["digest"]), str(found["verdict"]), str(found["text"])
    except (ValueError, KeyError, TypeError) as error:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
        raise InvalidInput("--check", f"{request.python} cannot check: {said[-1].strip()[:200]}") from error
    if verdict == "different":
        warn(f"--check: different: {text}: the job will stay at its smallest size; `malletrain check` says more")
    elif verdict != "equal":
        warn(f"--check: {verdict}: {text}")
    return digest, verdict, text
