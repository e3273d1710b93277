"""What the code does with fixed inputs is what it did when the corpus was recorded, byte for byte."""

from __future__ import annotations

import difflib
from itertools import islice

import pytest

from tests.corpus.cases import files, recorded
from tests.corpus.groups import GROUPS

ADVICE = """
To see what differs in each case, field by field (--against COMMIT for another commit than HEAD):
    python -m tests.corpus.diff {group}
If the change of behaviour is wanted, record it anew, and say in the commit why:
    python -m tests.corpus.record {group}"""


@pytest.mark.parametrize("group", GROUPS)
def test_behaves_as_recorded(group: str) -> None:
    before, now = recorded(group), files(group, GROUPS[group]())
    differences: list[str] = []
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name, "").splitlines(), now.get(name, "").splitlines()
        differences += islice(difflib.unified_diff(old, new, f"recorded/{name}", "now", lineterm="", n=0), 40)
    assert not differences, "\n".join(differences) + ADVICE.format(group=group)
