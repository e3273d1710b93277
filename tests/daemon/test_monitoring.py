"""The shipped alerts and dashboard: of metrics that there are, each with a page, and firing at what they are for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from malletrain.daemon.metrics import Metrics
from malletrain.daemon.process.timers import SystemClock
from tests.test_house import ROOT

FOLDER = ROOT / "site-configs" / "monitoring"
RUNBOOK = ROOT / "docs" / "how-to" / "admin-operate.md"
ALERTS = (FOLDER / "malletrain-alerts.yml").read_text()
NAMES = re.findall(r"alert: (\w+)", ALERTS)


def test_they_use_metrics_that_there_are() -> None:
    described = re.findall(r"^# TYPE (\w+) (\w+)", Metrics(SystemClock()).render().decode(), re.MULTILINE)
    known = {name for name, _ in described} | {f"{name}_bucket" for name, kind in described if kind == "histogram"}
    dashboard = json.loads((FOLDER / "malletrain-dashboard.json").read_text())
    asked = ALERTS + " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    used = set(re.findall(r"\bmalletrain_\w+", asked))
    assert used <= known, used - known


def test_each_alert_has_a_row_in_the_runbook_and_no_row_is_left_over() -> None:
    rows = re.findall(r'<a id="\w+"></a>(\w+)', RUNBOOK.read_text())
    assert rows == NAMES
    assert re.findall(r'<a id="(\w+)"></a>', RUNBOOK.read_text()) == [name.lower() for name in NAMES]
    assert re.findall(r"admin-operate\.md#(\w+)", ALERTS) == [name.lower() for name in NAMES]
    assert f"SUCCESS: {len(NAMES)} rules found" in RUNBOOK.read_text()


def test_each_alert_has_a_test() -> None:
    tests = (FOLDER / "malletrain-alerts-test.yml").read_text()
    assert re.findall(r"alertname: (\w+)", tests) == NAMES


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
@pytest.mark.parametrize(
    "words", [["check", "rules", "malletrain-alerts.yml"], ["test", "rules", "malletrain-alerts-test.yml"]]
)
def test_promtool_takes_them_and_each_fires(words: list[str]) -> None:
    done = subprocess.run(["promtool", *words], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboards_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(Path(FOLDER / "malletrain-dashboard.json").read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
