"""A package of this checkout, and a clean Debian to install it in. Both are for nightly tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.package import tree
from scripts.package.__main__ import deb
from tests.package.clean_root import CleanRoot, CleanRootError, missing
from tests.package.first_job import CACHE


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deb(tmp_path_factory.mktemp("deb"), "/usr/bin/python3", tree.environment)


@pytest.fixture
def clean_root(package: Path) -> Iterator[CleanRoot]:
    if lacking := missing():
        pytest.skip(f"no clean Debian here: {lacking}")
    try:
        with CleanRoot(CACHE) as root:
            root.copy_in(package, f"/root/{package.name}")
            yield root
    except CleanRootError as error:
        if "mmdebstrap" in str(error):
            pytest.skip(f"no clean Debian here: {error}")
        raise
