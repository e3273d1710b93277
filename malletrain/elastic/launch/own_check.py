"""A job's script is checked beside it: a session says to its launcher which script runs, a thread of it asks the
daemon, has it checked in a process of its own (`confined_check`), and reports what that found. Whatever goes
wrong, training goes on. Where the script makes no step comes the same way. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import malletrain
from malletrain.elastic.launch.confined_check import CheckAnswer, no_answer
from malletrain.wire import messages
from malletrain.wire.codec import one_line
from malletrain.wire.errors import WireError
from malletrain.wire.worker_client import Rejected, TokenUnknown, WorkerClient

log = logging.getLogger("malletrain.elastic")

T = TypeVar("T")

#: Environment variable: the pipe of the launcher that a session writes to.
SCRIPT_TO = "MALLETRAIN_SCRIPT_TO"

#: A pipe holds so much (pipe(7)); a longer command is not said.
MAX_SAID_BYTES = 32 * 1024

#: Files of the script's folder, and entries of a folder of data, that a digest looks at.
MAX_FILES = 1000

#: A check may take so long; some 15 s of an idle node for a small model, ten times that beside training.
CHECK_LIMIT_S = 900.0

#: Of the memory that is left on the node a check may take this share.
MEMORY_SHARE = 0.25

#: Characters of the place at which a script makes no step.
MAX_PLACE = 300

#: How often, and at which intervals, the daemon is asked and told.
TRIES, RETRY_S = 30, 10.0

#: Variables of a pilot, a step or a launcher, which a check has no part in.
_OF_PILOT = ("SLURM", "SBATCH", "SRUN_", "PMI", "MALLETRAIN", "TORCHELASTIC", "OMPI_", "MUNGE")

#: Words in the names of variables that hold secrets.
_SECRETS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY")


@dataclass(frozen=True, slots=True)
class RunningScript:
    """A script as it runs: interpreter, file (an absolute path), arguments, the folder in which it was started, its
    process, and the releases of Python, torch and malletrain."""

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
            if (named := self.path_in(argument)[1]) is not None:
                found.update("\0".join(_looks(named)).encode("utf-8", "replace"))
        return found.hexdigest()[:32]

    def path_in(self, argument: str) -> tuple[str, Path | None]:
        """The file or folder that an argument names, as `data` or `--data=data`, after its option; None where it
        names none."""
        option, equals, named = argument.rpartition("=") if argument.startswith("-") else ("", "", argument)
        path = Path(self.folder) / named
        try:
            return option + equals, path if named and path.exists() else None
        except (OSError, ValueError):  # too long for a name, or no name at all
            return "", None

    def _modules(self) -> Iterator[Path]:
        """Python files that it may import from its own folder: those beside it, and those of packages there."""
        home = Path(self.script).parent
        with contextlib.suppress(OSError):
            modules = sorted(home.glob("*.py"))
            packages = sorted(path.parent for path in home.glob("*/__init__.py"))
            yield from [*modules, *(path for each in packages for path in sorted(each.rglob("*.py")))][:MAX_FILES]


def _looks(path: Path) -> Iterator[str]:
    """Names, sizes and times of change: of a file, or of what lies in a folder."""
    with contextlib.suppress(OSError):
        entries = sorted(path.iterdir())[:MAX_FILES] if path.is_dir() else [path]
        for entry in entries:
            seen = entry.stat()
            yield f"{entry.name} {seen.st_size} {seen.st_mtime_ns}"


def this_script(torch: str, command: Sequence[str] | None = None) -> RunningScript:
    """The script of this process, which runs with this release of torch; or the one that `command` would start from
    here: script and arguments."""
    script, *arguments = sys.argv if command is None else command
    releases = f"python {platform.python_version()}, torch {torch}, malletrain {malletrain.__version__}"
    folder = Path.cwd()
    return RunningScript(sys.executable, str(folder / script), tuple(arguments), str(folder), os.getpid(), releases)


def say(environ: Mapping[str, str], what: RunningScript | str) -> None:
    """Say to the launcher which script runs, or where it makes no step, "" that it goes on. Does nothing where none
    listens."""
    text = json.dumps({"stuck": what} if isinstance(what, str) else asdict(what)).encode() + b"\n"
    if not environ.get(SCRIPT_TO) or len(text) > MAX_SAID_BYTES:
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(environ[SCRIPT_TO], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, text)
        finally:
            os.close(descriptor)


def parse_line(text: bytes) -> RunningScript | str | None:
    """What a session has said: its script, or where that makes no step; None where it is neither."""
    try:
        said: dict[str, Any] = json.loads(text)
        if "stuck" in said:
            return str(said["stuck"])
        return RunningScript(**{**said, "arguments": tuple(said["arguments"])})
    except (ValueError, TypeError, KeyError):
        return None


class BackgroundCheck:
    """Has the script of one pilot checked, if the daemon wants that. `client`: its connection to the daemon."""

    def __init__(self, client: WorkerClient) -> None:
        self._client = client
        listens, self._says = os.pipe2(os.O_CLOEXEC)
        self._listens = os.fdopen(listens, "rb")
        self._ends = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.session_began = False  #: whether a session of the script has been heard

    @property
    def variables(self) -> dict[str, str]:
        """What the script's environment needs, so that its session is heard."""
        return {SCRIPT_TO: f"/proc/{os.getpid()}/fd/{self._says}"}

    def start(self) -> None:
        threading.Thread(target=self._run, name="malletrain-check", daemon=True).start()

    def stop(self) -> None:
        """End the check, if one runs; a node that is to be given back has no time for it. Does not wait."""
        self._ends.set()
        with contextlib.suppress(OSError):
            os.write(self._says, b"\n")
        self._end_process()

    def _end_process(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def _run(self) -> None:
        try:
            running = self._hear()
            if running is None:
                return
            self.session_began = True
            threading.Thread(target=self._hear, name="malletrain-hears", daemon=True).start()
            digest = running.digest()
            if not self._call(lambda: self._client.is_to_check(digest)):
                return
            answer = checked(running, check_environment(environment_of(running.process)), self._began)
            if not self._ends.is_set():
                said = messages.CheckDone(digest, answer.verdict, answer.text)
                self._call(lambda: self._client.report([said]))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no matter of the training
            log.info("the script is not checked: %s", error)

    def _hear(self) -> RunningScript | None:
        """Pass on where the script makes no step, until it says which one it is; None if it is to end before."""
        while not self._ends.is_set():
            line = self._listens.readline(MAX_SAID_BYTES)
            said = parse_line(line)
            if isinstance(said, RunningScript) and not self.session_began:
                return said
            if isinstance(said, str) and not self._ends.is_set():
                self._call(partial(self._client.report, [messages.Stuck(one_line(said, MAX_PLACE))]))
        return None

    def _began(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if self._ends.is_set():
            self._end_process()

    def _call(self, call: Callable[[], T]) -> T | None:
        """What the daemon answers; None if it does not, or has no use for the question."""
        for _ in range(TRIES):
            try:
                return call()
            except Rejected:
                return None
            except TokenUnknown:
                with contextlib.suppress(WireError):
                    self._client.hello()
            except WireError:
                pass
            if self._ends.wait(RETRY_S):
                return None
        return None


def checked(
    running: RunningScript,
    environ: Mapping[str, str],
    began: Callable[[subprocess.Popen[bytes]], None] = lambda process: None,
) -> CheckAnswer:
    """Check a script in a process of its own, with which `began` is called, in this environment."""
    script = Path(running.script)
    if not script.is_file():
        return CheckAnswer("undecided", f"{script.name or 'what runs'} is no file that can be run again")
    with tempfile.TemporaryDirectory(prefix="malletrain-check-", ignore_cleanup_errors=True) as folder:
        bounds = [folder, running.folder, str(CHECK_LIMIT_S), str(int(MEMORY_SHARE * memory_left()))]
        own = {**environ, "TMPDIR": folder, "MPLCONFIGDIR": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled"}
        check = [running.python, "-P", "-m", "malletrain.elastic.launch.confined_check", *bounds]
        check += [running.script, *_absolute(running)]
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        process = subprocess.Popen(check, stdin=null, stdout=pipe, stderr=pipe, env=own, start_new_session=True)
        began(process)
        try:
            said, errors = process.communicate(timeout=CHECK_LIMIT_S + 60.0)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return CheckAnswer("undecided", f"it was not over after {CHECK_LIMIT_S:.0f} s")
    try:
        found = json.loads(said)
        return CheckAnswer(str(found["verdict"]), str(found["text"]))
    except (ValueError, TypeError, KeyError):
        return no_answer(errors)


def check_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a check: the script's, without what is the pilot's, without secrets, without GPUs (their
    memory is the training's), with one thread a process, and with services switched off that keep books of runs."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(_OF_PILOT) and not any(word in name.upper() for word in _SECRETS)
    }
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    no_gpus = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "")
    services = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **threads, **no_gpus, **services}


def environment_of(process: int) -> dict[str, str]:
    """The environment with which a process began (proc(5))."""
    text = Path(f"/proc/{process}/environ").read_bytes().decode("utf-8", "surrogateescape")
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def memory_left() -> int:
    """Bytes that may still be taken on this node, all of which a pilot has."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return 0


def _absolute(running: RunningScript) -> Iterator[str]:
    """The arguments, with paths as they are found from any folder."""
    for argument in running.arguments:
        option, path = running.path_in(argument)
        yield argument if path is None else f"{option}{path}"


def main(arguments: list[str]) -> int:
    """Check a script before it is submitted."""
    import importlib.metadata  # what takes long to import the launcher does without

    running = this_script(importlib.metadata.version("torch"), arguments)
    print(json.dumps({"digest": running.digest(), **checked(running, check_environment(os.environ))._asdict()}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
