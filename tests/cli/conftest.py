"""The commands against the real API on a real socket, and Slurm's commands as fakes on PATH."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import forked_program
from tests.api.conftest import munged, new_house
from tests.api.house import House

__all__ = ["munged", "new_house"]

PARTITIONS = (
    "PartitionName=batch AllowAccounts=ALL Default=YES Nodes=n[1-8] PriorityTier=100 State=UP PreemptMode=OFF\n"
    "PartitionName=harvest AllowAccounts=ALL Default=NO Nodes=n[1-8] PriorityTier=1 State=UP PreemptMode=REQUEUE\n"
    "PartitionName=shut Default=NO Nodes=n[1-8] PriorityTier=1 State=DOWN PreemptMode=REQUEUE\n"
)

SCRIPT = "#!/bin/bash\n#SBATCH --nodes=1-4\n#SBATCH --job-name=digits\npython train.py\n"


@dataclass
class Done:
    """What a command left behind."""

    status: int
    out: str
    err: str


@dataclass
class Desk:
    """A researcher's shell: a folder, a PATH of fakes, a home without any configuration."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("bin", "home", "work"):
            (self.folder / name).mkdir()
        self.environ = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            **self.environ,
        }
        self.fake("scontrol", f"cat <<'END'\n{PARTITIONS}END\n")
        self.fake("sinfo", "echo '8|a100,ib|gpu:a100:4(S:0-1),shard:16'\n")
        self.fake("sbatch", f"env > {self.folder}/sbatch.env; cat > {self.folder}/sbatch.in; echo 4711\n")
        self.fake("scancel", "")
        self.fake("squeue", "")
        (self.work / "train.sh").write_text(SCRIPT)

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def fake(self, name: str, body: str) -> None:
        """A command of Slurm that notes how it was called, then does `body`."""
        file = self.folder / "bin" / name
        file.write_text(f'#!/bin/bash\necho "$(basename "$0") $*" >> {self.folder}/calls\n{body}')
        file.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        """How a fake was called, so far."""
        file = self.folder / "calls"
        # Not splitlines: the formats of squeue hold the separators that it knows besides.
        lines = file.read_text().removesuffix("\n").split("\n") if file.exists() else []
        return [line.removeprefix(name).strip() for line in lines if line.split(" ")[0] == name]

    def run(self, program: str, *argv: str, more: Mapping[str, str] | None = None) -> Done:
        """Run `malletrain` or `mtbatch` as a process of its own."""
        module = {"malletrain": "malletrain.cli.main", "mtbatch": "malletrain.cli.mtbatch"}[program]
        env = {**self.environ, **(more or {})}
        if "PYTHONPATH" not in env:
            return Done(*forked_program.run(module, argv, env=env, cwd=self.work))
        done = subprocess.run(
            [sys.executable, "-c", f"import {module} as m; m.main()", *argv],
            capture_output=True, text=True, cwd=self.work, timeout=180, check=False, env=env,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def mtbatch(self, *argv: str, **more: str) -> Done:
        return self.run("mtbatch", *argv, more=more)

    def malletrain(self, *argv: str, **more: str) -> Done:
        return self.run("malletrain", *argv, more=more)


@pytest.fixture
def bare_desk(tmp_path: Path) -> Desk:
    """A desk that knows no daemon."""
    folder = tmp_path / "desk"
    folder.mkdir()
    return Desk(folder)


@pytest.fixture
def api(new_house: Callable[..., House]) -> Iterator[House]:
    """A daemon's API that goes by the address where it listens."""
    made = new_house()
    made.auth._audiences = (made.address,)
    yield made


@pytest.fixture
def desk(bare_desk: Desk, api: House) -> Desk:
    """A desk that knows the daemon by MALLETRAIN_URL."""
    bare_desk.environ |= {"MALLETRAIN_URL": api.address, "MUNGE_SOCKET": api.munge_socket}
    return bare_desk
