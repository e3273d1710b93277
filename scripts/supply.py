"""What the daemon is installed from: pinned versions with hashes, a bill of materials, and versions known to be bad.

    python -m scripts.supply check               compares the files below with each other, offline; status 1 if not
    python -m scripts.supply lock                writes both anew from constraints.txt (needs uv, and the index)
    python -m scripts.supply sbom                writes the bill of materials alone, from the pinned versions

`site-configs/requirements-daemon.txt` is for `pip install --require-hashes -r`, on every platform and Python that the
daemon runs on; `site-configs/malletrain-daemon.cdx.json` lists the same as CycloneDX 1.6. Both have the versions of
constraints.txt, which the tests run with. `scripts/advisories.json` has one entry for each advisory on a package of
constraints.txt (`pip-audit -r constraints.txt` says which are new). What the web page has of others lies in
`malletrain/web/page/vendor`; its `vendored.json` says where each file is from, and is compared and listed, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "site-configs/requirements-daemon.txt"
SBOM = ROOT / "site-configs/malletrain-daemon.cdx.json"
CONSTRAINTS = ROOT / "constraints.txt"
ADVISORIES = ROOT / "scripts/advisories.json"
VENDORED = ROOT / "malletrain/web/page/vendor"
PROJECT = ROOT / "pyproject.toml"

HEADER = """\
# What malletraind is installed from, with the hashes of every file of each version on PyPI:
#   pip install --require-hashes -r requirements-daemon.txt; pip install --no-deps ./malletrain-0.2.0-py3-none-any.whl
# Made by `python -m scripts.supply lock` from constraints.txt; `python -m scripts.supply check` compares.
"""

#: The oldest Python that the daemon runs on, on Linux: what the bill of materials is evaluated for.
ENVIRONMENT = {
    "python_version": "3.11",
    "python_full_version": "3.11.0",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "platform_machine": "x86_64",
}

#: Of the serial numbers of bills of materials: the same content has the same number.
_NAMESPACE = uuid.UUID("6c1c3a5e-9f6b-4e0e-8d53-0b5b6d6f5c11")


@dataclass(frozen=True, slots=True)
class Pin:
    """One line of a file of pinned versions."""

    name: str
    version: str
    marker: str = ""
    hashes: tuple[str, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether Linux with the oldest Python installs it."""
        return not self.marker or Requirement(f"x ; {self.marker}").marker.evaluate(ENVIRONMENT)  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True)
class Advisory:
    """Versions of a package that must not be installed: those that any of the `affected` specifiers contains."""

    id: str
    package: str
    affected: tuple[str, ...]
    summary: str

    def applies_to(self, version: str) -> bool:
        """Whether the version is one of them, pre-releases included."""
        return any(SpecifierSet(each).contains(version, prereleases=True) for each in self.affected)


def pins(text: str) -> dict[str, Pin]:
    """The pinned versions of a requirements file, by normalised name.

    Raises:
        ValueError: a line that pins no version.
    """
    found: dict[str, Pin] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words, *hashes = line.partition("#")[0].split("--hash=")
        if not words.strip():
            continue
        wanted = Requirement(words.strip())
        match = re.fullmatch(r"==([^*,]+)", str(wanted.specifier))
        if match is None:
            raise ValueError(f"{words.strip()}: pins no version: write NAME==VERSION")
        name = canonicalize_name(wanted.name)
        found[name] = Pin(name, match[1], str(wanted.marker or ""), tuple(each.strip() for each in hashes))
    return found


def ranges(extras: Sequence[str] | None = None) -> Iterator[Requirement]:
    """What pyproject.toml asks for: of the base and these extras, or of all."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    for words in [*project["dependencies"], *(each for name in extras or optional for each in optional[name])]:
        wanted = Requirement(words)
        if wanted.name != project["name"]:
            yield wanted
        elif extras is not None:
            yield from (each for each in ranges(sorted(wanted.extras)) if each.name not in project["dependencies"])


def advisories() -> list[Advisory]:
    """All that scripts/advisories.json has."""
    rows = json.loads(ADVISORIES.read_text())["advisories"]
    return [Advisory(row["id"], row["package"], tuple(row["affected"]), row["summary"]) for row in rows]


def known_bad(versions: Mapping[str, str], known: Iterable[Advisory]) -> list[str]:
    """A line for each version, by normalised name, that an advisory applies to."""
    return [
        f"{each.package} {versions[each.package]}: {each.id} ({', '.join(each.affected)}): {each.summary}"
        for each in known
        if each.package in versions and each.applies_to(versions[each.package])
    ]


def lowest(requirement: Requirement) -> str | None:
    """The lowest version that a range admits, if it says so."""
    bounds = [Version(each.version) for each in requirement.specifier if each.operator in (">=", "==", "~=")]
    return str(max(bounds)) if bounds else None


def malicious_and_admitted(requirement: Requirement, known: Iterable[Advisory]) -> list[str]:
    """Single versions that an advisory names (`==`), and that the range admits."""
    name = canonicalize_name(requirement.name)
    return [
        f"{requirement}: admits {spec[2:]}, which {each.id} names: add !={spec[2:]}"
        for each in known
        if each.package == name
        for spec in each.affected
        if spec.startswith("==") and requirement.specifier.contains(spec[2:])
    ]


def needs_of(found: Distribution, extras: Iterable[str]) -> Iterator[Requirement]:
    """What a distribution requires with these extras, where the daemon runs."""
    for words in found.requires or ():
        wanted = Requirement(words)
        contexts = [{**ENVIRONMENT, "extra": extra} for extra in ("", *extras)]
        if wanted.marker is None or any(wanted.marker.evaluate(each) for each in contexts):
            yield wanted


def closure() -> dict[str, list[str]]:
    """What each package of the daemon requires, by normalised name.

    Read from pyproject.toml and from the installed packages' metadata.
    """
    graph: dict[str, list[str]] = {}
    waiting = [Requirement("malletrain[daemon]")]
    seen = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        own = name == "malletrain"
        needs = list(ranges(["daemon"]) if own else needs_of(distribution(name), wanted.extras))
        waiting += needs
        names = {canonicalize_name(each.name) for each in needs} - {name}
        graph[name] = sorted(names.union(graph.get(name, ())))
    return graph


def bill_of_materials(locked: Mapping[str, Pin]) -> dict[str, Any]:
    """The pinned packages as CycloneDX 1.6. The same input gives the same bytes: no time, no random number."""
    graph = closure()
    project = tomllib.loads(PROJECT.read_text())["project"]
    needed = [pin for _, pin in sorted(locked.items()) if pin.is_needed]
    reference = {pin.name: f"pkg:pypi/{pin.name}@{pin.version}" for pin in needed}
    own = reference["malletrain"] = f"pkg:pypi/malletrain@{project['version']}"
    components = [
        _component(
            pin.name,
            pin.version,
            reference[pin.name],
            _licences(distribution(pin.name)),
            f"https://pypi.org/project/{pin.name}/{pin.version}/#files",
            [each.removeprefix("sha256:") for each in pin.hashes],
        )
        for pin in needed
    ]
    components += [
        _component(
            row["name"],
            row["version"],
            row["purl"],
            [{"license": {"id": row["licence"]}}],
            row["url"],
            [row["sha256"]],
        )
        for row in vendored()
    ]
    needs = {name: [reference[each] for each in graph[name]] for name in sorted(graph)}
    needs["malletrain"] += [row["purl"] for row in vendored()]
    dependencies = [{"ref": reference[name], "dependsOn": needs[name]} for name in needs]
    serial = uuid.uuid5(_NAMESPACE, json.dumps([components, dependencies, own]))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "malletrain",
                "version": project["version"],
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": components,
        "dependencies": dependencies,
    }


def _component(
    name: str, version: str, purl: str, licences: list[dict[str, Any]], url: str, hashes: list[str]
) -> dict[str, Any]:
    files = [{"alg": "SHA-256", "content": each} for each in hashes]
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        **({"licenses": licences} if licences else {}),
        "externalReferences": [{"type": "distribution", "url": url, "hashes": files}],
    }


def _licences(found: Distribution) -> list[dict[str, Any]]:
    """As its metadata states them: an SPDX expression, else the classifiers' words."""
    if "License-Expression" in found.metadata:
        return [{"expression": found.metadata["License-Expression"]}]
    words = [
        line.rpartition(" :: ")[2]
        for line in found.metadata.get_all("Classifier") or ()
        if line.startswith("License :: OSI Approved :: ")
    ]
    return [{"license": {"name": each}} for each in words]


def render(bill: Mapping[str, Any]) -> str:
    """The text of the file."""
    return json.dumps(bill, indent=1) + "\n"


def vendored() -> list[dict[str, Any]]:
    """The libraries of the web page, as `vendored.json` records them."""
    rows: list[dict[str, Any]] = json.loads((VENDORED / "vendored.json").read_text())
    return rows


def vendored_faults() -> list[str]:
    """A line for each file that is not the recorded one, that is not recorded, or that is missing."""
    recorded = {name: digest for row in vendored() for name, digest in row["files"].items()}
    there = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDORED.iterdir()
        if path.name != "vendored.json"
    }
    return [
        f"{VENDORED.name}/{name}: is not the file that vendored.json records"
        for name in sorted(recorded.keys() | there.keys())
        if recorded.get(name) != there.get(name)
    ]


def faults() -> list[str]:
    """What is wrong with the shipped files, a line each. Asks no network."""
    locked, tested = pins(LOCK.read_text()), pins(CONSTRAINTS.read_text())
    known = advisories()
    found = [f"{LOCK.name}: {pin.name} has no hash" for pin in locked.values() if not pin.hashes]
    found += [
        f"{LOCK.name}: {pin.name} {pin.version}, but the tests run with {tested[pin.name].version}"
        if pin.name in tested
        else f"{LOCK.name}: {pin.name} is not in constraints.txt"
        for pin in locked.values()
        if pin.is_needed and (pin.name not in tested or tested[pin.name].version != pin.version)
    ]
    needed = {pin.name for pin in locked.values() if pin.is_needed}
    asked = closure().keys() - {"malletrain"}
    found += vendored_faults()
    found += [f"{LOCK.name}: {name} is missing" for name in sorted(asked - needed)]
    found += [f"{LOCK.name}: nothing needs {name}" for name in sorted(needed - asked)]
    for pinned, place in ((locked, LOCK.name), (tested, CONSTRAINTS.name)):
        bad = known_bad({name: pin.version for name, pin in pinned.items()}, known)
        found += [f"{place}: {line}" for line in bad]
        for wanted in ranges(["daemon"] if place == LOCK.name else None):
            pin = pinned.get(canonicalize_name(wanted.name))
            if pin is not None and not wanted.specifier.contains(pin.version):
                found.append(f"{place}: {pin.name} {pin.version} is not within {PROJECT.name}'s {wanted}")
    for wanted in ranges():
        name = canonicalize_name(wanted.name)
        if wanted.specifier.prereleases:
            found.append(f"{PROJECT.name}: {wanted}: admits pre-releases")
        if (least := lowest(wanted)) is not None:
            found += [f"{PROJECT.name}: at its least, {line}" for line in known_bad({name: least}, known)]
        found += [f"{PROJECT.name}: {line}" for line in malicious_and_admitted(wanted, known)]
    for wanted in ranges(["daemon"]):
        if not any(each.operator in ("<", "<=", "==", "~=") for each in wanted.specifier):
            found.append(f"{PROJECT.name}: {wanted}: has no upper bound")
    if not found and SBOM.read_text() != render(bill_of_materials(locked)):
        found.append(f"{SBOM.name} differs from the pinned versions: python -m scripts.supply sbom")
    return found


def lock() -> int:
    """Writes the pinned versions, then the bill of materials. Status 2 without uv."""
    uv = shutil.which("uv")
    if uv is None:
        print("supply: needs uv: pip install uv", file=sys.stderr)
        return 2
    command = [uv, "pip", "compile", "-q", "--universal", "--python-version", "3.11", "--generate-hashes"]
    command += ["--no-annotate", "--no-header", "--extra", "daemon", "-c", str(CONSTRAINTS), str(PROJECT)]
    command += ["--default-index", "https://pypi.org/simple"]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    LOCK.write_text(HEADER + made.stdout)
    SBOM.write_text(render(bill_of_materials(pins(LOCK.read_text()))))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("check", "lock", "sbom"))
    verb = parser.parse_args().verb
    if verb == "lock":
        return lock()
    if verb == "sbom":
        SBOM.write_text(render(bill_of_materials(pins(LOCK.read_text()))))
        return 0
    found = faults()
    print("\n".join(found) or "pinned versions, bill of materials and ranges agree; none is known to be bad")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
