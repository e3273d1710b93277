"""A clean Debian with a systemd and a Slurm of its own, in a container of this machine: for trying packages in.

Nothing of this project is in it, and its Slurm is set up as Debian's packages say, not as scripts/slurm-lab does.
It shares this machine's network, for pip: Slurm's usual ports and 8470 must be free.
Needs root, mmdebstrap and systemd-nspawn (Debian: mmdebstrap systemd-container), and Debian's archive the first time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

#: What is installed of Debian: a head node with Slurm, accounting, and two nodes on the same machine.
PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "slurmctld", "slurmd", "slurm-client", "slurmdbd",
    "mariadb-server", "munge", "sudo", "ca-certificates", "iproute2", "procps", "patch",
)  # fmt: skip
SUITE = "bookworm"
PROGRAMS = ("mmdebstrap", "systemd-nspawn", "unshare")

BOOT_TIMEOUT_S = 120.0
COMMAND_TIMEOUT_S = 300.0

#: A site as its administrator may have made it: accounting, two tiers of main partitions, no preemption.
SLURM_CONF = """\
ClusterName=hpc
SlurmctldHost=head
SlurmUser=slurm
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmdSpoolDir=/var/lib/slurm/slurmd-%n
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd-%n.log
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=head
AccountingStorageEnforce=associations,limits
JobAcctGatherType=jobacct_gather/linux
PriorityType=priority/multifactor
SlurmdParameters=config_overrides
NodeName=node[1-2] NodeAddr=127.0.0.1 Port=[17001-17002] CPUs=1 RealMemory=2000 State=UNKNOWN
PartitionName=batch Nodes=ALL Default=YES MaxTime=2-00:00:00 State=UP PriorityTier=10
PartitionName=express Nodes=ALL MaxTime=00:30:00 State=UP PriorityTier=20
"""

SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=head
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmdbd.pid
"""

SLURMD_UNIT = """\
[Unit]
After=munge.service slurmctld.service
[Service]
Type=simple
ExecStart=/usr/sbin/slurmd -D -N %i
KillMode=process
Delegate=yes
# Compute nodes have no package of MalleTrain.
InaccessiblePaths=/opt
[Install]
WantedBy=multi-user.target
"""

SET_UP = """\
set -e
systemctl disable --now slurmd slurmctld slurmdbd 2>/dev/null || true
useradd -m -s /bin/bash ann
useradd -m -s /bin/bash bob
install -d -o slurm -g slurm /var/log/slurm /var/lib/slurm/slurmctld
install -d -o root /var/lib/slurm/slurmd-node1 /var/lib/slurm/slurmd-node2
systemctl start munge mariadb
mariadb -e "create database slurm_acct_db; create user slurm@localhost identified by 'slurm';
            grant all on slurm_acct_db.* to slurm@localhost"
chown slurm:slurm /etc/slurm/slurmdbd.conf; chmod 600 /etc/slurm/slurmdbd.conf
systemctl start slurmdbd
until sacctmgr -i add cluster hpc 2>/dev/null | grep -q . || sacctmgr -n show cluster | grep -q hpc; do :; done
sacctmgr -i add account physics Description=physics Organization=site
sacctmgr -i add user ann,bob account=physics
systemctl start slurmctld slurmd@node1 slurmd@node2
until [ "$(sinfo -h -p batch -t idle -o %D)" = 2 ]; do :; done
"""


class CleanRootError(Exception):
    """The clean root could not be made, or a command in it failed."""


def missing() -> str:
    """What a clean root needs and this machine lacks; empty if nothing."""
    if os.geteuid() != 0:
        return "root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"apt-get install mmdebstrap systemd-container ({', '.join(absent)})" if absent else ""


def base(cache: Path) -> Path:
    """The archive of a fresh Debian with `PACKAGES`; made once and kept in the folder `cache`.

    Raises:
        CleanRootError: Debian's archive could not be read.
    """
    archive = cache / f"clean-root-{SUITE}.tar"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = archive.with_suffix(".part.tar")
        done = subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, part],
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise CleanRootError(f"mmdebstrap: {done.stderr[-400:]}")
        part.rename(archive)
    return archive


class CleanRoot:
    """A booted clean root; a context manager. `binds`: paths of this machine, or PATH:THERE, that it sees too,
    read-only.
    """

    def __init__(self, cache: Path, binds: Sequence[str] = ()) -> None:
        self._cache, self._binds = cache, binds

    def __enter__(self) -> CleanRoot:
        self._folder = Path(tempfile.mkdtemp(prefix="clean-root-", dir="/var/tmp"))
        self.root = self._folder / "root"
        self.root.mkdir()
        try:
            subprocess.run(["tar", "-xf", base(self._cache), "-C", self.root, "--exclude=./dev/*"], check=True)
            self._write_configuration()
            self._boot()
            self.run(SET_UP)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _write_configuration(self) -> None:
        for path, text in {
            "etc/slurm/slurm.conf": SLURM_CONF,
            "etc/slurm/slurmdbd.conf": SLURMDBD_CONF,
            "etc/systemd/system/slurmd@.service": SLURMD_UNIT,
            "etc/hostname": "head\n",
            "etc/hosts": "127.0.0.1 head localhost node1 node2\n",
        }.items():
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.write_text(text)
        for unit in ("slurmd", "slurmctld", "slurmdbd", "mariadb"):
            (self.root / f"etc/systemd/system/multi-user.target.wants/{unit}.service").unlink(missing_ok=True)

    def _boot(self) -> None:
        self._console = (self._folder / "console").open("w+b")
        self._machine = subprocess.Popen(
            ["systemd-nspawn", "--quiet", "-D", self.root, "--boot", "--register=no", "--keep-unit", "--console=pipe",
             f"--machine=clean-root-{os.getpid()}", "--hostname=head", "--resolv-conf=copy-host",
             *(f"--bind-ro={path}" for path in self._binds)],
            stdin=subprocess.DEVNULL, stdout=self._console, stderr=subprocess.STDOUT,
        )  # fmt: skip
        end = time.monotonic() + BOOT_TIMEOUT_S
        while True:
            if self._machine.poll() is not None or time.monotonic() > end:
                raise CleanRootError(f"the container does not boot: {self.console()}")
            if self._leader() is not None and self._is_running():
                return
            time.sleep(0.3)

    def _is_running(self) -> bool:
        """Whether its services have started; asked too early, the question may find no answer at all."""
        try:
            state = self.run("systemctl is-system-running", check=False, timeout_s=5).stdout
        except subprocess.TimeoutExpired:
            return False
        return "running" in state or "degraded" in state

    def _leader(self) -> int | None:
        """The container's first process, as this machine numbers it."""
        children = Path(f"/proc/{self._machine.pid}/task/{self._machine.pid}/children").read_text().split()
        return int(children[-1]) if children else None

    def console(self) -> str:
        """The last lines that the container printed."""
        self._console.seek(0)
        return self._console.read().decode(errors="replace")[-2000:]

    def run(
        self, command: str, user: str = "root", *, check: bool = True, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run shell text in the container, as a login of `user` has it; standard error is in the output.

        Raises:
            CleanRootError: it failed, and `check`.
        """
        leader = self._leader()
        if leader is None:
            raise CleanRootError(f"the container has ended: {self.console()}")
        done = subprocess.run(
            ["nsenter", f"--target={leader}", "--mount", "--uts", "--ipc", "--net", "--pid", "--",
             "/usr/bin/env", "-i", "LANG=C.UTF-8", "/bin/su", "-", user, "-w", "LANG", "-c", command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
        )  # fmt: skip
        if check and done.returncode:
            raise CleanRootError(
                f"{command.strip().splitlines()[-1]}: status {done.returncode}\n{done.stdout[-3000:]}"
            )
        return done

    def copy_in(self, file: Path, target: str) -> None:
        """Copy a file of this machine to a path in the container."""
        shutil.copyfile(file, self.root / target.lstrip("/"))

    def __exit__(self, *_: object) -> None:
        machine = getattr(self, "_machine", None)
        if machine is not None and machine.poll() is None:
            leader = self._leader()
            if leader is not None:
                os.kill(leader, signal.SIGRTMIN + 3)  # the container's systemd halts
            try:
                machine.wait(30)
            except subprocess.TimeoutExpired:
                for process in filter(None, (leader, machine.pid)):
                    os.kill(process, signal.SIGKILL)
                machine.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
