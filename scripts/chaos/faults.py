"""What is broken on a real Slurm, and how it is mended. Each fault says what it did."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scripts.chaos.scene import RESEARCHER, Scene
from scripts.lab import Lab, LabError
from scripts.lab.node_network import DAEMON

#: Seconds from the mending of Slurm until its main queue is served as before.
RECOVERS_S = 20.0

#: Longest time from a node's last word until slurmctld sets it DOWN, measured in this lab (52 s): SlurmdTimeout of
#: 30 s, counted from the last answer to a ping, and looked at when the next one is due.
SLURM_GIVES_UP_S = 55.0

#: The reason that a node has which this run has drained.
DRAINED_HERE = "chaos"

#: Seconds between two looks of the run's administrator at nodes that Slurm itself has drained.
ADMIN_LOOKS_S = 20.0

#: Breaks something; what it did, or "" when there was nothing to break.
Fault = Callable[["Chaos"], str]


@dataclass
class Chaos:
    """Faults drawn one after the other, and their mending; several may be open at once.

    Attributes:
        gap_s: mean time between two faults.
        done: (seconds from the beginning, what was done).
    """

    scene: Scene
    rng: random.Random
    gap_s: float = 5.0
    done: list[tuple[float, str]] = field(default_factory=list)
    reservations: list[str] = field(default_factory=list)  #: names of all that were made
    unsure: list[tuple[float, float]] = field(
        default_factory=list
    )  #: (from, to), Unix seconds, of Slurm's own faults
    _mend: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    _next: float = 0.0
    _next_look: float = 0.0
    _begun: float = field(default_factory=time.monotonic)

    def step(self) -> None:
        """Mends what is due, and breaks the next thing when its time has come."""
        self.mend_due(time.monotonic())
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self.rng.expovariate(1.0 / self.gap_s)
        fault = self.rng.choices([each for each, _ in FAULTS], [weight for _, weight in FAULTS])[0]
        try:
            what = fault(self)
        except LabError as error:
            what = f"{fault.__name__}: not done ({str(error).splitlines()[0]})"
        except ProcessLookupError:
            what = f"{fault.__name__}: not done (the process had ended)"
        if what:
            self.done.append((time.monotonic() - self._begun, what))

    def resume_drained(self) -> None:
        """What an administrator does, every `ADMIN_LOOKS_S`: nodes that Slurm itself has drained ("Kill task failed",
        "Duplicate jobid") serve again. Without it they would be away until the end of the run."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + ADMIN_LOOKS_S
        lab = self.scene.lab
        try:
            rows = lab.run(["sinfo", "-h", "-N", "-p", "batch", "-t", "drain", "-o", "%N %E"], timeout=10.0).stdout
            for row in rows.splitlines():
                node, _, reason = row.partition(" ")
                if reason != DRAINED_HERE:
                    self.unsure.append((time.time() - ADMIN_LOOKS_S, time.time() + RECOVERS_S))
                    resume(lab, node)
                    self.done.append((time.monotonic() - self._begun, f'{node}, drained with "{reason}", resumed'))
        except LabError:
            pass  # slurmctld is away: at the next look

    def slurm_fails(self, seconds: float) -> None:
        """Notes that Slurm may not serve its main queue from now on, for so long and a little more."""
        self.unsure.append((time.time(), time.time() + seconds + RECOVERS_S))

    def was_unsure(self, begin: float, end: float) -> bool:
        """Whether Slurm may not have served its main queue at some moment between (Unix seconds)."""
        return any(start <= end and stop >= begin for start, stop in self.unsure)

    def later(self, seconds: float, mend: Callable[[], object]) -> None:
        """`mend` is called so much later."""
        self._mend.append((time.monotonic() + seconds, mend))

    def mend_due(self, now: float) -> None:
        """Runs what `later` scheduled, up to `now`."""
        due = [mend for at, mend in self._mend if at <= now]
        self._mend = [(at, mend) for at, mend in self._mend if at > now]
        for mend in due:
            try:
                mend()
            except LabError:
                self.later(1.0, mend)  # slurmctld is away: again
            except ProcessLookupError:
                pass  # the process to go on has ended

    def mend_all(self, deadline_s: float = 60.0) -> None:
        """All is mended when this returns.

        Raises:
            LabError: something cannot be.
        """
        end = time.monotonic() + deadline_s
        lab = self.scene.lab
        # slurmctld may have died before it saved what was mended: looked at once more when nothing dies any longer.
        for node in lab.nodes:
            self.later(0.0, lambda node=node: resume(lab, node))  # type: ignore[misc]
        for name in self.reservations:
            self.later(0.0, lambda name=name: unreserve(lab, name))  # type: ignore[misc]
        while self._mend:
            self.mend_due(float("inf"))
            if time.monotonic() > end:
                raise LabError("not everything that was broken could be mended")
        lab.run(["scontrol", "ping"])


def unreserve(lab: Lab, name: str) -> None:
    """Delete a reservation, if it is there.

    Raises:
        LabError: it is still there, or slurmctld does not answer.
    """
    lab.run(["scontrol", "delete", f"ReservationName={name}"], check=False, timeout=10.0)
    if f"ReservationName={name} " in lab.run(["scontrol", "show", "reservation", "-o"], timeout=10.0).stdout:
        raise LabError(f"reservation {name} is not deleted")


def resume(lab: Lab, node: str) -> None:
    """Let a node that was drained serve again.

    Raises:
        LabError: it is still drained, or slurmctld does not answer.
    """
    lab.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False, timeout=10.0)
    if "DRAIN" in lab.run(["scontrol", "show", "node", node, "-o"], timeout=10.0).stdout.partition("State=")[2][:40]:
        raise LabError(f"{node} is still drained")


def daemon_killed(chaos: Chaos) -> str:
    """kill -9 of malletraind; a supervisor starts it again."""
    away = chaos.rng.uniform(0.0, 4.0)
    chaos.scene.supervisor.kill(away)
    return f"daemon killed, away for {away:.1f} s"


def daemon_frozen(chaos: Chaos) -> str:
    """SIGSTOP of malletraind."""
    seconds, pid = chaos.rng.uniform(1.0, 6.0), chaos.scene.site.pid
    os.kill(pid, signal.SIGSTOP)
    chaos.later(seconds, lambda: os.kill(pid, signal.SIGCONT))
    return f"daemon frozen for {seconds:.1f} s"


def _of_a_worker(number: signal.Signals, goes_on_after_s: float = 0.0) -> Fault:
    def fault(chaos: Chaos) -> str:
        workers = chaos.scene.workers()
        if not workers:
            return ""
        pid = chaos.rng.choice(workers).pid
        os.kill(pid, number)
        if goes_on_after_s:
            chaos.later(chaos.rng.uniform(0.5, goes_on_after_s), lambda: os.kill(pid, signal.SIGCONT))
        return f"worker {pid}: {number.name}"

    fault.__name__ = f"worker_{number.name.lower()}"
    return fault


def _daemon_of_slurm(name: str, away_s: float) -> Fault:
    def fault(chaos: Chaos) -> str:
        lab = chaos.scene.lab
        daemon = f"slurmd.{chaos.rng.choice(lab.nodes)}" if name == "slurmd" else name
        if daemon not in lab.daemons or not lab.is_running(daemon):
            return ""
        seconds = chaos.rng.uniform(0.5, away_s)
        lab.kill(daemon)
        chaos.slurm_fails(seconds)

        def start() -> None:
            if not lab.is_running(daemon):
                lab.start(daemon)

        chaos.later(seconds, start)
        return f"{daemon} killed, away for {seconds:.1f} s"

    fault.__name__ = f"{name}_killed"
    return fault


def workers_cut_off(chaos: Chaos) -> str:
    """Nothing passes between any worker and the daemon; what was sent arrives afterwards."""
    seconds = chaos.rng.choice([1.0, 4.0, 12.0])
    chaos.scene.network.cut()
    chaos.later(seconds, chaos.scene.network.mend)
    return f"workers cut off from the daemon for {seconds:.0f} s"


def node_isolated(chaos: Chaos) -> str:
    """A node reaches nobody: Slurm, the daemon and the other nodes lose it, and are not told."""
    network = chaos.scene.nodes
    if network is None:
        return ""
    index = chaos.rng.randrange(network.count)
    seconds = chaos.rng.choice([2.0, 10.0, 10.0, SLURM_GIVES_UP_S + 10.0])
    network.isolate(index)
    node = chaos.scene.lab.nodes[index]
    chaos.slurm_fails(seconds)

    def mend() -> None:
        network.rejoin(index)
        if seconds > SLURM_GIVES_UP_S:  # slurmctld looks for a node that it has set DOWN only every few minutes
            resume(chaos.scene.lab, node)

    chaos.later(seconds, mend)
    return f"{node} isolated for {seconds:.0f} s"


def nodes_parted(chaos: Chaos) -> str:
    """What one node sends another, or the machine of slurmctld and the daemon, is lost; at times the answers too."""
    network = chaos.scene.nodes
    if network is None or network.count < 2:
        return ""
    source, target = chaos.rng.sample([DAEMON, *range(network.count)], 2)
    both, seconds = chaos.rng.random() < 0.5, chaos.rng.choice([2.0, 10.0, 25.0])
    cut, mend = (network.cut, network.mend) if both else (network.cut_one_way, network.mend_one_way)
    cut(source, target)
    chaos.slurm_fails(seconds)
    chaos.later(seconds, lambda: mend(source, target))
    names = {DAEMON: "the daemon's machine", **dict(enumerate(chaos.scene.lab.nodes))}
    return f"{names[source]} and {names[target]} parted {'' if both else 'one way '}for {seconds:.0f} s"


def journal_full(chaos: Chaos) -> str:
    """The journal's file system is full."""
    return f"the journal's disk full for {_fill(chaos, chaos.scene.disk):.1f} s"


def work_folder_full(chaos: Chaos) -> str:
    """The researcher's folder is full, where jobs save their state and Slurm writes what they print."""
    return f"{RESEARCHER}'s folder full for {_fill(chaos, chaos.scene.work_folder):.1f} s"


def _fill(chaos: Chaos, folder: Path) -> float:
    """Leaves no room on a folder's file system; for how many seconds."""
    ballast, seconds = folder / "ballast", chaos.rng.uniform(1.0, 12.0)
    with ballast.open("ab", buffering=0) as stream:
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while stream.write(b"x" * size) == size:
                    pass
    chaos.later(seconds, lambda: ballast.unlink(missing_ok=True))
    return seconds


def node_drained(chaos: Chaos) -> str:
    """scontrol update State=DRAIN, and RESUME later."""
    lab, node = chaos.scene.lab, chaos.rng.choice(chaos.scene.lab.nodes)
    seconds = chaos.rng.uniform(3.0, 20.0)
    lab.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={DRAINED_HERE}"], timeout=10.0)
    chaos.slurm_fails(seconds)
    chaos.later(seconds, lambda: resume(lab, node))
    return f"{node} drained for {seconds:.0f} s"


def pilot_cancelled(chaos: Chaos) -> str:
    """scancel of a pilot that runs, by its owner."""
    lab = chaos.scene.lab
    rows = lab.run(
        ["squeue", "-h", "-r", "-t", "R", "-p", "harvest", "-u", RESEARCHER, "-o", "%i"], timeout=10.0
    ).stdout.split()
    if not rows:
        return ""
    pilot = chaos.rng.choice(rows)
    lab.run(["scancel", pilot], user=RESEARCHER, timeout=10.0)
    return f"pilot {pilot} cancelled by its owner"


def reconfigured(chaos: Chaos) -> str:
    """scontrol reconfigure, by staff."""
    chaos.scene.lab.run(["scontrol", "reconfigure"], timeout=20.0)
    chaos.slurm_fails(0.0)
    return "slurmctld reconfigured"


def reservation_made(chaos: Chaos) -> str:
    """A reservation of one node that begins now."""
    lab, node = chaos.scene.lab, chaos.rng.choice(chaos.scene.lab.nodes)
    seconds, name = chaos.rng.uniform(5.0, 20.0), f"chaos{len(chaos.done)}"
    chaos.reservations.append(name)
    asked = ["scontrol", "create", "reservation", f"ReservationName={name}", "StartTime=now", "Duration=5"]
    lab.run([*asked, f"Nodes={node}", "Users=root", "Flags=IGNORE_JOBS"], timeout=10.0)
    chaos.slurm_fails(seconds)
    chaos.later(seconds, lambda: unreserve(lab, name))
    return f"{node} reserved for {seconds:.0f} s"


#: Faults, and how often each is drawn beside the others.
FAULTS: tuple[tuple[Fault, float], ...] = (
    (daemon_killed, 3.0),
    (daemon_frozen, 1.0),
    (_of_a_worker(signal.SIGKILL), 3.0),
    (_of_a_worker(signal.SIGTERM), 1.0),
    (_of_a_worker(signal.SIGSTOP, goes_on_after_s=20.0), 1.5),
    (_daemon_of_slurm("slurmd", 5.0), 1.0),
    (_daemon_of_slurm("slurmctld", 6.0), 1.0),
    (_daemon_of_slurm("munged", 3.0), 0.5),
    (_daemon_of_slurm("slurmdbd", 8.0), 0.5),
    (_daemon_of_slurm("mariadbd", 8.0), 0.5),
    (workers_cut_off, 1.0),
    (node_isolated, 1.0),
    (nodes_parted, 1.5),
    (journal_full, 1.0),
    (work_folder_full, 1.0),
    (node_drained, 1.0),
    (pilot_cancelled, 1.0),
    (reconfigured, 0.5),
    (reservation_made, 0.5),
)
