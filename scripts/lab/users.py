"""Plain users for jobs to run as: made on request, marked as the lab's, removed by `slurm-lab forget-users` only."""

import grp
import os
import pwd
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scripts.lab.errors import LabError, UsageError

TEST_USERS = ("alice", "bob", "malletrain")
COMMENT = "MalleTrain slurm-lab test user"  # in the GECOS field: tells users that the lab made from all others
_NO_HOME = ("--no-create-home", "--home-dir", "/nonexistent")  # theirs is in the lab
_PASSWORD_FILE_BUSY = 1, 10  # useradd(8), userdel(8): cannot lock or update the file: another lab is at it


@dataclass(frozen=True)
class Identity:
    """A user as the kernel sees one."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]

    @classmethod
    def of(cls, name: str) -> "Identity":
        """UsageError if there is no such user."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise UsageError(
                f"no user {name!r} on this machine: bring the lab up with --users, or create it"
            ) from None
        return cls(name, entry.pw_uid, entry.pw_gid, tuple(os.getgrouplist(name, entry.pw_gid)))


def check_rights() -> None:
    """UsageError unless this process may make users and run jobs as them."""
    if os.geteuid() != 0:
        raise UsageError("only root can run jobs as several users: run it as root (sudo)")


def ensure(names: tuple[str, ...]) -> None:
    """Creates those of `names` that do not exist. As root only: UsageError otherwise."""
    missing = [name for name in names if not _known(pwd.getpwnam, name)]
    if missing:
        check_rights()
    for name in missing:
        group = ["--gid", name] if _known(grp.getgrnam, name) else ["--user-group"]
        _retried(
            ["useradd", "--system", *group, *_NO_HOME, "--shell", "/bin/sh", "--comment", COMMENT, name],
            until=partial(_known, pwd.getpwnam, name),
        )


def forget() -> list[str]:
    """Removes the users that a lab made, and no other; returns their names. LabError if one still runs processes."""
    if os.geteuid() != 0:
        raise UsageError("forget-users: only root can remove users: run as root")
    made = [entry for entry in pwd.getpwall() if entry.pw_gecos == COMMENT]
    for entry in made:
        if _runs_processes(entry.pw_uid):
            raise LabError(f"user {entry.pw_name} still runs processes: end them (slurm-lab down DIR) and try again")
        remove(entry.pw_name)
    return [entry.pw_name for entry in made]


def remove(name: str) -> None:
    """Removes a user that `ensure` made. LabError if userdel refuses."""
    _retried(["userdel", name], until=lambda: not _known(pwd.getpwnam, name))


def check_reachable(root: Path) -> None:
    """UsageError unless users other than the owner can enter every directory above `root`."""
    for directory in reversed(root.parents):
        mode = directory.stat().st_mode
        if not mode & stat.S_IXOTH:
            raise UsageError(
                f"{root}: other users cannot enter {directory} (mode {mode & 0o777:04o}), so no job can run as them: "
                "choose a DIR below one that they can enter, such as /tmp/lab"
            )


def _retried(command: list[str], until: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while True:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0 or until():
            return
        if done.returncode not in _PASSWORD_FILE_BUSY or time.monotonic() > end:
            raise LabError(f"{' '.join(command[:1] + command[-1:])} failed: {done.stderr.strip()}")
        time.sleep(0.1)


def _known(look_up: Callable[[str], object], name: str) -> bool:
    try:
        look_up(name)
    except KeyError:
        return False
    return True


def _runs_processes(uid: int) -> bool:
    for entry in Path("/proc").iterdir():
        with suppress(FileNotFoundError):  # it ended meanwhile
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                return True
    return False
