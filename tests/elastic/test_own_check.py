"""The check beside a job: which script it counts for, what it may touch, and what becomes of what it finds."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from malletrain.elastic.launch import confined_check, own_check
from malletrain.elastic.launch.confined_check import CheckAnswer, answer_of
from malletrain.elastic.launch.own_check import SCRIPT_TO, BackgroundCheck, RunningScript, parse_line, say
from malletrain.wire import messages
from malletrain.wire.worker_client import DaemonUnreachable, Rejected
from tests.waiting import wait_until


@pytest.fixture
def running(tmp_path: Path) -> RunningScript:
    (tmp_path / "train.py").write_text("import model")
    (tmp_path / "model.py").write_text("layers = 2")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows").write_text("1 2 3")
    arguments = ("--data=data", "--epochs", "3")
    return RunningScript(
        sys.executable, str(tmp_path / "train.py"), arguments, str(tmp_path), os.getpid(), "torch 2.13"
    )


def test_a_check_counts_for_script_modules_arguments_data_and_releases(running: RunningScript) -> None:
    folder = Path(running.folder)
    seen = {running.digest()}
    assert running.digest() in seen, "the same again"
    seen.add(replace(running, arguments=("--data=data", "--epochs", "4")).digest())
    seen.add(replace(running, releases="torch 2.14").digest())
    for path, text in (("train.py", "import model, os"), ("model.py", "layers = 3"), ("data/rows", "1 2 3 4")):
        (folder / path).write_text(text)
        seen.add(running.digest())
    assert len(seen) == 6
    before = running.digest()
    (folder / "out.txt").write_text("what training writes")
    assert running.digest() == before


def test_a_session_says_once_which_script_runs(running: RunningScript) -> None:
    listens, says = os.pipe()
    say({SCRIPT_TO: f"/proc/{os.getpid()}/fd/{says}"}, running)
    say({SCRIPT_TO: "/proc/1/fd/999999"}, running)
    say({}, running)
    assert parse_line(os.read(listens, 65536)) == running
    os.close(listens)
    os.close(says)
    for text in (b"\n", b"[]", b'{"python": 3}', b"\xff"):
        assert parse_line(text) is None


def test_the_environment_of_a_check_has_nothing_of_the_pilot_and_no_secret() -> None:
    kept = {"HOME": "/home/ada", "MODEL": "small"}
    left_out = ("SLURM_JOB_ID", "MALLETRAIN_URL", "PMI_FD", "WANDB_API_KEY", "HF_TOKEN", "db_password")
    set_anew = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    given = {**kept, **dict.fromkeys(left_out, "x"), "CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "64"}
    found = own_check.check_environment(given)
    assert found.items() >= (kept | set_anew).items()
    assert not found.keys() & {*left_out}


BEGINS = {"verdict": "different", "during": "compared", "text": "w differs", "begins": "as one joins"}


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        ({"verdict": "equal", "text": ""}, CheckAnswer("equal", "")),
        ({"verdict": "different", "text": "w differs. More.\nLines"}, CheckAnswer("different", "w differs")),
        (BEGINS, CheckAnswer("different", "w differs; as one joins")),
        ({**BEGINS, "causes": ["a.py:3: std", "b"]}, CheckAnswer("different", "w differs; a.py:3: std")),
        ({"verdict": "wrong", "during": "joining", "text": "another best"}, CheckAnswer("different", "another best")),
        ({"verdict": "wrong", "during": "alone", "text": "no end"}, CheckAnswer("undecided", "wrong: no end")),
        ({"verdict": "statistical", "text": "batch norm"}, CheckAnswer("undecided", "statistical: batch norm")),
        ({"verdict": "failed", "text": "OSError: \x1b[31m"}, CheckAnswer("undecided", "failed: OSError:  [31m")),
        ({"verdict": "newer"}, CheckAnswer("undecided", "newer")),
    ],
)
def test_what_a_check_finds_is_one_word_and_one_sentence(found: dict[str, Any], answer: CheckAnswer) -> None:
    """Of a difference with where it begins, or the likeliest line."""
    assert answer_of(json.dumps(found).encode(), b"") == answer


def test_a_check_that_says_nothing_is_undecided_with_its_last_line() -> None:
    said = b"Traceback\nModuleNotFoundError: No module named 'fastapi'\n"
    assert answer_of(b"", said).text.endswith(": ModuleNotFoundError: No module named 'fastapi'")


#: Stands in the place of `malletrain check`.
STAND_IN = """
import json, os, pathlib, socket, subprocess, sys, time

def denied(call):
    try:
        call()
    except OSError:
        return True
    return False

def main():
    script, outer, port = sys.argv[3:6]
    if "--hang" in sys.argv:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        pathlib.Path("hangs").touch()
        time.sleep(1000)
    if "--grow" in sys.argv:
        kept = bytearray(400_000_000)
        time.sleep(1000)
    pathlib.Path("own").write_text("mine")
    tried = {
        "writes outside": lambda: open(outer + "/rows", "a"),
        "makes outside": lambda: os.mkdir(outer + "/new"),
        "removes outside": lambda: os.remove(outer + "/rows"),
        "writes through": lambda: open("rows", "a"),
        "connects": lambda: socket.create_connection(("127.0.0.1", int(port)), 5),
    }
    found = {
        "done": [name for name, call in tried.items() if not denied(call)],
        "reads": pathlib.Path("rows").read_text(),
        "nice": os.nice(0),
        "badness": pathlib.Path("/proc/self/oom_score_adj").read_text().strip(),
    }
    print(json.dumps({"verdict": "equal", "text": json.dumps(found)}))
"""


class Confined:
    """The confined process over a stand-in for the command that it runs."""

    def __init__(self, folder: Path) -> None:
        self.outer, self.own, modules = (folder / name for name in ("outer", "own", "modules"))
        for each in (self.outer, self.own, modules / "malletrain" / "cli"):
            each.mkdir(parents=True)
        (self.outer / "rows").write_text("1 2 3")
        for name in ("__init__.py", "cli/__init__.py"):
            (modules / "malletrain" / name).touch()
        (modules / "malletrain" / "cli" / "main.py").write_text(STAND_IN)
        self._environ = {**os.environ, "PYTHONPATH": str(modules)}
        self.server = socket.create_server(("127.0.0.1", 0))

    def start(self, *more: str, seconds: float = 60.0, size: int = 2**30) -> subprocess.Popen[str]:
        bounds = [str(self.own), str(self.outer), str(seconds), str(size)]
        given = [*bounds, "train.py", str(self.outer), str(self.server.getsockname()[1]), *more]
        command = [sys.executable, confined_check.__file__, *given]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._environ, start_new_session=True)

    def answer(self, *more: str, **bounds: Any) -> dict[str, str]:
        process = self.start(*more, **bounds)
        said, _ = process.communicate()
        assert process.returncode == 0
        found: dict[str, str] = json.loads(said)
        return found

    def left(self) -> list[str]:
        """Command lines of processes that have this folder in their environment."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(self.own.parent).encode() in (path / "environ").read_bytes():
                    found.append((path / "cmdline").read_text())
        return found


@pytest.fixture
def confined(tmp_path: Path) -> Iterator[Confined]:
    made = Confined(tmp_path)
    with made.server:
        yield made


def test_it_reads_what_the_script_reads_and_writes_in_its_own_folder_alone(confined: Confined) -> None:
    answer = confined.answer()
    if "Landlock" in answer["text"]:
        pytest.skip("this kernel has no Landlock: nothing is run")
    assert json.loads(answer["text"]) == {"done": [], "reads": "1 2 3", "nice": 10, "badness": "1000"}
    assert (confined.outer / "rows").read_text() == "1 2 3"
    assert [path.name for path in confined.outer.iterdir()] == ["rows"]


@pytest.mark.parametrize(
    ("how", "bounds", "said"),
    [
        ("--hang", {"seconds": 3.0}, "3 s"),
        ("--grow", {"size": 300_000_000}, "0.3 GiB"),
    ],
)
def test_one_that_takes_too_long_or_too_much_is_ended_with_all_that_it_started(
    confined: Confined, how: str, bounds: dict[str, Any], said: str
) -> None:
    answer = confined.answer(how, **bounds)
    assert (answer["verdict"], answer["text"].endswith(f" {said}")) == ("undecided", True)
    assert confined.left() == []


def test_it_ends_with_its_launcher(confined: Confined) -> None:
    process = confined.start("--hang")
    wait_until(lambda: (confined.own / "work" / "hangs").exists(), 60, "the check to hang")
    process.terminate()
    process.wait(60)
    wait_until(lambda: confined.left() == [], 60, "all of its processes to end")


def test_the_memory_that_is_left_is_that_of_the_machine_or_less() -> None:
    assert 0 < own_check.memory_left() <= int(Path("/proc/meminfo").read_text().split()[1]) * 1024


def daemon_that_says(*answers: bool | Exception) -> Mock:
    """A pilot's connection, as far as a check uses it: whether it is to check, each time it asks."""
    return Mock(is_to_check=Mock(side_effect=answers))


def has_ended() -> bool:
    return not any(thread.name == "malletrain-check" for thread in threading.enumerate())


def begun(daemon: Mock, running: RunningScript) -> BackgroundCheck:
    beside = BackgroundCheck(daemon)
    beside.start()
    say(beside.variables, running)
    return beside


def test_what_was_found_is_reported_once_the_daemon_has_asked(
    running: RunningScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_check, "RETRY_S", 0.01)
    monkeypatch.setattr(own_check, "checked", lambda *_: CheckAnswer("different", "w differs"))
    daemon = daemon_that_says(DaemonUnreachable("restarts"), True)
    beside = begun(daemon, running)
    wait_until(has_ended, 60, "the report")
    daemon.report.assert_called_once_with([messages.CheckDone(running.digest(), "different", "w differs")])
    assert beside.session_began


@pytest.mark.parametrize("answer", [False, Rejected("an earlier release has no such route")])
def test_nothing_is_run_that_the_daemon_does_not_want(
    answer: Any, running: RunningScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Mock()
    monkeypatch.setattr(own_check, "checked", run)
    daemon = daemon_that_says(answer)
    begun(daemon, running)
    wait_until(has_ended, 60, "the thread to end")
    assert not run.called and not daemon.report.called


def test_a_launcher_that_ends_waits_for_no_check(running: RunningScript, monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()

    def check(_: object, environ: object, note: Any) -> CheckAnswer:
        process = subprocess.Popen(["sleep", "1000"])
        note(process)
        began.set()
        process.wait()
        return CheckAnswer("undecided", "ended")

    monkeypatch.setattr(own_check, "checked", check)
    daemon = daemon_that_says(True)
    beside = begun(daemon, running)
    assert began.wait(60)
    since = time.monotonic()
    beside.stop()
    assert time.monotonic() - since < 1.0
    wait_until(has_ended, 60, "the thread to end")
    assert not daemon.report.called, "a check that was not over says nothing"


def test_what_is_no_file_cannot_be_run_again(running: RunningScript) -> None:
    answer = own_check.checked(replace(running, script="/nowhere/-c"), {})
    assert (answer.verdict, answer.text.partition(" ")[0]) == ("undecided", "-c")
