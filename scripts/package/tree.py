"""Where the files of the packages lie, and the environment that they bring.

The standard library is all that this needs: rpmbuild runs it with the Python of the build machine.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Where the environment lies on the machine that the package is installed on; the units name it.
HOME = Path("/opt/malletrain")

#: Commands that the package puts on people's PATH.
PROGRAMS = {"malletrain": "usr/bin", "mtbatch": "usr/bin", "malletraind": "usr/bin"}

#: Files of the administrator's, which an upgrade leaves as they are.
CONFIGURATION = ("etc/malletrain/malletrain.toml",)

#: Files of site-configs, and where the system looks for them.
SYSTEM_FILES = {
    "systemd/malletraind.service": "usr/lib/systemd/system/malletraind.service",
    "systemd/malletraind.socket": "usr/lib/systemd/system/malletraind.socket",
    "systemd/malletraind-port.service": "usr/lib/systemd/system/malletraind-port.service",
    "systemd/malletrain-actuator.service": "usr/lib/systemd/system/malletrain-actuator.service",
    "systemd/malletrain.sysusers": "usr/lib/sysusers.d/malletrain.conf",
    "systemd/malletrain.tmpfiles": "usr/lib/tmpfiles.d/malletrain.conf",
    "small.toml": "etc/malletrain/malletrain.toml",
    "completion/malletrain.bash": "usr/share/bash-completion/completions/malletrain",
    "completion/malletraind.bash": "usr/share/bash-completion/completions/malletraind",
    "completion/mtbatch.bash": "usr/share/bash-completion/completions/mtbatch",
    "completion/malletrain.zsh": "usr/share/zsh/vendor-completions/_malletrain",
    "completion/malletraind.zsh": "usr/share/zsh/vendor-completions/_malletraind",
    "completion/malletrain.fish": "usr/share/fish/vendor_completions.d/malletrain.fish",
    "completion/malletraind.fish": "usr/share/fish/vendor_completions.d/malletraind.fish",
}

#: Makes the environment of the given interpreter below the folder.
MakeEnvironment = Callable[[Path, str], None]


def version() -> str:
    """The project's version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def stage(folder: Path, python: str, make_environment: MakeEnvironment) -> None:
    """Lay all files of a package out below `folder`, as on the machine that it is installed on.

    `python`: the interpreter that the environment is made with, and is run by there.

    Raises:
        subprocess.CalledProcessError: the environment could not be made.
    """
    configs = ROOT / "site-configs"
    make_environment(folder, python)
    for source, target in SYSTEM_FILES.items():
        _copy(configs / source, folder / target)
    for page in sorted((configs / "man").glob("man*/*")):
        _compress(page, folder / "usr/share/man" / page.parent.name / f"{page.name}.gz")
    for file in sorted(configs.rglob("*")):
        if file.is_file() and file.relative_to(configs).parts[0] != "man":
            _copy(file, folder / "usr/share/malletrain/site-configs" / file.relative_to(configs))
    documents = folder / "usr/share/doc/malletrain"
    _compress(ROOT / "CHANGELOG.md", documents / "changelog.gz")
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        _copy(page, documents / page.relative_to(ROOT))
    _copy(ROOT / "LICENSE", documents / "copyright")
    for name, where in PROGRAMS.items():
        link = folder / where / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(HOME / "bin" / name)
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def environment(folder: Path, python: str, wheel: Path | None = None) -> None:
    """Below `folder`, the environment that lies in /opt/malletrain later: pinned versions, each file's hash checked.

    `wheel`: malletrain's own; None builds it from this checkout. It is laid beside the site-configs too, for the
    environments of researchers.
    """
    home = folder / HOME.relative_to("/")
    subprocess.run([python, "-m", "venv", "--without-pip", home], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        tool = Path(scratch) / "pip"
        subprocess.run([python, "-m", "venv", tool], check=True)
        pip: list[str | Path] = [tool / "bin/python", "-m", "pip", "-q", "--disable-pip-version-check"]
        if wheel is None:
            subprocess.run([*pip, "wheel", "--no-deps", "-w", scratch, ROOT], check=True)
            (wheel,) = Path(scratch).glob("malletrain-*.whl")
        install: list[str | Path] = [*pip, "--python", home / "bin/python", "install", "--no-compile"]
        pinned = ROOT / "site-configs/requirements-daemon.txt"
        subprocess.run([*install, "--require-hashes", "--only-binary", ":all:", "-r", pinned], check=True)
        subprocess.run([*install, "--no-deps", wheel], check=True)
        _copy(wheel, folder / "usr/share/malletrain" / wheel.name)
    shutil.rmtree(home / "share/malletrain", ignore_errors=True)  # the package has them in /usr/share
    shutil.rmtree(home / "share/man", ignore_errors=True)
    _move(home, python)


def _move(home: Path, python: str) -> None:
    """Let the environment name the place where it will lie; bytecode is made for that place."""
    for script in (home / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        try:
            text = script.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        script.write_text(text.replace(str(home), str(HOME)), "utf-8")
    for told in home.glob("lib/*/site-packages/malletrain-*.dist-info/direct_url.json"):
        told.unlink()  # where it was built
    config = home / "pyvenv.cfg"
    lines = config.read_text().splitlines()
    config.write_text("".join(f"{line}\n" for line in lines if not line.startswith("command")))
    for name in (home / "bin").glob("python*"):
        name.unlink()
        name.symlink_to(python if name.name == "python3" else "python3")
    compile_all = [python, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*compile_all, "-s", home, "-p", HOME, home / "lib"], check=True)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _compress(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(source.read_bytes(), mtime=0))


def files(folder: Path) -> Sequence[Path]:
    """What a staged tree holds, relative to it: files and links."""
    return [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file()]
