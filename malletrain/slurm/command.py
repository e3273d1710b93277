"""Running Slurm's commands: with a time-out, a bounded answer, and one clear line when it goes wrong."""

from __future__ import annotations

import os
import re
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from malletrain.domain.errors import ClusterUnavailable, InvalidInput

#: An answer larger than this is not what was asked for (100,000 nodes of scontrol take 100 MB).
MAX_OUTPUT_BYTES = 256 * 1024 * 1024

#: Error texts that Slurm's commands print with exit status 0 too (seen on 17.11 to 26.05).
_UNREACHABLE = re.compile(
    "Unable to contact slurm(?: controller|ctld)|Socket timed out|Zero Bytes were transmitted|Connection refused"
)
_ERROR = re.compile(
    f"{_UNREACHABLE.pattern}|slurm_load_|Protocol authentication error|Munge decode failed|fatal:|Invalid user id|"
    "Authentication failure"
)

#: Slurm's own commands wait so long twice for slurmctld by default (MessageTimeout, slurm.conf(5)), then give up.
TIMEOUT_S = 20.0

#: A longer error of Slurm's is cut to so many characters.
MAX_ERROR_CHARS = 8000


def is_unreachable(error: str) -> bool:
    """Whether an error says that slurmctld gave no answer, as against a refusal."""
    return _UNREACHABLE.search(error) is not None


@contextmanager
def readable(who: str = "Slurm") -> Iterator[None]:
    """Read an answer of `who` in here: where it cannot be read, `InvalidInput` becomes `ClusterUnavailable`."""
    try:
        yield
    except InvalidInput as error:
        raise ClusterUnavailable(f"{who}'s answer cannot be right: {error}") from error


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command printed. `error` is empty when it succeeded, else its one-line reason."""

    output: str
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


class Commands:
    """Runs Slurm's commands in one `environment`: SLURM_CONF and PATH come from there and nowhere else.

    Args:
        timeout_s: after so long a command and its children are killed.
        on_command: called after each command with its name (`scontrol update`), seconds, and whether it answered.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        elapsed: Callable[[], float] = time.monotonic,
        on_command: Callable[[str, float, bool], None] | None = None,
    ) -> None:
        inherited = dict(os.environ if environment is None else environment)
        # SQUEUE_*, SINFO_*, SCONTROL_* and SBATCH_* change formats and filters behind the caller's back.
        kept = {k: v for k, v in inherited.items() if not k.startswith(("SQUEUE_", "SINFO_", "SCONTROL_", "SBATCH_"))}
        kept.pop("SLURM_CLUSTERS", None)
        if kept.get("SLURM_CONF"):
            kept["SLURM_CONF"] = str(Path(kept["SLURM_CONF"]).absolute())
        self._environment = kept | {
            "LC_ALL": "C",
            "SLURM_TIME_FORMAT": "%s",  # Unix seconds: no zone, no summer time
            "SLURM_BITSTR_LEN": "0",  # whole task lists; 64 characters otherwise
        }
        self._timeout_s = timeout_s
        self._elapsed = elapsed
        self._on_command = on_command
        self._end_at: float | None = None
        self.last: Sequence[str] = ()  #: the last command, for a message about it

    def end_within(self, seconds: float) -> None:
        """Begin no command any more, and give those that run so long to end. From any thread."""
        self._end_at = self._elapsed() + seconds

    @property
    def environment(self) -> Mapping[str, str]:
        return self._environment

    @property
    def timeout_s(self) -> float:
        return self._timeout_s

    @staticmethod
    def mark() -> str:
        """A separator that no job's name can hold: made up anew for each call."""
        return "\x1e" + secrets.token_hex(4) + "\x1e"

    def ask(self, argv: Sequence[str], timeout_s: float | None = None) -> str:
        """The output of a command that only reads. Raises `ClusterUnavailable`: it could not be run, took too long,
        or failed."""
        answer = self.run(argv, timeout_s)
        if not answer.ok:
            raise ClusterUnavailable(f"{argv[0]}: {answer.error}")
        return answer.output

    def run(self, argv: Sequence[str], timeout_s: float | None = None) -> CommandResult:
        """Run `argv`; a failure of Slurm's own is in the answer's `error`. Raises `ClusterUnavailable`: it could not
        be run, took too long, or printed without end."""
        self.last = argv
        limit = self._timeout_s if timeout_s is None else timeout_s
        start = self._elapsed()
        if self._end_at is not None:
            raise ClusterUnavailable(f"{argv[0]}: not run, the daemon is ending")
        try:
            # In /: others may write to the working folder.
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            why = f"{argv[0]}: cannot be run ({error.strerror}); install Slurm's commands or set PATH"
            raise ClusterUnavailable(why) from error
        try:
            output, errors = _communicate(process, lambda: self._left(start + limit))
        except TimeoutError:
            if self._elapsed() < start + limit:
                raise ClusterUnavailable(f"{argv[0]}: given up after so long, the daemon is ending") from None
            self._report(argv, limit, well=False)
            up = "slurmdbd up?" if argv[0] in ("sacctmgr", "sacct") else "slurmctld up? try `scontrol ping`"
            why = f"{argv[0]}: no answer within {limit:g} s; is {up}"
            raise ClusterUnavailable(why) from None
        except OverflowError:
            most = f"{MAX_OUTPUT_BYTES // 2**20} MiB"
            raise ClusterUnavailable(f"{argv[0]}: more than {most} of output, given up") from None
        finally:
            _end(process)
        answer = CommandResult(output, _failure(process.returncode, output, errors))
        self._report(argv, self._elapsed() - start, well=answer.ok)
        return answer

    def _left(self, deadline: float) -> float:
        """Seconds until a command is given up."""
        ending = self._end_at
        return (deadline if ending is None else min(deadline, ending)) - self._elapsed()

    def _report(self, argv: Sequence[str], seconds: float, *, well: bool) -> None:
        if self._on_command is not None:
            verbs = [word for word in argv[1:3] if word.isalpha()] if argv[0] == "scontrol" else []
            self._on_command(" ".join([argv[0], *verbs[:1]]), seconds, well)


def _communicate(process: subprocess.Popen[bytes], left_s: Callable[[], float]) -> tuple[str, str]:
    """Both streams to their ends, bounded in time and size. `left_s` may shrink at any moment."""
    taken: dict[str, bytearray] = {"out": bytearray(), "err": bytearray()}
    with selectors.DefaultSelector() as selector:
        for stream, name in ((process.stdout, "out"), (process.stderr, "err")):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, name)
        while selector.get_map():
            left = left_s()
            if left <= 0:
                raise TimeoutError
            for key, _ in selector.select(min(left, 0.25)):  # to see a deadline or a shutdown soon
                chunk = os.read(key.fd, 1 << 20)
                if not chunk:
                    selector.unregister(key.fileobj)
                taken[key.data] += chunk
                if len(taken[key.data]) > MAX_OUTPUT_BYTES:
                    raise OverflowError
    try:
        process.wait(max(0.0, left_s()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return taken["out"].decode("utf-8", "replace"), taken["err"].decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the command and its children, and close its pipes."""
    if process.poll() is None:
        with suppress(ProcessLookupError):  # it ended just now
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _failure(status: int, output: str, errors: str) -> str:
    """The reason of a failure in one line, or nothing."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    message = "; ".join(dict.fromkeys(lines))[:MAX_ERROR_CHARS]
    if status != 0:
        return message or output.strip()[:200] or f"exit status {status}"
    if any(map(_ERROR.search, lines)):
        return message
    head = output[:200].lstrip()
    return head.splitlines()[0] if _ERROR.match(head) else ""
