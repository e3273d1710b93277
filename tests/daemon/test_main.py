"""malletraind as a process, on a real Slurm, with systemd's side of the notify socket played by a real one."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from malletrain.daemon.main import makes_progress
from malletrain.slurm.command import TIMEOUT_S
from malletrain.wire import address
from scripts.lab import Lab
from tests.daemon.running import Running, environment, file, run, start, url_of
from tests.messages import says
from tests.waiting import wait_until

__all__ = ["file", "start"]

SQUEUE = shutil.which("squeue")


@pytest.mark.parametrize(
    ("since_tick", "since_start", "alive"),
    [(None, 5.0, True), (None, 60.0, False), (5.0, 900.0, True), (60.0, 900.0, False)],
)
def test_a_tick_that_hangs_does_not_look_alive(since_tick: float | None, since_start: float, alive: bool) -> None:
    assert makes_progress(since_tick, since_start, 60.0) is alive


# --- without Slurm ---------------------------------------------------------------------------------------------


def test_check_config_names_every_fault(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("[slurm]\nacount = 'x'\n[pool]\nkeep_idle = -1\n")
    done = run(tmp_path, "--check-config", "--config", str(bad))
    assert (done.returncode, done.stdout) == (2, "")
    unknown, below = done.stderr.splitlines()
    assert says(unknown, f"malletraind: {bad}:2: slurm.acount:", "account?")
    assert says(below, f"malletraind: {bad}:4: pool.keep_idle:", 0, -1)


def test_check_config_of_a_good_file_and_of_none(tmp_path: Path, file: Path) -> None:
    done = run(tmp_path, "--check-config", "--config", str(file))
    assert (done.returncode, done.stdout) == (0, f"{file}: no faults\n")
    assert not done.stderr or says(done.stderr, "not checked"), "Slurm is not asked in vain"
    assert run(tmp_path, "--check-config", "--user").stdout == "--user: no faults\n"


def test_check_config_knows_the_policies(tmp_path: Path, file: Path) -> None:
    file.write_text(f'{file.read_text()}[sizing]\npolicy = "zork"\n')
    done = run(tmp_path, "--check-config", "--config", str(file))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "zork" in done.stderr
    assert "milp" in done.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = run(tmp_path, "--config", "no.toml")
    assert done.returncode == 2
    assert done.stderr.startswith("malletraind: no.toml: ") and "(No such file" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("argv", [["--zork"], ["--observe", "--once"], ["extra"]])
def test_wrong_options_are_one_line(tmp_path: Path, argv: list[str]) -> None:
    done = run(tmp_path, *argv)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("argv", "status"), [((), 1), (("--observe",), 1), (("--actuator",), 1), (("--once",), 2), (("--dry-run",), 2)]
)
def test_slurm_that_does_not_answer_is_one_line(
    tmp_path: Path, file: Path, argv: tuple[str, ...], status: int
) -> None:
    """A service is started again, for slurmctld may be up later; after 2 it never would be."""
    fakes = tmp_path / "bin"
    fakes.mkdir()
    (fakes / "scontrol").write_text("#!/bin/sh\necho 'slurm_load_ctl_conf error: Unable to contact' >&2\nexit 1\n")
    (fakes / "scontrol").chmod(0o755)
    actuator = f'socket = "{tmp_path}/socket"\nlistener = "nobody"\n'
    file.write_text(f"{file.read_text()}[actuator]\n{actuator}")
    environ = environment(tmp_path, PATH=f"{fakes}:{os.environ['PATH']}", LOGS_DIRECTORY=str(tmp_path))
    done = run(tmp_path, *argv, "--config", str(file), environ=environ)
    assert (done.returncode, done.stdout) == (status, "")
    said = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(said) == 1
    assert "Unable to contact" in said[0]
    assert not (tmp_path / "state" / "journal.db").exists()


# --- on a real Slurm -------------------------------------------------------------------------------------------


def get(url: str) -> str:
    with urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@pytest.mark.slurm
def test_it_serves_until_sigterm_and_tells_systemd(start: Callable[..., Running], file: Path) -> None:
    running = start("--config", str(file), WATCHDOG_USEC="1000000")
    assert running.systemd.said[-1] == f"READY=1\nSTATUS=serving {url_of(file)}"
    running.systemd.wait(lambda said: said == "WATCHDOG=1")
    running.systemd.wait(lambda said: said == "WATCHDOG=1")
    assert 'malletrain_build_info{version="' in get(f"{url_of(file)}/metrics")
    running.process.send_signal(signal.SIGTERM)
    running.systemd.wait(lambda said: said == "STOPPING=1")
    assert running.process.wait(120) == 0
    assert "stopping" in running.events()
    assert "Traceback" not in running.log.read_text()


@pytest.mark.slurm
def test_a_signal_that_another_thread_gets_ends_it_too(start: Callable[..., Running], file: Path) -> None:
    """The kernel may choose any thread; Python runs the handler in the main one, which waits."""
    running = start("--config", str(file))
    pid = running.process.pid
    other = next(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir() if int(task.name) != pid)
    tgkill = ctypes.CDLL(None, use_errno=True).tgkill  # tgkill(2)
    assert tgkill(pid, other, signal.SIGTERM) == 0
    assert running.process.wait(120) == 0


@pytest.mark.slurm
def test_a_stop_does_not_wait_for_a_slurm_that_hangs(
    start: Callable[..., Running], file: Path, tmp_path: Path
) -> None:
    """A round of commands that hang would take many times the time-out of one."""
    fakes = tmp_path / "bin"
    fakes.mkdir()
    hangs = tmp_path / "hangs"
    (fakes / "squeue").write_text(
        f'#!/bin/sh\ntest -e {hangs} && touch {hangs}.now && sleep 600\nexec {SQUEUE} "$@"\n'
    )
    (fakes / "squeue").chmod(0o755)
    running = start("--config", str(file), PATH=f"{fakes}:{os.environ['PATH']}")
    hangs.touch()
    wait_until(Path(f"{hangs}.now").exists, 90, "a command that hangs")
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(TIMEOUT_S) == 0, "less than one command's time-out"
    assert "Traceback" not in running.log.read_text()


@pytest.mark.slurm
def test_a_reload_takes_the_new_file_and_keeps_the_old_one_where_it_is_wrong(
    start: Callable[..., Running], file: Path
) -> None:
    running = start("--config", str(file))
    good = file.read_text()
    file.write_text(good + "[pool]\nkeep_idel = 3\n[pilot]\nmax_minutes = 0\n")
    running.process.send_signal(signal.SIGHUP)
    running.wait_for_log("pilot.max_minutes: Input should be greater than or equal to 1")
    assert says(running.log.read_text(), "keep_idle?")
    assert "malletrain_build_info" in get(f"{url_of(file)}/metrics")
    file.write_text(good + "[pool]\nkeep_idle = 3\n")
    running.process.send_signal(signal.SIGHUP)
    running.systemd.wait(lambda said: said.startswith("RELOADING=1\nMONOTONIC_USEC="))
    running.systemd.wait(lambda said: said.startswith("READY=1"))
    assert "malletrain_build_info" in get(f"{url_of(file)}/metrics")
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(120) == 0


@pytest.mark.slurm
def test_a_reload_while_slurm_is_away_ends_so_that_systemd_starts_it_again(
    start: Callable[..., Running], file: Path, tmp_path: Path
) -> None:
    fakes, away = tmp_path / "bin", tmp_path / "away"
    fakes.mkdir()
    (fakes / "scontrol").write_text(f'#!/bin/sh\ntest -e {away} && exit 1\nexec {shutil.which("scontrol")} "$@"\n')
    (fakes / "scontrol").chmod(0o755)
    running = start("--config", str(file), PATH=f"{fakes}:{os.environ['PATH']}")
    away.touch()
    running.process.send_signal(signal.SIGHUP)
    assert running.process.wait(120) == 1
    assert "Traceback" not in running.log.read_text()


@pytest.mark.slurm
def test_a_port_that_is_taken_is_one_line_and_tried_again_by_systemd(tmp_path: Path, file: Path, lab: Lab) -> None:
    port = int(url_of(file).rpartition(":")[2])
    environ = {**lab.env, **environment(tmp_path), "PATH": lab.env["PATH"]}
    with socket.create_server(("127.0.0.1", port)):
        done = run(tmp_path, "--config", str(file), environ=environ)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(said) == 1
    assert says(said[0], f"127.0.0.1:{port}:", "already in use")


@pytest.mark.slurm
def test_a_second_daemon_on_the_same_journal_is_refused(
    start: Callable[..., Running], file: Path, tmp_path: Path, lab: Lab
) -> None:
    start("--config", str(file))
    environ = {**lab.env, **environment(tmp_path), "PATH": lab.env["PATH"]}
    done = run(tmp_path, "--config", str(file), environ=environ)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(said) == 1
    assert "journal" in said[0]


@pytest.mark.slurm
def test_a_dry_run_beside_a_running_daemon_says_what_it_would_do(
    start: Callable[..., Running], file: Path, tmp_path: Path, lab: Lab
) -> None:
    start("--config", str(file))
    environ = {**lab.env, **environment(tmp_path), "PATH": lab.env["PATH"]}
    done = run(tmp_path, "--config", str(file), "--dry-run", environ=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("at 20")
    assert f"holes {len(lab.nodes)}, actions 0" in done.stdout.splitlines()[0]


@pytest.mark.slurm
def test_a_partition_that_does_not_exist_is_one_clear_line(tmp_path: Path, file: Path, lab: Lab) -> None:
    file.write_text(file.read_text().replace('"harvest"', '"spare"'))
    environ = {**lab.env, **environment(tmp_path), "PATH": lab.env["PATH"]}
    done = run(tmp_path, "--config", str(file), environ=environ)
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(said) == 1
    assert says(said[0], "partition spare", "batch, harvest)")


@pytest.mark.slurm
def test_a_partition_that_does_not_give_way_is_refused(tmp_path: Path, file: Path, lab: Lab) -> None:
    file.write_text(file.read_text().replace('"harvest"', '"batch"'))
    environ = {**lab.env, **environment(tmp_path), "PATH": lab.env["PATH"]}
    done = run(tmp_path, "--config", str(file), environ=environ)
    assert done.returncode == 2
    assert says(done.stderr, "partition batch", "preempted")


@pytest.mark.slurm
def test_a_users_own_daemon_tells_where_it_is_and_cleans_up(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start("--user")
    known = address.user_daemon_file({"HOME": str(tmp_path / "home")})
    found = address.read(known)
    assert known.stat().st_mode & 0o777 == 0o600
    assert (found.partition, f"READY=1\nSTATUS=serving {found.url}") == ("harvest", running.systemd.said[-1])
    assert address.find({"HOME": str(tmp_path / "home")}, tmp_path / "none").url == found.url
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(120) == 0
    assert not known.exists()
