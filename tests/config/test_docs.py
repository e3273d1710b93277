"""The reference and the shipped examples say what the code does."""

import ast
import inspect
import json
import os
import shutil
import subprocess
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest

from malletrain import config
from malletrain.config.sections import SECTIONS, TABLES, Config, Section
from malletrain.wire import address

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference" / "config.md"
SITES = ROOT / "site-configs"


def meanings(section: type[Section]) -> dict[str, str]:
    """The docstring below each key. Pydantic would read them from the source at each start of the daemon."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(made, ast.ClassDef)
    return {
        key.target.id: inspect.cleandoc(said.value.value)
        for key, said in pairwise(made.body)
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name)
        if isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant) and isinstance(said.value.value, str)
    }


def rows() -> list[str]:
    """A line for every key, as the reference has it."""
    found = []
    every: dict[str, type[Section]] = {"": Config, **SECTIONS}
    for name, section in every.items():
        means = meanings(section)
        keys = {key: field for key, field in section.model_fields.items() if key not in SECTIONS}
        for key, field in keys.items():
            default = json.dumps(field.get_default(call_default_factory=True))
            found.append(f"| `{f'{name}.{key}' if name else key}` | `{default}` | {means[key]} |")
    return found


def test_every_key_is_in_the_reference_with_its_default_and_meaning() -> None:
    table = REFERENCE.read_text().partition("## Keys\n")[2].partition("\n## ")[0]
    assert [line for line in table.splitlines() if line.startswith("| `")] == rows()


def test_there_are_few_keys() -> None:
    """Each has a reason why a site would set it; what has none is a constant (`malletrain.config.gone`)."""
    assert len(rows()) <= 45


@pytest.mark.parametrize("table", TABLES.values())
def test_every_key_of_a_table_is_named_in_the_reference(table: type[Section]) -> None:
    said = REFERENCE.read_text().partition("## Tables\n")[2].partition("\n## ")[0]
    assert [key for key in table.model_fields if f"`{key}`" not in said] == []


def test_every_key_has_a_meaning() -> None:
    for section in SECTIONS.values():
        assert meanings(section).keys() == section.model_fields.keys(), section


@pytest.mark.parametrize("name", ["small.toml", "large.toml"])
def test_the_examples_have_no_faults(name: str) -> None:
    assert config.load(SITES / name).slurm.partition == "harvest"


def test_a_small_sites_file_is_five_lines() -> None:
    lines = [line for line in (SITES / "small.toml").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 5


def test_the_large_example_shows_every_section() -> None:
    made = config.load(SITES / "large.toml")
    assert made.model_fields_set == set(Config.model_fields)


def test_the_clients_example_is_one(tmp_path: Path) -> None:
    found = address.read(SITES / "client.toml")
    assert (found.url, found.partition) == ("http://head1.example.org:8470", "harvest")
    for key in address.KEYS:
        assert f"| `{key}` |" in REFERENCE.read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["malletraind.service", "malletrain-actuator.service", "malletraind.socket"])
def test_systemd_takes_the_unit(name: str, tmp_path: Path) -> None:
    unit = (SITES / "systemd" / name).read_text()
    assert "/opt/malletrain/bin/malletraind" in unit or name.endswith(".socket")
    shutil.copy(SITES / "systemd" / "malletraind-port.service", tmp_path)
    here = tmp_path / name
    # systemd checks that the program is there: any will do.
    here.write_text(unit.replace("/opt/malletrain/bin/malletraind", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(here)], capture_output=True, text=True, timeout=60, check=False
    )
    said = [line for line in done.stderr.splitlines() if "malletrain" in line]
    assert said == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["malletraind.service", "malletrain-actuator.service"])
def test_the_unit_is_hardened(name: str) -> None:
    """By systemd's own reckoning, from 0 (safe) to 10; offline, without any systemd that runs."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(SITES / "systemd" / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot do that offline (systemd 250)")
    assert done.returncode == 0, done.stdout[-400:] + done.stderr


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
def test_the_users_that_the_units_run_as_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    text = (SITES / "systemd" / "malletrain.sysusers").read_text()
    command = ["systemd-sysusers", "--dry-run", f"--root={tmp_path}", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-sysusers has no --dry-run (systemd 250)")
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert [f"'{user}'" in said for user in ("malletrain", "malletrain-slurm")] == [True, True], said


def test_the_unit_starts_what_the_daemon_understands() -> None:
    unit = dict(
        line.split("=", 1)
        for line in (SITES / "systemd" / "malletraind.service").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert unit["Type"] == "notify"
    assert int(unit["WatchdogSec"]) > 3 * Config().loop.tick_s
    assert unit["RestartPreventExitStatus"] == str(config.ConfigError.exit_status)
    assert Config().store.path.startswith(f"/var/lib/{unit['StateDirectory']}/")
    assert f"--config {config.SYSTEM_FILE}" in unit["ExecStart"]
    assert unit["User"] not in ("root", "slurm")


def test_the_socket_unit_holds_the_daemons_port() -> None:
    socket_unit = (SITES / "systemd" / "malletraind.socket").read_text()
    assert f"ListenStream={Config().api.port}\n" in socket_unit
    assert "BindIPv6Only=both\n" in socket_unit
    assert "Sockets=malletraind.socket\n" in (SITES / "systemd" / "malletraind.service").read_text()


def test_the_actuators_unit_goes_with_the_daemons() -> None:
    units = [
        dict(
            line.split("=", 1)
            for line in (SITES / "systemd" / name).read_text().splitlines()
            if "=" in line and not line.startswith("#")
        )
        for name in ("malletraind.service", "malletrain-actuator.service")
    ]
    assert units[1]["ExecStart"] == units[0]["ExecStart"].replace("--config", "--actuator --config")
    assert units[1]["User"] != units[0]["User"] == Config().actuator.listener
    assert units[1]["Group"] == units[0]["Group"], "the socket is for its group"
    socket = config.load(SITES / "large.toml").actuator.socket
    assert socket.startswith(f"/run/{units[1]['RuntimeDirectory']}/")
    hardening = [
        {k: v for k, v in unit.items() if k.startswith(("Protect", "Private", "Restrict"))} for unit in units
    ]
    assert hardening[0] == hardening[1]


@pytest.mark.parametrize(
    ("program", "file"), [("systemd-sysusers", "malletrain.sysusers"), ("systemd-tmpfiles", "malletrain.tmpfiles")]
)
def test_systemd_takes_the_user_and_the_folders(program: str, file: str, tmp_path: Path) -> None:
    if shutil.which(program) is None or os.geteuid() != 0:
        pytest.skip(f"needs {program} and root")
    (tmp_path / "etc").mkdir()
    if program == "systemd-tmpfiles":
        (tmp_path / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nmalletrain:x:64000:64000::/:/bin/false\n")
        (tmp_path / "etc/group").write_text("root:x:0:\nmalletrain:x:64000:\n")
    argv = [program, f"--root={tmp_path}", *(["--create"] if program == "systemd-tmpfiles" else [])]
    copied = tmp_path / file
    copied.write_text((SITES / "systemd" / file).read_text())
    done = subprocess.run([*argv, str(copied)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    if program == "systemd-sysusers":
        assert "malletrain:" in (tmp_path / "etc/passwd").read_text()
    else:
        assert (tmp_path / "var/lib/malletrain").stat().st_mode & 0o777 == 0o750


@pytest.mark.slurm
@pytest.mark.skipif(shutil.which("squeue") is None, reason="Slurm is not installed")
def test_slurm_takes_the_harvest_partition(tmp_path: Path) -> None:
    """Slurm reads slurm.conf before it looks for slurmctld: with a wrong key it never gets that far."""
    conf = tmp_path / "slurm.conf"
    head = "ClusterName=x\nSlurmctldHost=localhost\nSlurmctldPort=1\nNodeName=n[1-2]\n"
    conf.write_text(
        head
        + "PartitionName=batch Nodes=ALL Default=YES PriorityTier=100 PreemptMode=OFF\n"
        + (SITES / "slurm.conf").read_text()
    )
    environ = {**os.environ, "SLURM_CONF": str(conf)}
    done = subprocess.run(["scontrol", "show", "hostnames", "n[1-2]"], capture_output=True, text=True, timeout=60,
                          check=False, env=environ)  # fmt: skip
    assert (done.stdout, done.returncode) == ("n1\nn2\n", 0), done.stderr
    assert "error" not in done.stderr
