"""What the daemon is installed from: pinned, hashed, listed, and of no version that is known to be bad."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts import supply


def test_the_shipped_files_agree_and_nothing_is_known_to_be_bad() -> None:
    assert supply.faults() == []


def test_the_bill_of_materials_is_made_from_the_pinned_versions() -> None:
    bill = supply.bill_of_materials(supply.pins(supply.LOCK.read_text()))
    assert supply.SBOM.read_text() == supply.render(bill)
    names = {component["name"] for component in bill["components"]}
    assert {"fastapi", "sqlalchemy", "highspy", "click"} <= names
    assert "torch" not in names, "the researchers' own"
    references = {component["bom-ref"] for component in bill["components"]}
    assert all(set(each["dependsOn"]) <= references for each in bill["dependencies"])


@pytest.mark.parametrize(
    ("package", "version", "found"),
    [
        ("starlette", "1.0.0", "CVE-2026-48710"),
        ("starlette", "0.49.0", "CVE-2025-62727"),
        ("h11", "0.14.0", "CVE-2025-43859"),
        ("lightning", "2.6.3", "SNYK-PYTHON-LIGHTNING-16323121"),
        ("pyyaml", "5.3", "CVE-2020-14343"),
    ],
)
def test_a_bad_pin_is_found(package: str, version: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(found in line for line in supply.known_bad({package: version}, supply.advisories()))
    pinned = supply.pins(supply.CONSTRAINTS.read_text())
    assert supply.known_bad({package: pinned[package].version}, supply.advisories()) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda text: text.replace("starlette==", "starlette==0.49.0 #"), "CVE-2025-62727"),
        (lambda text: text.replace("h11==0.16.0", "h11==0.15.0"), "0.16.0"),
        (lambda text: text[: text.index("uvicorn==")], "uvicorn is"),
        (lambda text: text + "left-pad==1.0.0\n", "nothing needs left-pad"),
    ],
)
def test_a_pinned_file_that_was_altered_is_named(
    change: object, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(change)
    altered = tmp_path / "requirements.txt"
    altered.write_text(change(supply.LOCK.read_text()))
    monkeypatch.setattr(supply, "LOCK", altered)
    assert any(fault in line for line in supply.faults())


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        ("sqlalchemy>=2.1b1,<3", "admits pre-releases"),
        ("uvicorn>=0.30", "upper bound"),
        ("starlette>=0.40", "CVE-2026-48710"),
        ("lightning>=2.5", "add !=2.6.2"),
    ],
)
def test_a_range_that_admits_too_much_is_named(
    wanted: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = Requirement(wanted).name
    project = tmp_path / "pyproject.toml"
    lines = [
        f'  "{wanted}",' if line.strip().startswith(f'"{name}>') else line
        for line in supply.PROJECT.read_text().splitlines()
    ]
    if name == "lightning":
        lines = [line.replace("lightning>=2.5,!=2.6.2,!=2.6.3,<3", wanted) for line in lines]
    project.write_text("\n".join(lines))
    monkeypatch.setattr(supply, "PROJECT", project)
    assert any(fault in line for line in supply.faults())


def test_a_line_that_pins_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="version"):
        supply.pins("rich>=13\n")


@pytest.mark.nightly
def test_the_daemon_installs_from_the_pinned_files_alone(tmp_path: Path) -> None:
    """From the index that pip is configured for."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", str(supply.LOCK)], check=True, timeout=600)
    subprocess.run([*pip, "--no-deps", str(supply.ROOT)], check=True, timeout=600)
    subprocess.run([str(python), "-m", "pip", "check"], check=True, timeout=60)
    daemon = tmp_path / "venv/bin/malletraind"
    said = subprocess.run([str(daemon), "--version"], check=True, capture_output=True, text=True, timeout=60)
    assert json.loads(supply.SBOM.read_text())["metadata"]["component"]["version"] in said.stdout


def test_the_pages_library_is_recorded_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert supply.vendored_faults() == []
    assert "pkg:npm/uplot@" in supply.SBOM.read_text()
    for path in supply.VENDORED.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(supply, "VENDORED", tmp_path)
    (tmp_path / "uPlot.min.css").write_text("body { display: none }")
    (tmp_path / "more.js").write_text("1")
    assert [line.partition(":")[0].partition("/")[2] for line in supply.vendored_faults()] == [
        "more.js",
        "uPlot.min.css",
    ]
