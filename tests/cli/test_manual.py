"""Man pages, completion and the reference say what the commands say."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from malletrain.cli.main import COMMANDS
from scripts import commands_page
from scripts.manual import FOLDER, files

MADE = files()


def test_they_are_as_the_commands_are() -> None:
    there = {
        str(path.relative_to(FOLDER)): path.read_text("utf-8")
        for folder in ("man", "completion")
        for path in (FOLDER / folder).rglob("*.*")
    }
    assert there == MADE, "make them anew: python -m scripts.manual"


def test_the_reference_is_as_the_commands_are() -> None:
    assert commands_page.PAGE.read_text("utf-8") == commands_page.page(), "make it anew: python -m scripts.manual"


def test_every_command_has_a_page() -> None:
    assert {f"man/man1/malletrain-{name}.1" for name in COMMANDS} <= MADE.keys()
    assert {"man/man1/malletrain.1", "man/man1/mtbatch.1", "man/man8/malletraind.8"} <= MADE.keys()


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_groff_has_nothing_against_them() -> None:
    pages = sorted(str(FOLDER / path) for path in MADE if path.startswith("man/"))
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", *pages], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("program", ["malletrain", "malletraind", "mtbatch"])
def test_bash_takes_the_completion(program: str) -> None:
    file = FOLDER / "completion" / f"{program}.bash"
    done = subprocess.run(
        ["bash", "-c", f"source {file}; complete -p {program}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert program in done.stdout
