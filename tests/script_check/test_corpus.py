"""Under `malletrain check`: habits, folds and stages, of which wrong ones are not called equal, and right ones are;
and the gallery of public loops, which are equal and have a row on their page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.elastic.coordinator import HERE, ROOT
from tests.elastic.train_habits import VERDICTS
from tests.script_check.conftest import Checked
from tests.script_check.test_check import SCRIPT_OF_HABITS


def long(test: Any) -> Any:
    """Half a minute each: a right and a wrong script are checked daily in test_check.py and others."""
    return pytest.mark.nightly(pytest.mark.alone(test))


@long
@pytest.mark.parametrize("habit", VERDICTS)
def test_a_habit_has_its_verdict(habit: str, checked: Checked, tmp_path: Path) -> None:
    (tmp_path / "go").touch()  # the check itself holds steps back, the script need not
    report = checked(SCRIPT_OF_HABITS, habit, "--epochs", "30")
    assert report["verdict"] in VERDICTS[habit], report


@long
@pytest.mark.parametrize("wrong", ["", "fold", "stage"])
def test_folds_and_a_stage_of_several_sessions_have_theirs(wrong: str, checked: Checked) -> None:
    report = checked(str(HERE / "train_folds.py"), "--epochs", "4", "--wrong", wrong)
    assert report["verdict"] in (("different", "wrong") if wrong else ("equal",)), report


LOOPS = sorted(path for path in (ROOT / "examples" / "gallery").glob("*.py") if path.stem != "gallery_data")
PAGE = (ROOT / "docs" / "gallery.md").read_text()
LICENCES = r"BSD-3-Clause|MIT|Apache-2\.0"

#: These sample in their steps; the others claim equality by numbers.
STATISTICAL = frozenset({"vae"})

#: This computes in float16; the others in float64.
ROUNDED = frozenset({"amp"})

each_loop = pytest.mark.parametrize("loop", LOOPS, ids=lambda path: path.stem)


def row_of(stem: str) -> str:
    """What the page's table says of a loop, after its name."""
    row = re.search(
        rf'^\| <a id="{stem}py"></a>\[{stem}\]\(\.\./examples/gallery/{stem}\.py\) \| (.*)$', PAGE, re.MULTILINE
    )
    assert row, "it has no row in the table of docs/gallery.md"
    return row[1]


def test_the_page_has_a_row_for_each_loop() -> None:
    assert len(LOOPS) >= 15
    assert {path.stem for path in LOOPS} == set(re.findall(r"/gallery/(\w+)\.py\) \|", PAGE))


@each_loop
def test_a_loop_names_its_original_and_licence(loop: Path) -> None:
    text = loop.read_text()
    compile(text, str(loop), "exec")
    about = " ".join(text.split('"""')[1].split())
    original = re.search(r"After (\S+/\S+?)[, ].*\((https://\S+)\)", about)
    licence = re.search(rf"Licence of the original: ({LICENCES})\.( |$)", about)
    assert original and licence, about
    row = row_of(loop.stem)
    assert row.startswith(f"[{original[1]}]({original[2]}) | ")
    assert ("| statistical |" in row) == (loop.stem in STATISTICAL)


@long
@each_loop
def test_a_loop_is_equal_to_its_static_run(loop: Path, checked: Checked, tmp_path: Path) -> None:
    report = checked(str(loop), "--epochs", "20")
    largest = report["differences"][0]["difference"] if report["differences"] else None
    print(loop.stem, report["verdict"], report["steps"], largest)
    allowed = {"statistical"} if loop.stem in STATISTICAL else {"equal"}
    if loop.stem in ROUNDED:  # on a busy machine more steps are made, and rounding decides more parameters
        allowed.add("undecided")
    assert report["verdict"] in allowed, report
    assert report["equality"].startswith(row_of(loop.stem).removesuffix(" |").split(" | ")[1])
    if loop.stem not in STATISTICAL:
        assert report["differences"][0]["difference"] < (0.02 if loop.stem in ROUNDED else 1e-9)
    assert list(tmp_path.iterdir()) == [], "a loop of the gallery writes no files"
