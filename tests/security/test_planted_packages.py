"""A working folder that others may write to: no package planted there runs as whoever works in it.

`python -m` and `python -c` look for modules in the working folder first (sys.path, docs.python.org), so each Python
that MalleTrain starts is started with `-P`. The researcher's own script still begins in its own folder.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.replay.parts import Piece, run_pieces
from malletrain.script_check.check_runs import _Run
from malletrain.slurm.command import Commands
from malletrain.slurm.read_pyslurm import choose
from malletrain.slurm.submission import batch_request, directives
from malletrain.study.cluster_runs import _body
from malletrain.study.local_runs import LocalRun
from malletrain.study.trial_spec import TrialSpec
from malletrain.wire.address import Address

PACKAGE = Path(__file__).resolve().parents[2] / "malletrain"

#: What each planted module does: leave its name in the folder that it stands in.
TRAP = "import pathlib\npathlib.Path(__file__).parents[{up}].joinpath('ran-{name}').touch()\n"

SHOW = "import os, sys\nprint('first', sys.path[0], os.environ.get('PYTHONSAFEPATH'))\n"
SHOW_PATH = SHOW.replace("SAFE", "")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with traps in it, which is the working folder."""
    folder = tmp_path / "shared"
    for name in ("malletrain", "multiprocessing"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(TRAP.format(up=1, name=name))
    for name in ("json", "torch", "pyslurm", "runpy", "subprocess"):
        (folder / f"{name}.py").write_text(TRAP.format(up=0, name=name))
    monkeypatch.chdir(folder)
    return folder


def ran(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("ran-*"))


def test_a_python_that_looks_in_the_working_folder_runs_what_is_planted(planted: Path) -> None:
    subprocess.run([sys.executable, "-m", "malletrain.elastic.launch"], check=False, capture_output=True)
    assert ran(planted)


@pytest.mark.parametrize(
    "pythonpath", ["", ":/opt/own lib", "/opt/lib:", "/opt/a::/opt/b", ".", "../s:/opt/a", "/opt"]
)
def test_a_pilot(planted: Path, tmp_path: Path, pythonpath: str) -> None:
    """The batch script, as Slurm runs it; srun is replaced by one that runs its command. Past the launcher's end it
    runs the command that the launcher would. An empty or relative entry of PYTHONPATH names the working folder: it
    is the script's alone."""
    line = directives.from_command_line(["--nodes=1-2", "train.sh"])
    shell = "/bin/sh" if pythonpath else "/bin/bash"
    body = f"#!{shell}\n{sys.executable} {tmp_path}/train.py\n".encode()
    request = batch_request.request(body, "train.sh", line.options, (), Address("", "harvest"), str(planted))
    (tmp_path / "train.py").write_text(SHOW_PATH)
    srun, script = tmp_path / "srun", tmp_path / "slurm_script"
    srun.write_text(
        '#!/bin/bash\nwhile [[ "$1" == --* ]]; do shift; done; "$@"\n'
        'while [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'
    )
    srun.chmod(0o755)
    script.write_bytes(request.materialize(7, "http://127.0.0.1:1", sys.executable, {}).script)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "5", "PYTHONPATH": pythonpath}
    done = subprocess.run(["/bin/bash", str(script)], capture_output=True, text=True, env=environ)
    assert "malletrain.elastic.launch: " in done.stderr  # it is no pilot of any daemon's
    assert done.stdout.splitlines() == [f"first {tmp_path} {pythonpath}"], done.stderr
    assert not ran(planted)


def test_a_trial_on_this_machine(planted: Path, tmp_path: Path) -> None:
    trial = tmp_path / "trials"
    trial.mkdir()
    (planted / "own.py").write_text(SHOW + "import malletrain\nprint(malletrain.__file__)\n")
    spec = TrialSpec(name="s-0", folder=str(trial), file=str(planted / "own.py"), function="", params={}, nodes="1-2")
    spec.write()
    run = LocalRun(spec, {"PATH": "/usr/bin:/bin"})
    while run.next(60.0) is None:
        pass
    said = (trial / "output.txt").read_text()
    assert said.splitlines()[:2] == [f"first {planted} None", str(PACKAGE / "__init__.py")], said
    assert not ran(planted)


def test_a_trial_on_the_cluster(planted: Path, tmp_path: Path) -> None:
    spec = TrialSpec(name="s-0", folder=str(tmp_path), file="own.py", function="", params={}, nodes="1-2")
    done = subprocess.run(["/bin/bash"], input=_body(spec), capture_output=True)
    assert b"trial_spec" in done.stderr  # there is none in the folder
    assert not ran(planted)


def test_a_script_that_is_checked(planted: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SHOW)
    run = _Run(tmp_path, [str(tmp_path / "own.py")])
    try:
        run.spawn("0")
        run.wait_end("0")
        assert run.log_tail().splitlines()[0] == f"first {tmp_path} None"
    finally:
        run.end()
    assert not ran(planted)


def test_the_process_that_asks_pyslurm(planted: Path) -> None:
    _, why = choose(Commands(), (24, 11), sys.executable)
    assert "No module named 'pyslurm'" in why
    assert not ran(planted)


def test_slurms_commands_run_outside_the_working_folder(planted: Path) -> None:
    assert Commands().ask(["pwd"]).strip() == "/"
    (planted / "slurm.conf").touch()
    conf = Commands({"PATH": "/usr/bin:/bin", "SLURM_CONF": "slurm.conf"}).ask(["sh", "-c", "echo $SLURM_CONF"])
    assert conf.strip() == str(planted / "slurm.conf")


def _mapped(part: object, choice: object) -> str:
    return "ran"


def test_the_processes_of_a_replay(planted: Path) -> None:
    pieces = [Piece(0, 1.0, None, None)]  # type: ignore[arg-type]
    found = run_pieces(pieces, 1, _mapped, None, processes=2)  # type: ignore[arg-type]
    assert [str(each) for each in found[0]] == ["ran"]
    assert not ran(planted)


def test_no_python_is_started_without_it() -> None:
    """`-m` in a command line stands behind `-P`, everywhere in the package but for words that people read."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = re.search(r'"-[mc]", "malletrain|\)\} -m ', line)
            assert words is None or "-P" in line, f"{path}:{number}: {line.strip()}"
