"""Which processes are a lab's."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from scripts.lab import ports
from scripts.lab.layout import Layout
from scripts.lab.processes import MARK, Process, Sighting, alive, ancestry, belonging, send, sight
from tests.waiting import wait_until

LAYOUT = Layout(Path("/srv/lab"))
CONF = "SLURM_CONF=/srv/lab/slurm.conf"


def seen(
    pid: int, *environment: str, parent: int = 1, session: int = 0, program: str = "sh", files: tuple[str, ...] = ()
) -> Sighting:
    return Sighting(pid, parent, session or pid, 1000 + pid, "x", program, frozenset(environment), frozenset(files))


def ours(*sightings: Sighting, spared: frozenset[int] = frozenset()) -> set[int]:
    return {p.pid for p in belonging(sightings, LAYOUT, spared)}


def test_daemons_and_what_they_started_are_ours() -> None:
    assert ours(seen(10, f"{MARK}=/srv/lab"), seen(11, parent=10), seen(12, parent=11), seen(13)) == {10, 11, 12}


def test_a_jobs_processes_are_ours() -> None:
    assert ours(seen(10, CONF, "SLURM_JOB_ID=7"), seen(11, CONF, "SLURM_JOBID=7")) == {10, 11}


def test_one_without_parent_or_environment_is_known_by_its_session() -> None:
    step = seen(10, f"{MARK}=/srv/lab", session=9)
    assert ours(step, seen(11, parent=1, session=9)) == {10, 11}


def test_a_terminal_that_holds_an_allocation_is_not_ours() -> None:
    """salloc's shell is, by its job id; the login shell that leads the session and its other children are not."""
    shell, allocation, editor = seen(10, CONF), seen(11, CONF, "SLURM_JOB_ID=7", session=10), seen(12, session=10)
    assert ours(shell, allocation, editor) == {11}


def test_a_daemon_without_environment_is_known_by_the_files_it_has_open() -> None:
    log = ("/srv/lab/log/slurmd.n000.log",)
    assert ours(seen(10, program="slurmstepd-wlm", files=log), seen(11, program="tail", files=log)) == {10}
    assert ours(seen(10, program="slurmstepd", files=("/srv/lab2/log/slurmd.n000.log",))) == set()


def test_pointing_at_the_lab_is_not_belonging_to_it() -> None:
    assert ours(seen(10, CONF), seen(11, "SLURM_JOB_ID=7")) == set()


def test_other_labs_are_not_ours() -> None:
    others = ("/srv/lab2", "/srv", "/srv/lab/inner", "/srv/LAB")
    for other in others:
        assert (
            ours(seen(10, f"{MARK}={other}"), seen(11, f"SLURM_CONF={other}/slurm.conf", "SLURM_JOB_ID=1")) == set()
        )


def test_the_caller_is_spared() -> None:
    assert ours(seen(10, f"{MARK}=/srv/lab"), seen(11, parent=10), spared=frozenset({11})) == {10}
    assert os.getpid() in ancestry()
    assert os.getppid() in ancestry()


def test_a_recycled_id_is_not_signalled() -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        now = sight(child.pid)
        assert now is not None
        former = Process(child.pid, now.start_ticks - 1, "recycled")
        assert not alive(former)
        assert not send(former, signal.SIGKILL)
        assert child.poll() is None
        assert send(Process(child.pid, now.start_ticks, "child"), signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert sight(child.pid) is None


def test_a_process_whose_first_thread_has_ended_is_alive() -> None:
    """So is a slurmd for a moment, where one of its other threads executes the program anew to be reconfigured."""
    program = (
        "import ctypes, sys, threading\n"
        "threading.Thread(target=sys.stdin.read).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    stat = Path(f"/proc/{child.pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", 90, "a first thread that has ended")
    running = sight(child.pid)
    assert running is not None
    process = Process(child.pid, running.start_ticks, "x")
    assert alive(process)
    child.communicate()
    assert not alive(process)


def test_odd_names_do_not_confuse() -> None:
    code = "import ctypes,sys; ctypes.CDLL(None).prctl(15, b') R 1 (x'); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        now = sight(child.pid)
        assert now is not None
        assert (now.parent, now.name) == (os.getpid(), ") R 1 (x")


def test_ports_are_held_until_let_go() -> None:
    first = ports.reserve(10, "seed")
    second = ports.reserve(10, "seed")
    assert not set(first.ports) & set(second.ports)
    first.close()
    third = ports.reserve(10, "seed")
    assert third.ports == first.ports
    second.close()
    third.close()


def test_a_port_in_use_is_passed_over() -> None:
    import socket

    first = ports.reserve(3, "other seed")
    first.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first.ports[1]))
        taken.listen()
        assert ports.listening(first.ports[1])
        second = ports.reserve(3, "other seed")
        assert not set(first.ports) & set(second.ports)
        second.close()
    assert not ports.listening(first.ports[1])


def test_many_ports_are_in_a_row_and_below_the_ephemeral_ones() -> None:
    many = ports.reserve(1002, "x")
    assert many.ports == tuple(range(many.ports[0], many.ports[0] + 1002))
    assert min(many.ports) >= ports.FIRST
    assert max(many.ports) <= ports.LAST
    many.close()
