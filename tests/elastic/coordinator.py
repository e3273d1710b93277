"""The daemon's half of the protocol, for tests: the real router on a real socket, the real membership, a list as
journal. Workers are real processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from malletrain.domain.decision import LeaveCause, LeavePilot
from malletrain.domain.event import FACTS, Event
from malletrain.loop.membership.next_world import JobTerms, LastWorlds
from malletrain.loop.membership.state import MembershipSettings
from malletrain.script_check.local_coordinator import LocalCoordinator
from scripts.lab.ports import free_port
from tests.elastic import as_worker
from tests.waiting import wait_until
from tests.world import data_of

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SECRET = "credential-for-tests"
JOB = 7
ARRAY = 100


def outside_slurm(**more: str) -> dict[str, str]:
    """The environment of a process that finds this checkout and knows of no job, and `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MALLETRAIN"))}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


class Coordinator(LocalCoordinator):
    """One daemon's worth of membership on `port`."""

    def __init__(
        self,
        port: int,
        terms: JobTerms | None = None,
        settings: MembershipSettings | None = None,
        generations: dict[int, int] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        last = {job: LastWorlds(number) for job, number in (generations or {}).items()}
        super().__init__(SECRET, JOB, terms or JobTerms(), settings or MembershipSettings(), last)
        self.host, self.port = host, port

    def leave(self, task: int, cause: LeaveCause = LeaveCause.SHRINK) -> None:
        pilot = f"{ARRAY}_{task}"
        self.gate.leave(LeavePilot(JOB, pilot, f"node{task}", cause, time.time() + 10, "asked by a test"))

    def seen(self, kind: str) -> list[Event]:
        assert kind in FACTS
        with self.lock:
            return [event for event in self.events if event.kind == kind]

    def wait_seen(self, kind: str) -> Event:
        """The first event of a kind, once there is one."""
        wait_until(lambda: bool(self.seen(kind)), 180, kind)
        return self.seen(kind)[0]

    def told(self, kind: str) -> list[dict[str, Any]]:
        """The data of the events of a kind."""
        return [dict(data_of(event)) for event in self.seen(kind)]

    def history(self) -> str:
        return "\n".join(f"{e.at:.3f} {e.kind} {e.pilot or ''} {e.reason} {dict(data_of(e))}" for e in self.events)

    def wait_world(self, tasks: Sequence[int], seconds: float = 180) -> None:
        wanted = {f"{ARRAY}_{task}" for task in tasks}
        wait_until(lambda: set(self.world()) == wanted, seconds, f"a world of {sorted(wanted)}, not {self.world()}")


#: Importing torch takes seconds of a core: one process does it for all tests, and forks.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    ["torch", "torch._dynamo", "sklearn.datasets", "malletrain.elastic.session", "tests.elastic.as_worker"]
)


def kill_node(pid: int) -> None:
    """As Slurm and a node that fails do: SIGKILL to a process, those it has started, and those started by them."""
    children = [each for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for child in children:
        kill_node(int(child))


class Forked:
    """A forked worker with the part of Popen's interface that tests use."""

    def __init__(self, env: dict[str, str], log: Path, arguments: Sequence[str]) -> None:
        self._process = _forks.Process(target=as_worker.forked, args=(env, str(log), list(arguments)), daemon=True)
        self._process.start()
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float) -> int:
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise AssertionError(f"the worker has not ended within {seconds} s")
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # ended, and its status is on the way
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_ranks(directory: Path, script: Sequence[str], ranks: Sequence[dict[str, str]]) -> tuple[list[int], list[str]]:
    """The script in processes that were started together, each with some variables; their exit statuses, and what
    each printed."""
    (directory / "meeting").mkdir(mode=0o700, parents=True, exist_ok=True)
    given = outside_slurm(
        MALLETRAIN_TEST_DIR=str(directory), MALLETRAIN_MEETING_DIR=str(directory / "meeting"),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(len(ranks)),
    )  # fmt: skip
    logs = [directory / f"rank-{rank}.log" for rank in range(len(ranks))]
    processes = [Forked(given | rank, log, script) for rank, log in zip(ranks, logs, strict=True)]
    try:
        return [process.wait(240) for process in processes], [log.read_text() for log in logs]
    finally:
        for process in processes:
            process.kill()


def run_together(directory: Path, script: Sequence[str], size: int = 2) -> tuple[list[int], str]:
    """The same on one node, as torchrun starts them; all that they printed."""
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)} for rank in range(size)]
    statuses, logs = run_ranks(directory, script, ranks)
    return statuses, "\n".join(logs)


@dataclass
class Pod:
    """Worker processes and pilots of one test. `real`: each worker starts from nothing, as it would in a pilot.
    `places`: processes of a node, as torchrun starts them; but no launcher ends the others when one ends."""

    directory: Path
    real: bool = False
    places: int = 1
    #: By task; where a node has several processes, by (task, place).
    processes: dict[int | tuple[int, int], Forked | subprocess.Popen[bytes]] = field(default_factory=dict)

    def spawn(self, url: str, task: int, script: Sequence[str], restart: int = 0, **environ: str) -> None:
        if self.places > 1 and "LOCAL_RANK" not in environ:
            for number in range(self.places):
                local = {"LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(self.places)}
                self.spawn(url, task, script, restart, **local, **environ)
            return
        env = self._environment(url, task) | {
            "MALLETRAIN_CHECKPOINT_DIR": str(self.directory / "checkpoints"),
            "SLURM_RESTART_COUNT": str(restart),
            **environ,
        }
        place = environ.get("LOCAL_RANK")
        key = task if place is None else (task, int(place))
        path = self.directory / f"worker-{task}.{restart}{'' if place is None else '.' + place}.log"
        if not self.real:
            self.processes[key] = Forked(env, path, script)
            return
        self.processes[key] = self._start("as_worker.py", script, env, path)

    def launch(self, url: str, task: int, *command: str, **environ: str) -> subprocess.Popen[bytes]:
        """A pilot: the launcher with a command, which writes to the log of the worker."""
        more = {"SLURM_SUBMIT_DIR": str(self.directory), "MALLETRAIN_GRACE_S": "20", **environ}
        env, path = self._environment(url, task) | more, self.directory / f"worker-{task}.0.log"
        self.processes[task] = pilot = self._start("launched.py", ["--", *command], env, path)
        return pilot

    def _environment(self, url: str, task: int) -> dict[str, str]:
        return outside_slurm() | {
            "MALLETRAIN_URL": url,
            "MALLETRAIN_JOB": str(JOB),
            "MALLETRAIN_TEST_DIR": str(self.directory),
            "SLURM_JOB_ID": f"{os.getpid()}{task:03}",
            "SLURM_ARRAY_JOB_ID": str(ARRAY),
            "SLURM_ARRAY_TASK_ID": str(task),
            "SLURMD_NODENAME": f"node{task}",
        }

    def _start(
        self, program: str, arguments: Sequence[str], env: dict[str, str], path: Path
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(HERE / program), *arguments]
        with path.open("wb") as log:
            return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

    def begin(
        self, daemon: Coordinator, tasks: Sequence[int], script: Sequence[str], restart: int = 0, **environ: str
    ) -> None:
        """The job's first workers; returns once they are a world."""
        for task in tasks:
            self.spawn(daemon.url, task, script, restart, **environ)
        daemon.wait_world(tasks)

    def grow(self, daemon: Coordinator, tasks: Sequence[int], script: Sequence[str], **environ: str) -> None:
        """Further workers; returns once they are a world with its present members."""
        members = [int(pilot.rpartition("_")[2]) for pilot in daemon.world()]
        for task in tasks:
            self.spawn(daemon.url, task, script, 0, **environ)
        daemon.wait_world([*members, *tasks])

    def finish(self, *tasks: int) -> None:
        """Let slow scripts go, and wait until these have ended well."""
        (self.directory / "go").touch()
        assert [self.wait(task) for task in tasks] == [0] * len(tasks), self.logs()

    def wait_node(self, task: int, seconds: float = 180) -> list[int]:
        """Exit statuses of a node's processes."""
        return [
            process.wait(seconds)
            for key, process in self.processes.items()
            if task == (key[0] if isinstance(key, tuple) else key)
        ]

    def kill(self, task: int | tuple[int, int], number: int = signal.SIGKILL) -> None:
        self.processes[task].send_signal(number)

    def kill_after_a_step(self, task: int | tuple[int, int]) -> None:
        """SIGKILL just after the worker has written a step down: its diary then tells of every step that it gave its
        part to. The script's steps must be slow."""
        who = f"{task}.0" if isinstance(task, int) else f"{task[0]}.0.{task[1]}"
        path = self.directory / f"diary-{who}.jsonl"
        made = path.stat().st_size if path.exists() else 0
        wait_until(lambda: path.exists() and path.stat().st_size > made, 180, f"a step of worker {task}")
        self.kill(task)

    def kill_between_steps(self, task: int | tuple[int, int]) -> None:
        """SIGKILL when all diaries end with the same step. The script's steps must begin slowly, and no member be
        lost before."""

        def ends() -> list[str]:
            return [path.read_text()[-400:].rpartition('{"step": ')[2].split(",")[0] for path in diaries()]

        def diaries() -> list[Path]:
            return sorted(self.directory.glob("diary-*.jsonl"))

        before = ends()
        wait_until(
            lambda: len(diaries()) == len(self.processes) and len(set(ends())) == 1 and ends() != before,
            180,
            "the same step of all",
        )
        self.kill(task)

    def wait(self, task: int, seconds: float = 180) -> int:
        """The exit status of a worker; of a node's processes, which all have it."""
        (status,) = set(self.wait_node(task, seconds))
        return status

    def log(self, task: int, restart: int = 0) -> str:
        return (self.directory / f"worker-{task}.{restart}.log").read_text()

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text()}" for path in sorted(self.directory.glob("worker-*.log"))
        )

    def dump_stacks(self) -> None:
        """Let every worker that lives write where its threads are into its log."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                kill_node(process.pid)
        for process in self.processes.values():
            process.wait(60)


@contextlib.contextmanager
def running(
    directory: Path,
    terms: JobTerms | None = None,
    *,
    real: bool = False,
    places: int = 1,
    host: str = "127.0.0.1",
    **settings: float,
) -> Iterator[tuple[Coordinator, Pod]]:
    coordinator = Coordinator(free_port(), terms or JobTerms(), MembershipSettings(**settings), host=host)
    pod = Pod(directory, real, places)
    coordinator.start()
    try:
        yield coordinator, pod
    except BaseException:
        pod.dump_stacks()
        job = coordinator.membership.job(JOB)
        for worker in list(job.workers.values()) if job else ():
            print(
                f"{worker.id}: {worker.phase} seen {time.monotonic() - worker.last_seen:.1f} s ago {worker.directive}"
            )
        print("exit statuses:", {task: process.poll() for task, process in pod.processes.items()})
        print(f"{len(coordinator.gate._waiting)} polls wait, due {coordinator.membership.due()}")
        print(pod.logs())
        print(coordinator.history())
        raise
    finally:
        pod.end()
        coordinator.stop()


@contextlib.contextmanager
def another(
    generations: dict[int, int] | None = None, port: int | None = None, terms: JobTerms | None = None
) -> Iterator[Coordinator]:
    """A daemon beside the first one, or after it, whose workers go on with it."""
    daemon = Coordinator(port or free_port(), terms or JobTerms(), generations=generations or {})
    daemon.start()
    try:
        yield daemon
    except BaseException:
        print(daemon.history())
        raise
    finally:
        daemon.stop()


def last_generation(daemon: Coordinator) -> dict[int, int]:
    """What a restarted daemon reads of the job in its journal."""
    return {JOB: max(data["generation"] for data in daemon.told("generation"))}
