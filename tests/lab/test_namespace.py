"""A checkout below a folder that is closed to the lab's users: what is covered, what is refused, and that it runs."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.lab import UsageError, namespace
from scripts.lab.users import Identity
from tests.messages import says
from tests.slurm_fixtures import LabFactory, short_directory

ROOT = Path(__file__).resolve().parents[2]
NOBODY = Identity("nobody", 65534, 65534, ())

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount, and become another user")


@pytest.mark.parametrize(
    ("closed", "paths", "covered"),
    [
        ("", "/root/mt /root/mt/.venv /usr", {}),
        ("/root", "/root/mt /root/mt/.venv /usr", {"/root": "/root/mt"}),
        ("/root", "/root/mt /root/venvs/mt", {"/root": "/root/mt /root/venvs/mt"}),
        ("/home/u /home/u/src", "/home/u/src/mt", {"/home/u": "/home/u/src/mt"}),
        ("/home/u /root", "/home/u/mt /root/env", {"/home/u": "/home/u/mt", "/root": "/root/env"}),
        ("/srv/mt", "/srv/mt", {}),  # its own mode no mount changes: check() refuses it
    ],
    ids=["all open", "a home", "environment apart", "topmost of two", "two homes", "the checkout itself"],
)
def test_only_what_lies_below_a_closed_folder_is_mounted(closed: str, paths: str, covered: dict[str, str]) -> None:
    found = namespace.to_cover(map(Path, paths.split()), {Path(word) for word in closed.split()}.__contains__)
    assert found == {Path(folder): tuple(map(Path, shown.split())) for folder, shown in covered.items()}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that no other user can enter, at a path that a shell must have quoted."""
    parent = short_directory()
    made = parent / "it's a home"
    made.mkdir()
    made.chmod(0o700)
    yield made
    shutil.rmtree(parent)


def can_mount() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount")
def test_others_reach_what_is_shown_and_nothing_else(folder: Path) -> None:
    shown = [folder / "deep" / "check out", folder / "env"]
    for path in shown:
        path.mkdir(parents=True)
        (path / "file").write_text(f"of {path.name}\n")
    (folder / "secret").write_text("secret")
    script = namespace.mounting({folder: shown})
    look = 'cat "$1/deep/check out/file" "$1/env/file"; ls "$1"; touch "$1/deep/new" || echo refused'

    def run(*command: str) -> "subprocess.CompletedProcess[str]":
        entered = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script, "lab", *command]
        return subprocess.run(entered, capture_output=True, text=True, timeout=30, check=False, umask=0o077)

    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    done = run(*as_nobody, "sh", "-c", look, "sh", str(folder))
    assert done.stdout.split("\n")[:-1] == ["of check out", "of env", "deep", "env", "refused"], done.stderr
    by_root = run("sh", "-c", 'umask; echo new > "$1/env/new"; touch "$1/lost" || echo refused', "sh", str(folder))
    assert by_root.stdout.split() == ["0077", "refused"], "what could not be kept is not taken"
    assert (folder / "env" / "new").read_text() == "new\n", "no copy"
    assert sorted(path.name for path in folder.iterdir()) == ["deep", "env", "secret"]
    assert f"{folder.name}".replace(" ", r"\040") not in Path("/proc/self/mountinfo").read_text()


@pytest.fixture
def checkout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a few files below the closed folder, taken for the one that runs."""
    made = folder / "mt"
    for name in ("malletrain", "scripts"):
        (made / name).mkdir(parents=True)
        (made / name / "slurm-lab").touch()
    for path in (made, *made.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    monkeypatch.setattr(namespace, "ROOT", made)
    monkeypatch.delenv("MALLETRAIN_VENV", raising=False)
    return made


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount")
def test_a_checkout_below_a_closed_folder_will_do(checkout: Path) -> None:
    namespace.check()


def test_a_file_that_others_cannot_read_is_named(checkout: Path) -> None:
    (checkout / "malletrain" / "slurm-lab").chmod(0o600)
    with pytest.raises(UsageError, match=r"malletrain/slurm-lab: .*\(mode 0600\)") as refused:
        namespace.check()
    assert f"chmod -R go+rX {shlex.quote(str(checkout))}" in str(refused.value)


def test_an_environment_that_others_cannot_run_is_named(checkout: Path) -> None:
    environment = checkout / ".venv" / "bin"
    environment.mkdir(parents=True)
    environment.chmod(0o700)
    with pytest.raises(UsageError, match=r"\.venv/bin: .*\(mode 0700\)"):
        namespace.check()


def test_where_root_may_not_mount_it_says_where_to_go(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an unprivileged container."""
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(namespace, "SYSTEM_PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UsageError) as refused:
        namespace.check()
    for words in (str(checkout.parent), "(mode 0700)", "Operation not permitted", "as /opt", "chmod o+x"):
        assert words in str(refused.value)


def test_the_demo_says_at_once_that_it_needs_root() -> None:
    command = [str(ROOT / "scripts" / "demo")]
    done = subprocess.run(
        namespace.as_user(NOBODY, command) if os.geteuid() == 0 else command,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("setup: ")
    assert says(done.stderr, "root (sudo)")
    assert len(done.stderr.splitlines()) == 1, "and does nothing else"


PLAY = """
import shlex
import sys
from pathlib import Path
from scripts.lab import Lab, LabConfig
from scripts.play.site import Site

with Lab.up(sys.argv[1], LabConfig(nodes=1, users=True, accounting=True)) as lab:
    with Site(lab, daemon_user="malletrain", account="harvest") as site:
        site.start()
        print(site.malletrain("alice", "status").stdout)
    program = shlex.join([sys.executable, "-c", "import malletrain, os; print(os.getuid(), malletrain.__file__)"])
    job = lab.submit(program, user="alice")
    lab.wait_for_state(job, "COMPLETED", "FAILED")
    print((lab.output / f"{job}.txt").read_text())
"""


@needs_root
@pytest.mark.slurm
def test_daemon_commands_and_jobs_of_users_run_a_checkout_in_a_closed_home(
    folder: Path, lab_directory: Path, lab_factory: LabFactory
) -> None:
    lab_factory()
    checkout = folder / "MalleTrain"
    for name in ("malletrain", "scripts", "sql"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", checkout)
    environment = make_environment(checkout)
    done = subprocess.run(
        [environment / "bin" / "python", "-c", PLAY, lab_directory],
        cwd=checkout, env={**os.environ, "MALLETRAIN_VENV": sys.prefix}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{Identity.of('alice').uid} {checkout}/malletrain/__init__.py" in done.stdout
    assert folder.stat().st_mode & 0o777 == 0o700


def make_environment(checkout: Path) -> Path:
    """What scripts/setup makes there, but for the packages, which are those of the running environment."""
    made = checkout / ".venv"
    base = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    subprocess.run([base, "-m", "venv", "--without-pip", made], check=True, timeout=60)
    packages = made / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "checkout.pth").write_text(f"{checkout}\n{sysconfig.get_path('purelib')}\n")
    for name, module in (("malletraind", "daemon"), ("malletrain", "cli")):
        program = made / "bin" / name
        start = f"import sys\nfrom malletrain.{module}.main import main\nsys.exit(main())\n"
        program.write_text(f"#!/bin/sh\n'''exec' \"{made}/bin/python\" \"$0\" \"$@\"\n' '''\n{start}")  # as pip does
        program.chmod(0o755)
    return made
