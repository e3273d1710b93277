"""docs/reference/sites.md is what is played, and every trait of its table is."""

from __future__ import annotations

from tests.gauntlet import page
from tests.gauntlet.traits import TRAITS


def test_the_page_is_the_table() -> None:
    assert page.PAGE.read_text() == page.page()


def test_every_trait_is_on_the_page() -> None:
    assert sum(len(rows) for rows in page._SECTIONS.values()) == len(TRAITS)


def test_where_pilots_would_not_give_way_the_daemon_does_not_start() -> None:
    """Whatever else is said: no main job waits for a pilot."""
    unsafe = [t for t in TRAITS.values() if page._BECOMES[t.tried] in ("is not preempted", "is suspended")]
    assert unsafe
    assert all(trait.refused for trait in unsafe)
