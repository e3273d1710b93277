"""What the report says in words and small tables, one fact a row: each of its numbers stands in a CSV file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from malletrain.replay.report.summary import best
from malletrain.replay.run import Replay


def facts(answer: Replay) -> Iterator[tuple[str, object]]:
    """(what, value): of the log, the window, the assumptions, and how long decisions took."""
    account, trace = answer.trace.account, answer.trace
    for key, value in answer.trace_json().items():
        if not isinstance(value, dict | list):
            yield key, value
    for unit, seconds in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0)):
        yield unit, trace.seconds / seconds
    if answer.sampled is not None:
        yield "days with idle nodes", len(answer.sampled.sample)
        yield "days replayed", answer.sampled.sample.size
        yield "sample", answer.sampled.sentence()
    _, first = best(answer)
    yield "upper bound, nodes", first.ideal_speedup_node_seconds / (trace.seconds or 1.0)
    options = answer.options
    if options.rules is not None:
        yield "daemon", options.daemon
        yield "max_pilots", options.max_pilots
        yield "nodes of a pilot", options.max_nodes
        yield "keep_idle", options.keep_idle
        yield "pilot limit, minutes", options.pilot_limit_s / 60
    for reason, count in account.skipped.items():
        yield f"skipped: {reason}", count
        yield f"first line skipped: {reason}", account.first_skipped.get(reason, 0)
    for number, sentence in enumerate(answer.warnings, start=1):
        yield f"warning {number}", sentence
    for number, costs in enumerate(sorted({(e.costs.activate_s, e.costs.grow_s, e.costs.shrink_s)
                                           for e in answer.jobs}), start=1):  # fmt: skip
        for name, seconds in zip(("activate_s", "grow_s", "shrink_s"), costs, strict=True):
            yield f"costs {number}: {name}", seconds
    if answer.realism is not None:
        for name, found in answer.realism.as_json().items():
            yield f"calibration: {name}", found
    yield "tick_s", answer.options.tick_s
    yield "pilot_limit_s", answer.options.pilot_limit_s
    for choice in answer.choices:
        yield f"horizon_s: {choice.name}", choice.horizon_s
    for name, score in answer.scores.items():
        if score.solve_s is not None:
            yield f"ms a decision: {name}", score.solve_s.median * 1e3
    delay = next((score.main_delay for score in answer.scores.values() if score.main_delay is not None), None)
    for name, seconds in asdict(delay.assumed).items() if delay is not None else ():
        yield f"main delay: {name}", seconds
