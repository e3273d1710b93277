"""Real Slurm for tests: `def test_x(lab)`, or `lab_factory(LabConfig(...))` for another kind of lab.

A conftest.py imports them (`from tests.slurm_fixtures import lab, lab_directory, lab_factory`) or names this module
in `pytest_plugins`. Labs are brought up when first asked for, shared by the tests of one pytest process (so each
xdist worker has its own), emptied after each test, and taken down at the end.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from scripts.lab import Lab, LabConfig, LabError, UsageError, cluster
from scripts.lab.packages import Toolchain
from scripts.lab.releases import release_toolchain

LabFactory = Callable[..., Lab]

_LABS = pytest.StashKey[dict[LabConfig, Lab]]()
_WHY_NOT = pytest.StashKey[dict[LabConfig, str]]()


def default_config() -> LabConfig:
    """Eight nodes, profile fast; as root also the plain users alice, bob and malletrain."""
    return LabConfig(nodes=8, profile="fast", users=os.geteuid() == 0)


@pytest.fixture(scope="session")
def lab_factory(request: pytest.FixtureRequest) -> LabFactory:
    """Gives the lab of a LabConfig (the default one without), running and shared; skips where there can be none."""
    config = request.config

    def give(wanted: LabConfig | None = None) -> Lab:
        wanted = wanted or default_config()
        labs = config.stash.get(_LABS, None)
        if labs is None:
            labs = config.stash[_LABS] = {}
            config.add_cleanup(partial(_take_down, labs))
        why_not = config.stash.setdefault(_WHY_NOT, {})
        if wanted in why_not:
            pytest.skip(why_not[wanted])
        if wanted not in labs:
            try:
                labs[wanted] = Lab.up(f"/tmp/mtlab-{secrets.token_hex(4)}", wanted)
            except UsageError as error:
                why_not[wanted] = f"no Slurm lab here: {error}"
                pytest.skip(why_not[wanted])
        return labs[wanted]

    return give


@pytest.fixture
def lab(lab_factory: LabFactory, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The default lab: empty and idle at the beginning of each test, emptied at its end."""
    shared = lab_factory()
    yield shared
    empty(request.config, shared)


@pytest.fixture
def lab_directory() -> Iterator[Path]:
    """A directory for a lab of the test's own; tmp_path will not do: it is closed to other users, and long."""
    parent = short_directory()
    yield parent / "lab"
    for left in parent.iterdir():  # by a test that failed
        cluster.down(left)
    shutil.rmtree(parent)


def empty(config: pytest.Config, used: Lab) -> None:
    """Empties a shared lab; one that a test broke beyond that is taken down, and the next test gets a new one."""
    try:
        used.clear()
    except LabError:
        labs = config.stash[_LABS]
        for wanted in [w for w, lab in labs.items() if lab is used]:
            del labs[wanted]
        used.down()


def short_directory() -> Path:
    """A new directory below /tmp that every user can enter."""
    made = Path(tempfile.mkdtemp(prefix="mtlab-", dir="/tmp"))
    made.chmod(0o755)
    return made


def _take_down(labs: dict[LabConfig, Lab]) -> None:
    for lab in labs.values():
        lab.down()


#: Slurm's releases, by Debian's names: this machine's own always; the others with --nightly, or --release NAME.
RELEASES = [
    pytest.param(None, id="own", marks=pytest.mark.release("own")),
    *(pytest.param(release, id=release, marks=pytest.mark.release(release)) for release in ("trixie", "forky")),
]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str | None:
    """Each of Slurm's releases in turn, as LabConfig takes it: for tests with a lab of their own kind."""
    name: str | None = request.param
    return name


@pytest.fixture
def toolchain(release: str | None) -> Toolchain:
    """The programs of each release in turn, without a cluster; skips where it is not here."""
    if release is None and shutil.which("scontrol") is None:
        pytest.skip("Slurm is not installed")
    try:
        return Toolchain() if release is None else release_toolchain(release)
    except UsageError as error:
        pytest.skip(f"no Slurm of {release} here: {error}")


@pytest.fixture
def any_lab(request: pytest.FixtureRequest, release: str | None, lab_factory: LabFactory) -> Iterator[Lab]:
    """The default lab of each release, emptied after each test; skips where there are no plain users."""
    used = lab_factory(replace(default_config(), release=release))
    if not used.users:
        pytest.skip("needs plain users: run as root")
    yield used
    empty(request.config, used)
