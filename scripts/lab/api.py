"""A lab as a Python object, for tests, demo and benches."""

import os
import re
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from scripts.lab import cluster, namespace, processes, record
from scripts.lab.conf import Change, LabConfig, changed
from scripts.lab.errors import DeadlineError, LabError
from scripts.lab.layout import Layout, publish
from scripts.lab.record import Record
from scripts.lab.users import Identity

T = TypeVar("T")

COMMAND_TIMEOUT_S = 120.0  # a Slurm command blocks for 9 s or more while slurmctld is down
POLL_S = 0.05


def _start_order(daemon: str) -> int:
    return ("munged", "mariadbd", "slurmdbd", "slurmctld", daemon).index(daemon)


class Lab:
    """A running lab. `with Lab.up(path, LabConfig(nodes=4)) as lab:` takes it down at the end, whatever happens."""

    def __init__(self, layout: Layout, known: Record) -> None:
        self._layout = layout
        self._record = known
        self._killed: set[str] = set()

    @classmethod
    def up(
        cls, path: Path | str, config: LabConfig | None = None, deadline_s: float | None = None, outlive: bool = False
    ) -> "Lab":
        """Brings a fresh lab up in directory `path`; all its nodes are idle then. Raises as `cluster.up` does.

        The lab goes down with this process at the latest, even if that is killed, unless it shall `outlive` it.
        """
        ends_with = None if outlive else os.getpid()
        return cls(Layout.of(path), cluster.up(path, config or LabConfig(), deadline_s, ends_with))

    @classmethod
    def at(cls, path: Path | str) -> "Lab":
        """The lab that is up in directory `path`; LabError if there is none."""
        layout = Layout.of(path)
        known = record.read(layout)
        if known is None or not known.processes:
            raise LabError(f"{layout.root}: no lab here: bring one up first (slurm-lab up {layout.root})")
        return cls(layout, known)

    @property
    def path(self) -> Path:
        """The lab's directory."""
        return self._layout.root

    @property
    def log(self) -> Path:
        """The directory of the daemons' logs."""
        return self._layout.log

    @property
    def output(self) -> Path:
        """Where `submit` sends job output, as JOBID.txt; any user may write here."""
        return self._layout.output

    @property
    def munge_socket(self) -> Path:
        return self._layout.munge_socket

    @property
    def nodes(self) -> tuple[str, ...]:
        """Node names, in order."""
        return self._record.nodes

    @property
    def users(self) -> tuple[str, ...]:
        """The plain users whose jobs this lab can run; empty without LabConfig.users."""
        return self._record.users

    @property
    def profile(self) -> str:
        return self._record.profile

    @property
    def release(self) -> str | None:
        """The Debian release whose Slurm runs; None for the machine's own."""
        return self._record.release

    @property
    def daemons(self) -> tuple[str, ...]:
        """Names for `kill`, `start` and `is_running`."""
        return tuple(p.name for p in self._record.processes if p.name != "warden")

    @property
    def env(self) -> dict[str, str]:
        """The caller's environment, pointed at this lab, without variables of any other Slurm."""
        foreign = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCONTROL_", processes.MARK)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        lab = cluster.environment(self._layout, self._record.toolchain)
        # The caller's own programs come first (a virtual environment), but for the Slurm of another release.
        own = [clean["PATH"]] if clean.get("PATH") else []
        parts = [lab["PATH"], *own] if self._record.toolchain.plugin_directory else [*own, lab["PATH"]]
        return {**clean, **lab, "PATH": ":".join(dict.fromkeys(":".join(parts).split(":")))}

    def env_for(self, user: str | None) -> dict[str, str]:
        """`env` as `user` has it: HOME, USER and LOGNAME are theirs (HOME is in the lab's directory)."""
        if user is None:
            return self.env
        home = self._layout.home / user
        own = {"HOME": str(home if home.is_dir() else self._layout.root), "USER": user, "LOGNAME": user}
        return {**self.env, **own}

    def run(
        self,
        args: Sequence[str | Path],
        user: str | None = None,
        timeout: float = COMMAND_TIMEOUT_S,
        check: bool = True,
        input: str | None = None,
        cwd: Path | str | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command against this lab, as `user` where one is given (root only), and captures its text.

        `check`: LabError on a non-zero status, with the command's last words; DeadlineError after `timeout` seconds.
        The working directory is the user's home in the lab, or the lab's output directory.
        """
        command = [str(a) for a in args]
        try:
            with self.popen(
                command, user, cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process:
                try:
                    out, err = process.communicate(input, timeout)
                except BaseException:
                    process.kill()
                    raise
        except subprocess.TimeoutExpired as error:
            raise DeadlineError(f"{' '.join(command)}: no answer within {timeout:g} s") from error
        if check and process.returncode:
            last = (err.strip() or out.strip() or "no message").splitlines()[-1]
            raise LabError(f"{' '.join(command)}: exit status {process.returncode}: {last}")
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def popen(
        self,
        args: Sequence[str | Path],
        user: str | None = None,
        cwd: Path | str | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> "subprocess.Popen[str]":
        """Starts a command against this lab and does not wait for it; ending it is the caller's task."""
        command = [str(a) for a in args]
        if cwd is None:
            home = self._layout.home / user if user else None
            cwd = home if home is not None and home.is_dir() else self._layout.output
        who = Identity.of(user) if user else None
        if who is not None and who.uid != os.geteuid():
            if os.geteuid() != 0:
                raise LabError(f"only root can run commands as {user}")
            command = namespace.as_user(who, command)
        return subprocess.Popen(
            command, env=self.env_for(user), cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, text=True
        )

    def submit(self, command: str, *options: str, user: str | None = None) -> int:
        """Submits shell text `command` with sbatch `options` ("--nodes=2", "-p", "harvest"); returns the job id.

        Output goes to `output`/JOBID.txt unless the options say otherwise.
        """
        args = ["sbatch", "--parsable", f"--output={self.output}/%j.txt", *options, f"--wrap={command}"]
        return int(self.run(args, user).stdout.strip().split(";")[0])

    def job(self, job_id: int | str) -> dict[str, str]:
        """The fields of `scontrol show job` (an array's first line); LabError for a job that Slurm has forgotten."""
        text = self.run(["scontrol", "show", "job", "-o", str(job_id)]).stdout.splitlines()[0]
        return dict(re.findall(r"(?:^| )([A-Za-z:/_]+)=(\S*)", text))

    def job_state(self, job_id: int | str) -> str:
        """JobState of a job, such as PENDING, RUNNING or COMPLETED."""
        return self.job(job_id)["JobState"]

    def node_states(self) -> dict[str, str]:
        """State of each node, as `sinfo -o %T` says it: idle, allocated, mixed, completing, down*, ..."""
        lines = self.run(["sinfo", "-h", "-N", "-p", "batch", "-o", "%N %T"]).stdout.splitlines()
        return dict(line.split() for line in lines)

    def wait_for(self, condition: Callable[[], T], deadline_s: float, what: str = "") -> T:
        """Asks `condition` until it returns something true, and returns that; DeadlineError after `deadline_s` s."""
        end = time.monotonic() + deadline_s
        while not (value := condition()):
            if time.monotonic() > end:
                name = what or getattr(condition, "__name__", "condition")
                raise DeadlineError(f"{name}: not so within {deadline_s:g} s:{cluster.last_lines(self._layout)}")
            time.sleep(POLL_S)
        return value

    def wait_for_state(self, job_id: int | str, *states: str, deadline_s: float = 120) -> str:
        """Waits until the job is in one of `states`; returns that state."""
        return self.wait_for(
            lambda: state if (state := self.job_state(job_id)) in states else "",
            deadline_s,
            f"job {job_id} {' or '.join(states)}",
        )

    def clear(self, deadline_s: float = 120) -> None:
        """Cancels all jobs, deletes reservations, resumes nodes; returns when every node is idle: a clean lab.

        Daemons that ended are started again; LabError at once, with their last words, for one that ends during this.
        """
        self._start_ended()
        for name in re.findall(r"^ReservationName=(\S+)", self.run(["scontrol", "show", "res", "-o"]).stdout, re.M):
            self.run(["scontrol", "delete", f"ReservationName={name}"])

        def empty() -> bool:
            away = [
                n for n, state in self.node_states().items() if re.search("drain|down|fail|maint|boot|[@^]", state)
            ]
            if away:  # one may have come back by itself since
                self.run(["scontrol", "update", f"NodeName={','.join(away)}", "State=RESUME"], check=False)
            # %F is the id of a whole array: its tasks need not be named one by one.
            left = sorted(set(self.run(["squeue", "-h", "-o", "%F"]).stdout.split()))
            if left:
                self.run(["scancel", *left], check=False)  # one may have ended since
            self._check_daemons()
            return not left and set(self.node_states().values()) == {"idle"}

        self.wait_for(empty, deadline_s, "an empty cluster")

    @contextmanager
    def changed(self, change: Change, *, restart: bool = False) -> Iterator[None]:
        """The lab under another configuration within the block; emptied, and as it was, after it.

        By `scontrol reconfigure`, or by a restart of slurmctld and every slurmd for what that does not change
        (SelectType, PreemptType, ...). A fault of the new configuration raises LabError; the old one is back then.
        """
        former = self._layout.slurm_conf.read_text()
        self._record = replace(self._record, files=tuple({*self._record.files, *change.files}))
        record.write(self._layout, self._record)
        kept = {name: self._text_of(name) for name in change.files}
        try:
            self._configure(changed(former, change), change.files, restart)
        except LabError:
            self._configure(former, kept, restart)
            raise
        try:
            yield
        finally:
            self.clear()
            self._configure(former, kept, restart)

    def _text_of(self, name: str) -> str | None:
        path = self.path / name
        return path.read_text() if path.exists() else None

    def _configure(self, text: str, files: Mapping[str, str | None], restart: bool) -> None:
        """Puts the lab under this configuration; returns once every slurmd has read it and its node answers."""
        log_sizes = {name: self._daemon_log(name).stat().st_size for name in self._slurmds}
        for name, content in files.items():
            if content is not None:
                publish(self.path / name, content)
        publish(self._layout.slurm_conf, text)
        for name, content in files.items():
            if content is None:  # slurm.conf names it no longer
                (self.path / name).unlink()
        self._start_ended()
        if restart:
            self.restart()
        else:
            self.run(["scontrol", "reconfigure"])  # returns before any slurmd has read the files
        gone = re.compile("unk|down|[*]")

        def ready() -> bool:
            self._check_daemons()
            for name, size in list(log_sizes.items()):
                if self._has_read_configuration(name, size):
                    del log_sizes[name]
            # Jobs may run on: a node is there again when slurmd has answered.
            return not log_sizes and not any(map(gone.search, self.node_states().values()))

        self.wait_for(ready, 60, "slurmds that have read slurm.conf, and nodes that answer")

    @property
    def _slurmds(self) -> list[str]:
        return [name for name in self.daemons if name.startswith("slurmd.")]

    def _daemon_log(self, daemon: str) -> Path:
        return self.log / f"{daemon}.out"

    def _has_read_configuration(self, slurmd: str, since_bytes: int) -> bool:
        """Whether this slurmd has set itself up by slurm.conf since its log had that size."""
        with self._daemon_log(slurmd).open("rb") as log:
            log.seek(since_bytes)
            return b"CPU frequency setting" in log.read()

    def _start_ended(self) -> None:
        """Starts what had ended, in the order of `up`. LabError where one ends again."""
        ended = [name for name in self.daemons if not self.is_running(name)]
        for name in sorted(ended, key=_start_order):
            if name not in self._killed:
                warnings.warn(f"lab {self.path}: {name} had ended:{self._last_words(name)}", stacklevel=3)
            self.start(name)
            if name == "slurmctld":  # a slurmd registers once: before slurmctld listens, its node stays unknown
                self._wait_for_controller()

    def _wait_for_controller(self) -> None:
        def answers() -> bool:
            self._check_daemons()
            return self.run(["scontrol", "ping"], check=False).returncode == 0

        self.wait_for(answers, 60, "slurmctld")

    def _check_daemons(self) -> None:
        """LabError where a daemon has ended that was not killed by `kill`."""
        for name in self.daemons:
            if name not in self._killed and not self.is_running(name):
                raise LabError(f"{name} ended:{self._last_words(name)}")

    def _last_words(self, daemon: str) -> str:
        return "\n  ".join(["", *self._daemon_log(daemon).read_text(errors="replace").splitlines()[-4:]])

    def restart(self, stop_limit_s: float = 30) -> None:
        """Restarts slurmctld and every slurmd, with the state that they saved; returns when slurmctld answers.

        One that has not ended `stop_limit_s` seconds after SIGTERM is killed with a warning, as systemd does
        (TimeoutStopSec): a slurmctld 24.11 was seen to hang there.
        """
        daemons = [name for name in self.daemons if name.startswith("slurm") and name != "slurmdbd"]
        for name in daemons:
            if self.is_running(name):
                self.kill(name, signal.SIGTERM)
        for name in sorted(daemons, key=_start_order):
            try:
                self._wait_end(name, stop_limit_s)
            except DeadlineError as error:
                warnings.warn(f"lab {self.path}: killed: {error}", stacklevel=2)
                self.kill(name)
            self.start(name)
            if name == "slurmctld":
                self._wait_for_controller()

    def kill(self, daemon: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signals one daemon ("slurmctld", "slurmd.n000", "munged", "slurmdbd", "mariadbd"): a fault to survive."""
        if not processes.send(self._record.process(daemon), number):
            raise LabError(f"{daemon} does not run")
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._killed.add(daemon)
        if number == signal.SIGKILL:  # which no process can put off
            self._wait_end(daemon)

    def start(self, daemon: str) -> None:
        """Starts a daemon that was killed again, with the state it had saved."""
        if self.is_running(daemon):
            raise LabError(f"{daemon} runs already")
        self._record = cluster.start(self._layout, self._record, daemon)
        self._killed.discard(daemon)
        if daemon == "munged":  # the others end at once without it
            self.wait_for(self.munge_socket.exists, 30, "munged's socket")

    def _wait_end(self, daemon: str, deadline_s: float = 120) -> None:
        self.wait_for(lambda: not self.is_running(daemon), deadline_s, f"the end of {daemon}")

    def is_running(self, daemon: str) -> bool:
        """Whether the daemon runs now."""
        return processes.alive(self._record.process(daemon))

    def down(self, keep_logs: bool = False) -> None:
        """Ends the lab and removes what it made; idempotent."""
        cluster.down(self.path, keep_logs)

    def __enter__(self) -> "Lab":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()
