"""What the packages hold, and, in a clean Debian, that they install, upgrade and go."""

from __future__ import annotations

import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from scripts.package import tree
from scripts.package.__main__ import deb, rpm
from tests.package.clean_root import CleanRoot
from tests.package.first_job import PAGES, ROLES, commands_of, follow, mark_of, minutes_in_transcript

PYTHON = "/usr/bin/python3"
SCRIPTS = tree.ROOT / "scripts/package"


def no_environment(folder: Path, python: str) -> None:
    """In place of the real one, which takes a network: the programs that links and units name."""
    programs = folder / tree.HOME.relative_to("/") / "bin"
    programs.mkdir(parents=True)
    for name in tree.PROGRAMS:
        (programs / name).write_text(f"#!{python}\n")
        (programs / name).chmod(0o755)


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    tree.stage(tmp_path, PYTHON, no_environment)
    return tmp_path


def test_every_link_unit_and_configuration_file_leads_somewhere(staged: Path) -> None:
    held = {str(path) for path in tree.files(staged)}
    assert set(tree.CONFIGURATION) <= held
    for name, where in tree.PROGRAMS.items():
        target = (staged / where / name).readlink()
        assert (staged / target.relative_to("/")).is_file()
    for unit in ("malletraind", "malletrain-actuator"):
        text = (staged / f"usr/lib/systemd/system/{unit}.service").read_text()
        (program,) = re.findall(r"^ExecStart=(\S+)", text, re.MULTILINE)
        assert (staged / program.removeprefix("/")).is_file()
        assert "/etc/malletrain/malletrain.toml" in text


def test_all_of_site_configs_and_every_man_page_come_along(staged: Path) -> None:
    configs = tree.ROOT / "site-configs"
    held = {str(path) for path in tree.files(staged)}
    for file in configs.rglob("*"):
        if file.is_file():
            parts = file.relative_to(configs)
            there = (
                f"usr/share/{parts}.gz" if parts.parts[0] == "man" else f"usr/share/malletrain/site-configs/{parts}"
            )
            assert there in held


def test_nothing_is_writable_to_others(staged: Path) -> None:
    assert not [path for path in staged.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022]


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_the_maintainer_scripts_are_shell(script: str) -> None:
    subprocess.run(["sh", "-n", SCRIPTS / "debian" / script], check=True)


@pytest.mark.parametrize("script", ["debian/postinst", "rpm/malletrain.spec"])
def test_a_first_installation_starts_no_daemon(script: str) -> None:
    """A site's doctor finds no error on its login nodes, too, and a cluster has one daemon."""
    lines = (SCRIPTS / script).read_text().splitlines()
    run = [line.strip() for line in lines if not line.strip().startswith(("#", "echo", "4."))]
    assert not [line for line in run if "enable" in line or "systemctl start" in line]


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_a_debian_package_is_built(tmp_path: Path) -> None:
    package = deb(tmp_path, PYTHON, no_environment)
    fields = subprocess.run(["dpkg-deb", "-f", package], capture_output=True, text=True, check=True).stdout
    assert f"Version: {tree.version()}-1\n" in fields
    assert "@" not in fields.replace("malletrain@example.org", "")
    listed = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in listed.splitlines()} == {"root/root"}


def test_the_rpm_specification_names_every_file(staged: Path) -> None:
    text = (SCRIPTS / "rpm/malletrain.spec").read_text().split("%files\n")[1].split("\n\n")[0]
    patterns = [line.split()[-1] for line in text.splitlines()]
    for path in (f"/{each}" for each in tree.files(staged)):
        assert any(fnmatch(path, pattern) or path.startswith(f"{pattern}/") for pattern in patterns), path


@pytest.mark.parametrize("role", ROLES)
def test_the_transcript_is_of_the_quick_start_as_it_is(role: str) -> None:
    text = (PAGES / f"transcript-{role}.md").read_text()
    assert mark_of(commands_of(PAGES / f"{role}.md")) in text, (
        "make it anew: python3 -m tests.package.first_job --write"
    )
    assert minutes_in_transcript(text) < ROLES[role][1]


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_it_is_installed_upgraded_and_removed_in_a_clean_debian(clean_root: CleanRoot, package: Path) -> None:
    root = clean_root
    done = follow(root, "sysadmin")
    assert done.took_s < 600
    assert not re.search(r"^error", done.steps[2].output, re.MULTILINE), "the doctor is content"
    root.run("su - ann -c 'mtbatch --chdir=/tmp /tmp/first.sh'")
    going = "malletrain status 2 | grep -q 'phase *running'"
    root.run(f"until {going} && ! squeue -h -p harvest -o %i | grep -q ^1_; do sleep 1; done")
    pilots = root.run("squeue -h -p harvest -t R -o %i").stdout
    assert pilots
    assert root.run("stat -c %a:%U /var/lib/malletrain").stdout == "750:malletrain\n"

    # An upgrade: the administrator's file stays, the daemon is a new process, pilots train on.
    newer = package.parent / "newer"
    subprocess.run(["dpkg-deb", "-R", package, newer], check=True)
    control = newer / "DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {tree.version()}-1", f"Version: {tree.version()}-2"))
    (newer / "usr/share/malletrain/newer").touch()
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "-b", newer, package.parent / "newer.deb"], check=True
    )
    root.copy_in(package.parent / "newer.deb", "/root/newer.deb")
    root.run("echo '# of this site' >> /etc/malletrain/malletrain.toml")
    was = root.run("systemctl show -P MainPID malletraind").stdout
    root.run("dpkg -i newer.deb")
    assert root.run("systemctl show -P MainPID malletraind").stdout != was
    assert root.run("systemctl is-active malletraind").stdout == "active\n"
    assert "# of this site" in root.run("cat /etc/malletrain/malletrain.toml").stdout
    root.run(f"until {going}; do sleep 1; done")
    assert root.run("squeue -h -p harvest -t R -o %i").stdout == pilots

    # Back to the older one, which reads the same journal.
    root.run(f"dpkg -i --force-downgrade {package.name}")
    root.run(f"until {going}; do sleep 1; done")
    assert root.run("squeue -h -p harvest -t R -o %i").stdout == pilots

    # Removed, then purged; and where Slurm is prepared already, a first installation starts at once.
    root.run("dpkg -r malletrain")
    assert root.run("systemctl is-active malletraind", check=False).stdout != "active\n"
    assert root.run("test -e /opt/malletrain/bin/malletraind", check=False).returncode == 1
    root.run("test -s /var/lib/malletrain/malletrain.db && test -s /etc/malletrain/malletrain.toml")
    root.run('scancel -p harvest; until [ -z "$(squeue -h -p harvest)" ]; do sleep 1; done')
    root.run("dpkg -P malletrain")
    assert root.run("ls -d /var/lib/malletrain /etc/malletrain", check=False).returncode == 2
    root.run(f"dpkg -i {package.name}")
    assert root.run("systemctl is-active malletraind").stdout == "active\n"
    root.run("sudo -u malletrain malletrain doctor")


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="needs rpmbuild (Debian: rpm)")
def test_the_rpm_is_built_and_laid_out(tmp_path: Path) -> None:
    package = rpm(tmp_path, PYTHON)
    root = tmp_path / "root"
    root.mkdir()
    install: list[str | Path] = ["rpm", "--root", root, "-i", "--nodeps", "--noscripts", package]
    subprocess.run(install, check=True)
    assert (root / "usr/bin/mtbatch").readlink() == tree.HOME / "bin/mtbatch"
    program = root / "opt/malletrain/bin/malletrain"
    assert program.read_text().startswith("#!/opt/malletrain/bin/python")
    assert str(tmp_path) not in program.read_text()
    said = subprocess.run(["rpm", "-qpc", package], capture_output=True, text=True, check=True).stdout
    assert said.split() == [f"/{each}" for each in tree.CONFIGURATION]
    asked = subprocess.run(["rpm", "-qpR", package], capture_output=True, text=True, check=True).stdout
    assert "python(abi) = 3." in asked
