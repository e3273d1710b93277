"""The model of step time and pauses on GPUs: its laws, measured cases, and the table in the documents."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.bench.gpu import pauses
from scripts.bench.gpu.pauses import FABRICS, Fabric, Training, connect_s, grow_s, kill_s, shrink_s, step_s, sum_s

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "gpu.md"
GPT2 = Training(0.5e9, 1.5e9, 0.011, 0.022, 4)

nodes = st.sampled_from([1, 2, 4, 8, 32, 128, 512])
fabrics = st.sampled_from(sorted(FABRICS)).map(FABRICS.__getitem__)


@given(nodes, fabrics, st.floats(1e6, 1e12), st.floats(1.0, 10.0))
def test_more_bytes_never_take_less_time(count: int, fabric: Fabric, size: float, times: float) -> None:
    small = Training(size, 3 * size, 0.011, 0.022, 4)
    large = replace(small, gradient_bytes=size * times, state_bytes=3 * size * times)
    assert step_s(small, count, fabric) <= step_s(large, count, fabric)
    assert grow_s(small, count, fabric) <= grow_s(large, count, fabric)


@given(nodes, fabrics, st.floats(1.0, 10.0))
def test_a_faster_fabric_is_never_slower(count: int, fabric: Fabric, times: float) -> None:
    fast = Fabric(fabric.node_gb_s * times, fabric.gpu_gb_s * times, fabric.hop_s / times)
    for law in (step_s, grow_s, shrink_s, kill_s):
        assert law(GPT2, count, fast) <= law(GPT2, count, fabric)


@given(nodes, fabrics)
def test_a_sum_takes_no_longer_than_twice_its_bytes(count: int, fabric: Fabric) -> None:
    """However many nodes: rings and trees are bound by the bandwidth of one."""
    assert sum_s(1e9, count, 1, fabric) <= 2e9 / (fabric.node_gb_s * 1e9) + 20 * fabric.hop_s


@given(nodes, fabrics)
def test_what_is_made_beside_training_is_not_waited_for(count: int, fabric: Fabric) -> None:
    waited = grow_s(GPT2, count, fabric, beside=False) - grow_s(GPT2, count, fabric)
    assert waited == pytest.approx(connect_s(count, 4))
    assert shrink_s(GPT2, count, fabric) <= grow_s(GPT2, count, fabric)


def test_one_gpu_alone_waits_for_nothing() -> None:
    assert step_s(replace(GPT2, gpus=1), 1, FABRICS["hdr200"]) == pytest.approx(0.033)


def test_it_says_what_was_measured_on_one_gpu() -> None:
    """Two and four ranks: a communicator in .12 to .24 s, a kill in .23 to .36 s."""
    for ranks in (2, 4):
        assert 0.11 <= connect_s(ranks, 1) <= 0.25
        assert 0.2 <= kill_s(replace(GPT2, gpus=1), ranks, FABRICS["hdr200"]) <= 0.4


def test_the_page_shows_what_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pauses"])
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        pauses.main()
    assert said.getvalue() in PAGE.read_text(), said.getvalue()
