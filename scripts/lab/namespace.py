"""How the lab's users reach this checkout where it lies below a folder that is closed to them, such as root's home.

Their processes run in a mount namespace of their own. There the closed folder is covered by an empty one, read-only,
in which the checkout and its environment are bound at their usual paths. Nothing is copied, no mode is changed, no
other process sees the mounts, and they end with the processes.
"""

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from scripts.lab.errors import UsageError
from scripts.lab.packages import SYSTEM_PATH, last_line
from scripts.lab.users import Identity

ROOT = Path(__file__).resolve().parents[2]

#: What users run and read of a checkout.
USED = ("malletrain", "examples", "scripts", "sql")

_NOBODY = Identity("nobody", 65534, 65534, ())
_PROBE_TIMEOUT_S = 10.0


def closed_folder(path: Path, closed: Callable[[Path], bool]) -> Path | None:
    """The topmost folder above `path` that is `closed`; None where there is none."""
    return next((folder for folder in reversed(path.parents) if closed(folder)), None)


def to_cover(paths: Iterable[Path], closed: Callable[[Path], bool]) -> dict[Path, tuple[Path, ...]]:
    """The closed folders above `paths`, topmost ones only, each with those of `paths` to show below it.

    A path below another one comes with that one.
    """
    wanted = sorted(set(paths))
    shown = [path for path in wanted if not any(other in path.parents for other in wanted)]
    found: dict[Path, tuple[Path, ...]] = {}
    for path in shown:
        if (folder := closed_folder(path, closed)) is not None:
            found[folder] = (*found.get(folder, ()), path)
    return found


def mounting(covered: Mapping[Path, Sequence[Path]]) -> str:
    """Shell text that makes the mounts of `covered` and becomes the command of its arguments."""
    lines = ["set -e"]
    for folder, shown in covered.items():
        # Descriptors: once the folder is covered, no path leads to what was in it. A shell has the first ten.
        opened = dict(enumerate(map(_quoted, shown), start=3))
        lines += [f"exec {number}< {path}" for number, path in opened.items()]
        lines.append(f"mount -t tmpfs -o mode=0755 tmpfs {_quoted(folder)}")
        for number, path in opened.items():
            lines += [
                f"(umask 022; mkdir -p {path})",
                f"mount -c --rbind /proc/self/fd/{number} {path}",
                f"exec {number}<&-",
            ]
        lines.append(f"mount -o remount,bind,ro {_quoted(folder)}")
    return "\n".join([*lines, 'exec "$@"'])


def within(command: Sequence[str]) -> list[str]:
    """`command`, for root to run, in a namespace where users reach the checkout; as it is where they do anyway."""
    covered = to_cover(_shown(), is_closed)
    if not covered:
        return list(command)
    # Mounts that the machine makes later arrive here; those made here go nowhere.
    return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", mounting(covered), "lab", *command]


def as_user(who: Identity, command: Sequence[str]) -> list[str]:
    """`command`, for root to run, as `who`, where they reach the checkout."""
    groups = f"--groups={','.join(map(str, who.groups))}" if who.groups else "--clear-groups"
    return within(["setpriv", f"--reuid={who.uid}", f"--regid={who.gid}", groups, "--", *command])


def check() -> None:
    """UsageError, with what to do, where the lab's users could not run this checkout. For root; takes no time."""
    for path in _parts():
        if path.exists() and is_closed(path):  # links may lead nowhere
            raise UsageError(
                f"{path}: other users cannot read it (mode {_mode(path)}), and the lab's must: "
                f"chmod -R go+rX {_quoted(_top(path))}"
            )
    covered = to_cover(_shown(), is_closed)
    if not covered:
        return
    probe = as_user(_NOBODY, ["test", "-r", str(ROOT / "scripts" / "slurm-lab")])
    done = subprocess.run(
        probe, env={"PATH": SYSTEM_PATH}, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise UsageError(
            f"other users cannot enter {', '.join(f'{folder} (mode {_mode(folder)})' for folder in covered)}, "
            f"and root may not mount here ({last_line(done.stderr)}): move the checkout to where they can, as /opt, "
            f"or chmod o+x {' '.join(map(_quoted, covered))}"
        )


def is_closed(path: Path) -> bool:
    """Whether users other than its owner and group cannot enter the folder, or cannot read the file."""
    mode = path.stat().st_mode
    return not mode & (stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH)


def _shown() -> set[Path]:
    """Checkout, environment and interpreter, by the paths that they are called by and those that they really have."""
    places = {ROOT, Path(sys.prefix), Path(sys.base_prefix), _environment()}
    return {path for place in places for path in (place, place.resolve()) if path.is_dir()}


def _environment() -> Path:
    """Where scripts/setup puts the environment, which need not be the one of this process."""
    return Path(os.environ.get("MALLETRAIN_VENV") or ROOT / ".venv").absolute()


def _parts() -> Iterator[Path]:
    """What must be open to others: the checkout and, of its environment, what tells how it was made."""
    yield ROOT
    for name in USED:
        for folder, folders, files in os.walk(ROOT / name):
            folders[:] = sorted(set(folders) - {"__pycache__"})
            yield Path(folder)
            yield from (Path(folder) / file for file in sorted(files))
    environment = _environment()
    if environment.is_dir():
        yield environment
        for pattern in ("bin", "bin/*", "lib/python*/site-packages", "lib/python*/site-packages/*"):
            yield from (path for path in sorted(environment.glob(pattern)) if path.name != "__pycache__")


def _top(path: Path) -> Path:
    """The checkout or environment that `path` belongs to."""
    return next((place for place in (_environment(), ROOT) if path.is_relative_to(place)), path)


def _mode(path: Path) -> str:
    return f"{path.stat().st_mode & 0o777:04o}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
