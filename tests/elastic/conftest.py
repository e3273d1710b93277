from __future__ import annotations

import pytest

from tests.elastic.digits import Static


@pytest.fixture(scope="session")
def static(tmp_path_factory: pytest.TempPathFactory) -> Static:
    return Static(lambda: tmp_path_factory.mktemp("static"))
