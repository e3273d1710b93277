"""Bringing a private Slurm up and down: munged, slurmctld and one slurmd a node, all on the loopback interface
unless the nodes have addresses of their own."""

import contextlib
import fcntl
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from scripts.lab import accounting, conf, namespace, ports, processes, record, users
from scripts.lab.conf import LabConfig
from scripts.lab.errors import DeadlineError, LabError, UsageError
from scripts.lab.layout import Layout, publish
from scripts.lab.packages import Toolchain, host_release, host_toolchain, missing_packages
from scripts.lab.processes import Process
from scripts.lab.record import Record
from scripts.lab.releases import release_toolchain

ENTRY = Path(__file__).resolve().parent.parent / "slurm-lab"
END_GRACE_S = 1.0  # what jobs and daemons get between SIGTERM and SIGKILL; all their state is thrown away
END_DEADLINE_S = 20.0


def up(
    directory: Path | str, config: LabConfig, deadline_s: float | None = None, ends_with: int | None = None
) -> Record:
    """Brings a fresh lab up in `directory` and returns when all its nodes are idle.

    `directory` must not exist, be empty, or hold a lab that is down. `deadline_s` defaults to 120 s, and a tenth of a
    second a node. `ends_with`: a process at whose end, however it comes, the lab goes down by itself. On any failure
    all is taken down again but the logs, and the error quotes them. UsageError on a request that cannot be met here,
    with nothing started; DeadlineError, LabError otherwise.
    """
    layout = Layout.of(directory)
    check(config)
    toolchain = _toolchain(config)
    made_root = _claim(layout)
    with _locked(layout):
        former = record.read(layout)
        if former is not None and owned(layout, former):
            raise LabError(f"{layout.root}: a lab is up here: take it down first (slurm-lab down {layout.root})")
        if former is not None:
            made_root = former.made_root
        _remove(layout, keep_logs=False, files=former.files if former else ())
        try:
            initial = Record(made_root, files=tuple(name for name, _ in config.files))
            record.write(layout, initial)
            if config.users:
                users.check_reachable(layout.root)
                if toolchain.plugin_directory is not None:
                    users.check_reachable(toolchain.plugin_directory)
                users.ensure(users.TEST_USERS)
            if ends_with is not None:
                initial = replace(initial, ends_with=_process(ends_with))
            bringing = _Bringing(layout, config, toolchain, initial)
            return bringing.up(deadline_s or 120 + config.nodes / 10)
        except BaseException as error:
            _take_down(layout, isinstance(error, LabError) and not isinstance(error, UsageError), made_root)
            raise


def check(config: LabConfig) -> None:
    """UsageError where a lab of this kind cannot be brought up here, whatever gets installed. Makes nothing."""
    if config.users:
        users.check_rights()
        namespace.check()


def down(directory: Path | str, keep_logs: bool = False) -> None:
    """Ends all that belongs to the lab in `directory` and removes what it made; does nothing where there is none.

    Works on a half-made lab, and after its daemons were killed. LabError if a process cannot be ended.
    """
    layout = Layout.of(directory)
    if not layout.state_file.exists():
        return
    if os.geteuid() not in (0, owner := layout.state_file.stat().st_uid):
        raise UsageError(f"{layout.root}: user {owner} brought this lab up: take it down as that user, or as root")
    with _locked(layout):
        known = record.read(layout)
        _take_down(layout, keep_logs, made_root=known is not None and known.made_root)


def owned(layout: Layout, known: Record | None) -> list[Process]:
    """The lab's processes that run now: those on record, those that carry its mark, its jobs, and their children."""
    spared = processes.ancestry()  # this may be the lab's own warden
    recorded = [p for p in (known.processes if known else ()) if p.pid not in spared and processes.alive(p)]
    found = processes.belonging(processes.sight_all(), layout, spared)
    have = {p.pid for p in found}
    return [*found, *(p for p in recorded if p.pid not in have)]


def environment(layout: Layout, toolchain: Toolchain) -> dict[str, str]:
    """The variables a command needs to speak to this lab."""
    return {
        "SLURM_CONF": str(layout.slurm_conf),
        "MUNGE_SOCKET": str(layout.munge_socket),
        "PATH": toolchain.path,
    }


def start(layout: Layout, known: Record, name: str) -> Record:
    """Starts the daemon `name` again, as `up` did ("slurmctld", "slurmd.n000", ...), and records it."""
    process = _spawn(layout, known, name)
    changed = known.having(process)
    record.write(layout, changed)
    return changed


# What every fresh daemon says: no help to someone who looks for what went wrong.
_NOISE = ("state file", "state save file", "pmix", "MailProg", "in the process of loading")


def last_lines(layout: Layout, count: int = 8) -> str:
    """What the daemons' logs last said of errors; where they said nothing of any, slurmctld's last lines."""
    said = {
        log.name.removesuffix(".out"): log.read_text(errors="replace").splitlines()
        for log in sorted(layout.log.glob("*.out"))
    }
    bad = [
        f"{name}: {line}"
        for name, lines in said.items()
        for line in lines
        if re.search("error|fatal", line, re.IGNORECASE) and not any(noise in line for noise in _NOISE)
    ]
    telling = bad or [f"slurmctld: {line}" for line in said.get("slurmctld", [])]
    return "\n  ".join(["", *telling[-count:]]) if telling else " (the logs are empty)"


class _Bringing:
    """One `up` in progress: each step writes what it started to the record before the next one begins."""

    def __init__(self, layout: Layout, config: LabConfig, toolchain: Toolchain, initial: Record) -> None:
        self.layout, self.config = layout, config
        self.record = replace(
            initial,
            nodes=config.node_names,
            profile=config.profile,
            release=config.release,
            accounting=config.accounting,
            users=users.TEST_USERS if config.users else (),
            namespaces=config.addresses.namespaces if config.addresses else (),
            toolchain=toolchain,
        )

    def up(self, deadline_s: float) -> Record:
        self.end = time.monotonic() + deadline_s
        _make_directories(self.layout, self.config)
        reservation = ports.reserve(self.config.port_count, str(self.layout.root))
        try:
            self.record = replace(self.record, ports=reservation.ports)
            self._write_files()
            # The warden keeps the lab's ports reserved, even while a daemon is down.
            self._start("warden", reservation.descriptors)
        finally:
            reservation.close()
        self._start("munged")
        self._until("munged", "makes its socket", self.layout.munge_socket.exists)
        if self.config.accounting:
            self._start("mariadbd")
            self._until("mariadbd", "answers", lambda: accounting.database_ready(self.layout, self.record.toolchain))
            accounting.create_database_user(self.layout, self.record.toolchain)
            self._start("slurmdbd")
            self._listens("slurmdbd", self.record.ports[1])
            accounting.create_associations(self.layout, self.record.toolchain, self.config)
        self._start("slurmctld")
        self._listens("slurmctld", self.record.ports[0])
        for node in self.config.daemon_nodes:
            self._start(f"slurmd.{node}", write=False)
        record.write(self.layout, self.record)
        self._until("slurmctld", "shows every node idle", self._all_idle, pause_s=0.05)
        return self.record

    def _write_files(self) -> None:
        layout, config = self.layout, self.config
        layout.munge_key.write_bytes(os.urandom(128))
        layout.munge_key.chmod(0o400)
        host = _host(self.record.toolchain)
        publish(layout.slurm_conf, conf.slurm_conf(config, layout, self.record.ports, host))
        publish(layout.root / "cgroup.conf", conf.cgroup_conf())
        if config.gpus:
            devices = _make_devices(layout, config.gpus)
            publish(layout.root / "gres.conf", conf.gres_conf(config, layout, devices))
        for name, seconds in (("prolog", config.prolog_seconds), ("epilog", config.epilog_seconds)):
            publish(layout.root / "scripts" / name, conf.sleep_script(seconds), 0o755)
        for name, text in config.files:
            publish(layout.root / name, text)
        if config.accounting:
            accounting.write_files(layout, self.record.toolchain, self.record.ports[1], host.user)

    def _start(self, name: str, keep_open: tuple[int, ...] = (), write: bool = True) -> None:
        self.record = self.record.having(_spawn(self.layout, self.record, name, keep_open))
        if write:
            record.write(self.layout, self.record)

    def _listens(self, name: str, port: int) -> None:
        self._until(name, f"listens on port {port}", lambda: ports.listening(port))

    def _until(self, name: str, does: str, condition: Callable[[], bool], pause_s: float = 0.01) -> None:
        while not condition():
            if not processes.alive(self.record.process(name)):
                raise LabError(f"{name} ended before it {does}:{last_lines(self.layout)}")
            if time.monotonic() > self.end:
                raise DeadlineError(f"deadline passed before {name} {does}:{last_lines(self.layout)}")
            time.sleep(pause_s)

    def _all_idle(self) -> bool:
        command = [self.record.toolchain.program("sinfo"), "-h", "-p", "batch", "-o", "%T %D"]
        variables = environment(self.layout, self.record.toolchain)
        try:
            shown = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=10)
        except subprocess.TimeoutExpired:
            return False
        return shown.stdout.split() == [self.config.idle_state, str(self.config.nodes)]


def _host(toolchain: Toolchain) -> conf.Host:
    name = socket.gethostname().split(".")[0]
    try:
        loopback = socket.gethostbyname(name).startswith("127.")
    except OSError:  # the name means nothing
        loopback = False
    return conf.Host(name, pwd.getpwuid(os.geteuid()).pw_name, toolchain.plugin_directory, loopback)


def _toolchain(config: LabConfig) -> Toolchain:
    """The machine's own Slurm where that will do, else a private copy of the release asked for."""
    if config.release is None:
        return host_toolchain(config.accounting)
    own = config.release == host_release()
    if own and (os.geteuid() == 0 or not missing_packages(config.accounting)):
        return host_toolchain(config.accounting)
    return release_toolchain(config.release)


def _spawn(layout: Layout, known: Record, name: str, keep_open: tuple[int, ...] = ()) -> Process:
    """Starts one daemon in the foreground, as a child, so that its id is known before it does anything."""
    program = known.toolchain.program
    variables: Mapping[str, str] = {
        **environment(layout, known.toolchain),
        processes.MARK: str(layout.root),
        "LANG": "C.UTF-8",
    }
    munge = layout.munge
    if name == "warden":
        command = [program("sleep"), "infinity"]
        if (watched := known.ends_with) is not None:
            command = [sys.executable, str(ENTRY), "watch", str(layout.root)]
            command += [str(watched.pid), str(watched.start_ticks)]
    elif name == "munged":
        layout.munge_socket.unlink(missing_ok=True)  # left by one that was killed: munged would refuse to start
        command = [program("munged"), "--foreground", "--num-threads=2", f"--key-file={layout.munge_key}"]
        command += [f"--socket={layout.munge_socket}", f"--pid-file={munge}/munged.pid"]
        command += [f"--log-file={layout.log}/munged.log", f"--seed-file={munge}/munged.seed"]
    elif name == "mariadbd":
        command = accounting.database_command(layout, known.toolchain)
    elif name == "slurmdbd":
        command = [program("slurmdbd"), "-D"]
        variables = {**variables, **accounting.daemon_variables(layout)}
    elif name == "slurmctld":
        command = [program("slurmctld"), "-D"]
    elif name.startswith("slurmd.") and name.removeprefix("slurmd.") in known.nodes:
        command = [program("slurmd"), "-D", "-N", name.removeprefix("slurmd.")]
        if known.toolchain.stepd is not None:
            command += ["-d", str(known.toolchain.stepd)]
        if known.users:
            command = namespace.within(command)  # users' jobs are its children
        if known.namespaces:
            network = known.namespaces[known.nodes.index(name.removeprefix("slurmd."))]
            command = ["nsenter", f"--net={network}", *command]
    else:
        raise LabError(f"no daemon {name!r} in this lab: slurmctld, slurmd.NODE, munged, slurmdbd or mariadbd")
    return processes.spawn(name, command, variables, layout.log / f"{name}.out", keep_open)


def _process(pid: int) -> Process:
    seen = processes.sight(pid)
    if seen is None:
        raise UsageError(f"process {pid}: there is none")
    return Process(pid, seen.start_ticks, seen.name)


def _claim(layout: Layout) -> bool:
    """Makes the lab's directory; whether it did not exist. UsageError where it holds what is no lab's."""
    try:
        layout.root.mkdir(mode=0o755)
        layout.root.chmod(0o755)
        return True
    except FileExistsError:
        if not layout.root.is_dir():
            raise UsageError(f"{layout.root}: not a directory") from None
        if not layout.state_file.exists() and (other := sorted(p.name for p in layout.root.iterdir())):
            why = f"holds {other[0]!r}, which is no lab's: choose an empty directory"
            raise UsageError(f"{layout.root}: {why}") from None
        return False
    except FileNotFoundError:
        raise UsageError(f"{layout.root.parent}: no such directory: make it first") from None
    except PermissionError:
        raise UsageError(f"{layout.root}: no right to make it: choose a directory of your own") from None


@contextlib.contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    """One `up` or `down` at a time works on a directory; a second one waits."""
    try:
        descriptor = os.open(layout.root, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise LabError(f"{layout.root}: removed meanwhile: try again") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not layout.root.exists() or not os.path.samestat(os.fstat(descriptor), layout.root.stat()):
            raise LabError(f"{layout.root}: taken down meanwhile: try again")
        yield
    finally:
        os.close(descriptor)


def _make_directories(layout: Layout, config: LabConfig) -> None:
    private = {layout.root / "state"}
    open_to_all = {layout.output}
    for directory in layout.made_directories:
        _make_directory(directory, 0o700 if directory in private else 0o1777 if directory in open_to_all else 0o755)
    for node in config.daemon_nodes:
        _make_directory(layout.spool / node, 0o755)
        _make_directory(layout.scratch / node, 0o1777)
    if config.users:
        for name in users.TEST_USERS:
            who = users.Identity.of(name)
            _make_directory(layout.home / name, 0o755)
            os.chown(layout.home / name, who.uid, who.gid)


def _make_directory(directory: Path, mode: int) -> None:
    directory.mkdir(exist_ok=True)
    directory.chmod(mode)  # whatever the caller's umask is


def _make_devices(layout: Layout, count: int) -> bool:
    """Clones of /dev/null to stand for GPUs; whether that was allowed (root only)."""
    for index in range(count):
        path = layout.root / "devices" / f"gpu{index}"
        try:
            os.mknod(path, 0o020666, os.makedev(1, 3))
        except PermissionError:
            return False
        path.chmod(0o666)
    return True


def _take_down(layout: Layout, keep_logs: bool, made_root: bool) -> None:
    known = record.read(layout)
    left = processes.end_all(lambda: owned(layout, known), END_GRACE_S, END_DEADLINE_S)
    if left:
        names = ", ".join(f"{p.name} ({p.pid})" for p in left)
        raise LabError(f"{layout.root}: could not end {names}: run as the user who brought the lab up, or as root")
    _remove(layout, keep_logs, known.files if known else ())
    if keep_logs:
        record.write(layout, Record(made_root))  # so that a later `up` or `down` recognises the logs as a lab's
    elif made_root:
        with contextlib.suppress(OSError):  # others put files there: they stay
            layout.root.rmdir()


def _remove(layout: Layout, keep_logs: bool, files: tuple[str, ...]) -> None:
    for path in (*(layout.root / name for name in files), *layout.removable):
        if keep_logs and path == layout.log:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
