"""The picture of a play."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from malletrain.wire.rows import NodeRow, PoolRow, StatusRow
from scripts.play.picture import Strip, largest_difference, printed_curve, svg


def status(*owners: str) -> StatusRow:
    rows = []
    for i, owner in enumerate(owners):
        job = int(owner) if owner.isdigit() else None
        rows.append(NodeRow(f"n{i}", "pilot" if job is not None else owner, job))
    return StatusRow(at=0.0, pool=PoolRow(), nodes=tuple(rows))


@pytest.fixture
def strip() -> Strip:
    strip = Strip()
    strip.look(0.0, status("allocated", "idle"))
    strip.look(1.0, status("allocated", "1"))
    strip.look(2.0, status("1", "1"))
    strip.look(3.0, status("1", "planned"))
    return strip


def test_who_had_which_node_when(strip: Strip) -> None:
    assert set(strip.bars()) == {("n0", "main", 0.0, 2.0), ("n0", "1", 2.0, 3.0), ("n1", "1", 1.0, 3.0)}


def test_the_picture_is_svg_with_every_node_and_both_curves(strip: Strip) -> None:
    text = svg(strip, ("1", "mlp <&>"), {"2": "0"}, [(10, 1.0), (20, 0.5)], [(10, 1.0), (20, 0.51)], "3 resizes")
    root = ElementTree.fromstring(text)
    words = [each.text for each in root.iter() if each.tag.endswith("text")]
    assert {"n0", "n1", "mlp <&>", "trials of a search", "main queue", "3 resizes"} <= set(words)
    assert sum(1 for each in root.iter() if each.tag.endswith("circle")) == 2
    assert sum(1 for each in root.iter() if each.tag.endswith("polyline")) == 1


def test_a_printed_curve_is_compared_with_a_reported_one() -> None:
    line = "epoch {}: {{'accuracy': 0.9, 'loss': {}}} on 1 nodes\n"
    said = line.format(10, "0.5") + line.format(20, "2.5e-1")
    static = printed_curve(said, 100.0)
    assert static == [(1000.0, 0.5), (2000.0, 0.25)]
    assert largest_difference([(1000.0, 0.5), (2000.0, 0.26)], static) == pytest.approx(0.01)
    assert largest_difference([(7.0, 0.5)], static) is None
