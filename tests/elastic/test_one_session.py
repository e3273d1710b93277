"""A second session in a job's script is refused before anything is trained, and not left out without a word."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.launch import one_session

JOB = {"MALLETRAIN_URL": "http://there", "MALLETRAIN_JOB": "7"}

#: Scripts, and what is said of each; "" where nothing is.
SCRIPTS = {
    "folds": (
        "for fold in range(3):\n    Session()\n",
        "script.py:4 makes a Session in each turn of the loop of line 3",
    ),
    "function": (
        "def train(fold):\n    Session()\nfor fold in range(3):\n    train(fold)\n",
        "script.py:6 makes a Session in each turn of the loop of line 5",
    ),
    "stages": ("first = Session()\nsecond = Session()\n", "script.py:3 makes a Session, and line 4 another"),
    "hidden": ("make = Session\nmake()\nmake()\n", "a second Session at script.py:5, after that of script.py:4"),
    "either": ("if True:\n    Session()\nelse:\n    Session()\n", ""),
    "one": ("for name in ('a', 'b'):\n    print(name)\nSession()\n", ""),
    "retried": ("while True:\n    Session()\n    break\n", ""),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_second_session_is_refused_where_the_first_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, said = SCRIPTS[name]
    script = tmp_path / "script.py"
    script.write_text("from session import Session\n\n" + text)
    (tmp_path / "session.py").write_text(
        "import sys\nfrom malletrain.elastic.launch.one_session import require_one\n\n\n"
        f"def Session():\n    require_one(sys._getframe(1), {JOB!r})\n"
    )
    monkeypatch.setattr(one_session, "_made_at", [])
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("session", None)
    if not said:
        runpy.run_path(str(script), run_name="__main__")
        return
    with pytest.raises(ElasticError) as refused:
        runpy.run_path(str(script), run_name="__main__")
    assert said in str(refused.value)
    assert "Submit a job for each fold" in str(refused.value)


def test_outside_a_job_all_sessions_run() -> None:
    for _ in range(2):
        one_session.require_one(sys._getframe(), {})
