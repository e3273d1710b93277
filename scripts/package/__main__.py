"""Builds packages of this checkout. See docs/how-to/admin-install.md.

    python3 -m scripts.package deb  [--output dist]      malletrain_VERSION-1_ARCH.deb; needs dpkg-deb
    python3 -m scripts.package rpm  [--output dist]      malletrain-VERSION-1.ARCH.rpm; needs rpmbuild
    python3 -m scripts.package tree FOLDER               the files alone, as on the machine that has them installed

The package works with the Python that builds it (--python), since compiled modules are made for one: build it on the
distribution that it is for.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from scripts.package import tree

HERE = Path(__file__).resolve().parent
RELEASE = "1"


def deb(output: Path, python: str, make_environment: tree.MakeEnvironment) -> Path:
    """Build the Debian package; where it lies."""
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as scratch:
        staged = Path(scratch) / "malletrain"
        staged.mkdir()
        tree.stage(staged, python, make_environment)
        size_kib = sum(path.lstat().st_size for path in staged.rglob("*")) // 1024
        control = staged / "DEBIAN"
        control.mkdir(mode=0o755)
        major, minor = _version_of(python)
        text = (HERE / "debian/control").read_text()
        values = {
            "VERSION": f"{tree.version()}-{RELEASE}",
            "ARCHITECTURE": architecture,
            "SIZE": str(size_kib),
            "PYTHON": f"{major}.{minor}",
            "NEXT_PYTHON": f"{major}.{minor + 1}",
        }
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        (control / "control").write_text(text)
        (control / "conffiles").write_text("".join(f"/{each}\n" for each in tree.CONFIGURATION))
        for script in ("postinst", "prerm", "postrm"):
            shutil.copyfile(HERE / "debian" / script, control / script)
            (control / script).chmod(0o755)
        built = output / f"malletrain_{values['VERSION']}_{architecture}.deb"
        build = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z2", "--threads-max=2", "--build"]
        subprocess.run([*build, staged, built], check=True, stdout=subprocess.DEVNULL)
    return built


def rpm(output: Path, python: str) -> Path:
    """Build the RPM; where it lies. The environment is made by the specification, from this checkout."""
    major, minor = _version_of(python)
    with tempfile.TemporaryDirectory() as scratch:
        values = {
            "_topdir": scratch,
            "checkout": tree.ROOT,
            "project_version": tree.version(),
            "package_release": RELEASE,
            "python": python,
            "python_version": f"{major}.{minor}",
        }
        defined = [word for name, value in values.items() for word in ("--define", f"{name} {value}")]
        subprocess.run(["rpmbuild", "-bb", "--quiet", *defined, HERE / "rpm/malletrain.spec"], check=True)
        (made,) = Path(scratch).glob("RPMS/*/*.rpm")
        return Path(shutil.copy(made, output))


def _version_of(python: str) -> tuple[int, int]:
    said = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=True
    ).stdout.split()
    return int(said[0]), int(said[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("deb", "rpm", "tree"))
    parser.add_argument("folder", nargs="?", type=Path, help="of `tree`: where to; must not exist or be empty")
    parser.add_argument("--output", type=Path, default=Path("dist"), help="folder of the package (default: dist)")
    parser.add_argument("--python", default="/usr/bin/python3", help="the system's (default: /usr/bin/python3)")
    parser.add_argument("--wheel", type=Path, help="malletrain's wheel; without it one is built from the checkout")
    options = parser.parse_args()
    make = partial(tree.environment, wheel=options.wheel)
    if options.what == "tree":
        if options.folder is None:
            parser.error("tree: which folder?")
        tree.stage(options.folder, options.python, make)
        return 0
    options.output.mkdir(parents=True, exist_ok=True)
    print(deb(options.output, options.python, make) if options.what == "deb" else rpm(options.output, options.python))
    return 0


if __name__ == "__main__":
    sys.exit(main())
