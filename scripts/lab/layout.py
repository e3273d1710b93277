"""Where a lab keeps what, and how it is written. Everything it makes lies in its own directory, and nowhere else."""

import os
from dataclasses import dataclass
from pathlib import Path

from scripts.lab.errors import UsageError

# A Unix socket's path holds at most 107 bytes (unix(7)). The longest one is a step's socket,
# DIR/spool/NODE/NODE_JOBID.STEPID (38 bytes below DIR, with the highest step id).
LONGEST_DIRECTORY = 69


@dataclass(frozen=True)
class Layout:
    """The paths of one lab below its directory `root` (absolute, symlinks resolved)."""

    root: Path

    @classmethod
    def of(cls, directory: Path | str) -> "Layout":
        """The layout of a lab in `directory`; UsageError where its path cannot serve."""
        root = Path(directory).resolve()
        if len(str(root).encode()) > LONGEST_DIRECTORY:
            raise UsageError(
                f"{root}: path is longer than {LONGEST_DIRECTORY} bytes, too long for Slurm's Unix sockets: "
                "choose a shorter one, such as /tmp/lab"
            )
        # These characters end a value, begin a comment or a pattern in slurm.conf, or split an option.
        if bad := sorted(set(str(root)) & set(" \t\n#%,=\"'[]()\\")):
            raise UsageError(f"{root}: slurm.conf cannot hold a path with {''.join(bad)!r}: choose another DIR")
        return cls(root)

    @property
    def state_file(self) -> Path:
        """What is running here (lab.json); also the mark that this directory is a lab's."""
        return self.root / "lab.json"

    @property
    def slurm_conf(self) -> Path:
        return self.root / "slurm.conf"

    @property
    def munge(self) -> Path:
        return self.root / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge / "munge.sock"

    @property
    def munge_key(self) -> Path:
        return self.munge / "munge.key"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def output(self) -> Path:
        """Where `Lab.submit` sends job output; anyone may write here."""
        return self.root / "output"

    @property
    def home(self) -> Path:
        """Home directories of the test users."""
        return self.root / "home"

    @property
    def database(self) -> Path:
        return self.root / "database"

    @property
    def scratch(self) -> Path:
        """Temporary files of this lab's programs."""
        return self.root / "tmp"

    @property
    def database_socket(self) -> Path:
        return self.run / "mariadb.sock"

    @property
    def made_directories(self) -> tuple[Path, ...]:
        """The directories that `up` makes and `down` removes, in order of making."""
        return (
            self.munge,
            self.log,
            self.run,
            self.spool,
            self.output,
            self.home,
            self.root / "state",
            self.scratch,
            self.root / "scripts",
            self.root / "devices",
        )

    @property
    def removable(self) -> tuple[Path, ...]:
        """All that `down` may remove, the mark last; files that others put beside it stay."""
        files = ("slurm.conf", "cgroup.conf", "gres.conf", "slurmdbd.conf")
        halves = (f"{name}.new" for name in (*files, self.state_file.name))  # of an `up` that was killed
        return (*self.made_directories, self.database, *(self.root / f for f in (*files, *halves)), self.state_file)


def publish(path: Path, text: str, mode: int | None = None) -> None:
    """Replaces a file that a running daemon or command may read at the same moment, in one step: a reader gets the
    former text or the new one, never a part.

    The file keeps its mode and owner; one that is new gets `mode`, by default 0644, whatever the umask is. Another
    `mode` given is set. Raises OSError as open(2) and rename(2) do.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        former = path.stat()
    except FileNotFoundError:
        former = None
    wanted = mode if mode is not None else former.st_mode & 0o7777 if former else 0o644
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            if former is not None:
                os.fchown(descriptor, former.st_uid, former.st_gid)
            os.fchmod(descriptor, wanted)  # after the owner, whose change clears bits of it
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
