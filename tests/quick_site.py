"""A daemon on a real lab that looks and decides every second or two, so that tests need not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from scripts.lab import Lab, LabConfig
from scripts.play.site import Site

Settings = Mapping[str, list[str]]

QUICK: Settings = {
    "loop": ["tick_s = 1.0"],
    "breaker": ["preemptions_per_hour = 1000"],
    "pilot": ["margin_s = 10", "leave_patience_s = 5.0"],
}


@contextmanager
def quick_site(
    lab_factory: Callable[[LabConfig], Lab],
    said: Callable[[Site], str],
    *,
    nodes: int = 4,
    settings: Settings = QUICK,
) -> Iterator[Site]:
    """A site with an empty queue and its daemon up; `said` is printed at the end: pytest shows it
    when the test has failed. Skips where jobs cannot run as several users."""
    lab = lab_factory(LabConfig(nodes=nodes, users=True))
    if not lab.users:
        pytest.skip("only root can run jobs as several users")
    lab.clear()
    with Site(lab, settings=dict(settings)) as running:
        running.start()
        yield running
        print(said(running))
        lab.clear()
