"""Which script a session runs, and where it makes no step: said to its launcher; and the digest by which a check
counts for it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import malletrain

#: Environment variable: the pipe of the launcher that a session writes to.
SCRIPT_TO = "MALLETRAIN_SCRIPT_TO"

#: A pipe holds so much (pipe(7)); a longer command is not said.
MAX_SAID_BYTES = 32 * 1024

#: Files of the script's folder, and entries of a folder of data, that a digest looks at.
MAX_FILES = 1000


@dataclass(frozen=True, slots=True)
class RunningScript:
    """A script as it runs.

    Attributes:
        python: the interpreter.
        script: its file, an absolute path.
        arguments: as given.
        folder: in which it was started.
        process: its process.
        releases: of Python, torch and malletrain.
    """

    python: str
    script: str
    arguments: tuple[str, ...]
    folder: str
    process: int
    releases: str

    def digest(self) -> str:
        """Of all that decides how it trains: the script and the modules beside it, arguments, data and releases."""
        found = hashlib.sha256(json.dumps([self.arguments, self.releases]).encode())
        for path in (Path(self.script), *self._modules()):
            found.update(f"\0{path.name}\0".encode("utf-8", "replace"))
            with contextlib.suppress(OSError):
                found.update(path.read_bytes())
        for argument in self.arguments:
            if (named := self.path_in(argument)) is not None:
                found.update("\0".join(_looks(named)).encode("utf-8", "replace"))
        return found.hexdigest()[:32]

    def path_in(self, argument: str) -> Path | None:
        """The file or folder that an argument names, as `data` or `--data=data`; None where it names none."""
        named = argument.rpartition("=")[2] if argument.startswith("-") else argument
        path = Path(self.folder) / named
        try:
            return path if named and path.exists() else None
        except (OSError, ValueError):  # too long for a name, or no name at all
            return None

    def _modules(self) -> Iterator[Path]:
        """Python files that it may import from its own folder: those beside it, and those of packages there."""
        home = Path(self.script).parent
        with contextlib.suppress(OSError):
            beside = sorted(home.glob("*.py"))
            packages = sorted(path.parent for path in home.glob("*/__init__.py"))
            yield from [*beside, *(path for each in packages for path in sorted(each.rglob("*.py")))][:MAX_FILES]


def this_script(torch: str, command: Sequence[str] | None = None) -> RunningScript:
    """The script of this process, which runs with this release of torch; or the one that `command` would start from
    here: script and arguments."""
    script, *arguments = sys.argv if command is None else command
    releases = f"python {platform.python_version()}, torch {torch}, malletrain {malletrain.__version__}"
    folder = Path.cwd()
    return RunningScript(sys.executable, str(folder / script), tuple(arguments), str(folder), os.getpid(), releases)


def say(environ: Mapping[str, str], running: RunningScript) -> None:
    """Say to the launcher which script runs. Does nothing where there is none that listens."""
    _say(environ, asdict(running))


def say_stuck(environ: Mapping[str, str], place: str) -> None:
    """Say to the launcher where the script makes no step; "" that it goes on."""
    _say(environ, {"stuck": place})


def _say(environ: Mapping[str, str], said: Mapping[str, Any]) -> None:
    text = json.dumps(said).encode() + b"\n"
    if not environ.get(SCRIPT_TO) or len(text) > MAX_SAID_BYTES:
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(environ[SCRIPT_TO], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, text)
        finally:
            os.close(descriptor)


def heard(text: bytes) -> RunningScript | None:
    """What a session has said; None where it is nothing of that kind."""
    try:
        said: dict[str, Any] = json.loads(text)
        return RunningScript(**{**said, "arguments": tuple(said["arguments"])})
    except (ValueError, TypeError, KeyError):
        return None


def heard_stuck(text: bytes) -> str | None:
    """Where the script makes no step, as it has said; None where it has said something else."""
    try:
        place = json.loads(text)["stuck"]
    except (ValueError, TypeError, KeyError):
        return None
    return place if isinstance(place, str) else None


def _looks(path: Path) -> Iterator[str]:
    """Names, sizes and times of change: of a file, or of what lies in a folder."""
    with contextlib.suppress(OSError):
        entries = sorted(path.iterdir())[:MAX_FILES] if path.is_dir() else [path]
        for entry in entries:
            seen = entry.stat()
            yield f"{entry.name} {seen.st_size} {seen.st_mtime_ns}"
