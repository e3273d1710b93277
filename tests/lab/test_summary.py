"""The summary of the runs on several releases."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from xml.etree import ElementTree

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "test-releases"
loader = importlib.machinery.SourceFileLoader("test_releases_script", str(SCRIPT))
spec = importlib.util.spec_from_loader(loader.name, loader)
assert spec is not None
script = importlib.util.module_from_spec(spec)
sys.modules[loader.name] = script
loader.exec_module(script)


def test_all_releases_of_the_lab_are_run_by_default() -> None:
    assert set(script.RELEASES.values()) == {"own", "trixie", "forky"}


def test_a_report_is_counted_whole() -> None:
    report = ElementTree.fromstring(
        "<s><testcase classname='a' name='ok'/><testcase classname='a' name='no'><failure/></testcase>"
        "<testcase classname='a' name='bad'><error/></testcase><testcase name='later'><skipped/></testcase></s>"
    )
    done = script.read("22.05", report, 1.0)
    assert (done.passed, done.failed, done.skipped) == (1, 2, 1)
    assert done.names == ("a::no", "a::bad")


def test_why_tests_could_not_run_is_said() -> None:
    report = ElementTree.fromstring(
        "<s><testcase name='a'><skipped message='long: run with --nightly'/></testcase>"
        "<testcase name='b'><skipped message='--release forky: expired index'/></testcase>"
        "<testcase name='c'><skipped message='--release forky: expired index'/></testcase></s>"
    )
    done = script.read("26.05", report, 1.0)
    assert (done.skipped, done.lacking) == (3, ("--release forky: expired index",))
    assert "on 26.05: --release forky: expired index" in script.table([done], "command", (0.0, 0.0))
