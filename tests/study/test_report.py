"""The report of a study in a real browser, wide and narrow."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Literal

import optuna
import pytest

from malletrain.study import report, trial_records
from malletrain.study.ports import Ending, TrialEnd

#: Added to a copy of the page: what it finds of itself goes to the page around it.
TELL = """<script>
const faults = []; addEventListener("error", event => faults.push(event.message));
addEventListener("load", () => parent.postMessage({
  width: innerWidth, needed: document.documentElement.scrollWidth, faults: faults,
  plots: document.querySelectorAll(".plotly-graph-div .main-svg .plot, .plotly-graph-div .cartesianlayer").length,
}, "*"));
</script>"""

FRAME = """<!doctype html><body>{frames}<pre></pre><script>
const told = []; addEventListener("message", event => {{
  told.push(event.data); document.querySelector("pre").textContent = JSON.stringify(told);
}});
</script></body>"""

WIDTHS = (1280, 420)

Direction = Literal["minimize", "maximize"]


def study_of_all_ends(directions: list[Direction]) -> optuna.Study:
    study = optuna.create_study(directions=directions, study_name="<script>alert(1)</script>")
    ends = [TrialEnd(Ending.COMPLETED)] * 5 + [
        TrialEnd(Ending.USER_ERROR, "<b>bad</b>", traceback="line <1>"),
        TrialEnd(Ending.OUT_OF_MEMORY, "80 GiB"),
        TrialEnd(Ending.PRUNED, "at step 2"),
    ]
    for over in ends if len(directions) == 1 else ends[:-1]:
        trial = study.ask()
        x, kind = (
            trial.suggest_float("learning_rate", 1e-4, 1, log=True),
            trial.suggest_categorical("kind", ["a", "b"]),
        )
        if len(directions) == 1:
            for step in (1, 2):
                trial.report(x * step, step)
        values = [x, x + (kind == "a")][: len(directions)]
        trial_records.settle(study, trial, over, {"node_seconds": 60.0}, values)
    return study


@pytest.mark.parametrize("directions", [["maximize"], ["maximize", "minimize"]], ids=len)
def test_all_plots_are_drawn_and_nothing_sticks_out(tmp_path: Path, directions: list[Direction]) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("needs Debian's chromium")
    page = report.page(study_of_all_ends(directions))
    assert "<script>alert(1)" not in page and "<b>bad" not in page
    assert "Not yet" not in page
    (tmp_path / "page.html").write_text(page.replace("<style>", TELL + "<style>", 1))
    frames = "".join(f'<iframe src="page.html" style="width:{w}px;height:900px;border:0"></iframe>' for w in WIDTHS)
    (tmp_path / "frame.html").write_text(FRAME.format(frames=frames))
    shown = subprocess.run(
        ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=30000", "--dump-dom", tmp_path / "frame.html"],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    found = re.search(r"<pre>(.*?)</pre>", shown)
    assert found is not None
    told = {each["width"]: each for each in json.loads(html.unescape(found[1]))}
    assert set(told) == set(WIDTHS)
    for width in WIDTHS:
        assert told[width]["faults"] == []
        assert told[width]["needed"] <= width, "the page is as wide as its window"
        assert told[width]["plots"] >= page.count("<h2>") - 2, "but for the best trials and those without an answer"
