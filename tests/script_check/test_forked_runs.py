"""Processes that are forked from one which has imported torch: in environments and groups of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.script_check.forked_runs import ForkedRun, Starter
from tests.waiting import runs, wait_until

SCRIPT = """
import os, subprocess, sys
print(os.environ["COLOUR"], hash("a"), os.getpgrp() == os.getpid(), sys.argv[1:], repr(sys.stdin.read()), flush=True)
if os.environ["COLOUR"] == "red":
    child = subprocess.Popen(["sleep", "600"])
    print(child.pid, flush=True)
    child.wait()
"""


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    made = Starter(tmp_path, [str(script), "7"], dict(os.environ), tmp_path / "log")
    yield made
    made.end()


def run(starter: Starter, folder: Path, colour: str) -> ForkedRun:
    named = {"MALLETRAIN_CHECK_DIR": str(folder), "MALLETRAIN_CHECK_NAME": colour, "COLOUR": colour}
    return starter.start(os.environ | named, folder / f"log-{colour}")


def test_each_has_its_environment_its_log_and_the_others_hashes(starter: Starter, tmp_path: Path) -> None:
    both = [run(starter, tmp_path, colour) for colour in ("green", "blue")]
    wait_until(lambda: all(each.poll() is not None for each in both), 60, "their ends")
    assert [each.poll() for each in both] == [0, 0]
    said = [(tmp_path / f"log-{colour}").read_text().split(maxsplit=2) for colour in ("green", "blue")]
    assert [words[0] for words in said] == ["green", "blue"]
    assert said[0][1:] == said[1][1:]
    assert said[0][2] == "True ['7'] ''\n"


def test_what_is_killed_has_gone_with_its_children(starter: Starter, tmp_path: Path) -> None:
    killed, log = run(starter, tmp_path, "red"), tmp_path / "log-red"
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) == 2, 60, "its child")
    child = int(log.read_text().splitlines()[1])
    killed.kill()
    wait_until(lambda: killed.poll() is not None, 60, "its exit status, which its starter writes")
    assert killed.poll() == -signal.SIGKILL
    wait_until(lambda: not runs(child), 60, "the child's end")


def test_why_none_can_be_started_is_said(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no library')")
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    broken = Starter(tmp_path, ["script.py"], environ, tmp_path / "log")
    with pytest.raises(OSError, match="no library"):
        run(broken, tmp_path, "green")
    broken.end()
