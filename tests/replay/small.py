"""Small traces and workloads for the replay's tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from malletrain.domain.job import Curve, ResizeCosts
from malletrain.replay.cluster_trace import ClusterTrace, IdleIntervals, Window, cluster_trace
from malletrain.replay.options import Options
from malletrain.replay.traces.trace import BUSY, DOWN, IDLE, Account, NodeChanges
from malletrain.replay.workload import TrainingJob, training_job

START = 1_700_000_000.0
LINEAR = Curve.linear(64, 10.0)
FREE = ResizeCosts(0.0, 0.0, 0.0)


def with_rules(options: Options, **changed: Any) -> Options:
    """The same with some rules changed."""
    return replace(options, rules=replace(options.rules, **changed))


def changes(rows: Iterable[tuple[float, int, int]], nodes: int) -> NodeChanges:
    """Node events: (seconds after START, node, state)."""
    listed = sorted(rows)
    return NodeChanges(
        Account("test", "node events", len(listed), len(listed)),
        tuple(f"n{i:03d}" for i in range(nodes)),
        np.array([START + t for t, _, _ in listed]),
        np.array([n for _, n, _ in listed], np.int32),
        np.array([s for _, _, s in listed], np.int8),
    )


def trace(rows: Iterable[tuple[float, int, int]], nodes: int, seconds: float) -> ClusterTrace:
    """A machine of `nodes` nodes from START on."""
    begin = [(0.0, n, BUSY) for n in range(nodes)]
    last = (seconds, 0, BUSY)  # outside the window: the trace is known up to its end
    return cluster_trace(changes([*begin, *rows, last], nodes), Window(start=START, end=START + seconds))


def intervals(machine: ClusterTrace) -> IdleIntervals:
    """Every idle interval of every node."""
    parts = [part for _, _, part in machine.interval_blocks()]
    names = [each.name for each in fields(IdleIntervals)]
    return IdleIntervals(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def job(
    number: int = 1, *, curve: Curve = LINEAR, costs: ResizeCosts = FREE, at: float = 0.0,
    least: int = 1, most: int = 64, samples: float | None = None, sizes: Sequence[int] = (),
) -> TrainingJob:  # fmt: skip
    return training_job(
        number, f"job-{number}", curve, costs, submitted_at=START + at, min_nodes=least, max_nodes=most,
        total_samples=samples, sizes=tuple(sizes),
    )  # fmt: skip


@st.composite
def traces(draw: st.DrawFn, max_nodes: int = 6, seconds: int = 3600) -> ClusterTrace:
    """Random machines: any node idles, works or is down at any whole second."""
    nodes = draw(st.integers(1, max_nodes))
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, seconds - 1).map(float),
                st.integers(0, nodes - 1),
                st.sampled_from([IDLE, IDLE, BUSY, DOWN]),
            ),
            max_size=40,
        )
    )
    return trace(rows, nodes, float(seconds))


CURVES = (
    LINEAR,
    Curve(((1, 5.0), (2, 9.0), (4, 15.0), (8, 20.0))),
    Curve(((1, 100.0), (2, 210.0), (4, 300.0))),
    Curve(((2, 7.0), (4, 13.0))),
)


@st.composite
def workloads(draw: st.DrawFn, finite: bool = True) -> list[TrainingJob]:
    """One to four random jobs."""
    jobs = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        least = draw(st.integers(1, 2))
        jobs.append(
            job(
                number,
                curve=draw(st.sampled_from(CURVES)),
                costs=ResizeCosts(*(draw(st.sampled_from([0.0, 0.5, 5.0, 40.0])) for _ in range(3))),
                at=draw(st.sampled_from([0.0, 0.0, 600.0, 1234.5])),
                least=least,
                most=draw(st.integers(least, 8)),
                samples=draw(st.sampled_from([None, 1e3, 2e4])) if finite else None,
            )
        )
    return jobs
