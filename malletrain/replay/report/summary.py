"""The answer in words: one sentence, then a table, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from malletrain.replay.report.intervals import nodes_interval
from malletrain.replay.result import WATERFALL
from malletrain.replay.run import Replay
from malletrain.replay.scoring.figures import Score


def best(answer: Replay) -> tuple[str, Score]:
    """The policy that trained most, of those that a daemon can have where there is one."""
    bounds = {choice.name for choice in answer.choices if choice.unlimited}
    real = {name: score for name, score in answer.scores.items() if name not in bounds} or answer.scores
    return max(real.items(), key=lambda item: item[1].speedup_node_seconds)


def length(seconds: float) -> str:
    """A span of time in the unit that suits it."""
    for unit, each in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * each:
            return f"{seconds / each:,.1f} {unit}"
    return f"{seconds:,.0f} seconds"


def headline(answer: Replay) -> str:
    """The answer in two sentences: what the daemon would have trained, and the upper bound."""
    trace, options = answer.trace_json(), answer.options
    name, score = best(answer)
    used = score.occupied_node_seconds / (score.idle_node_seconds or 1.0)
    who = (
        "An ideal machine, which no daemon's rules limit,"
        if not options.daemon
        else options.daemon[:1].upper() + options.daemon[1:]
    )
    bound = ""
    if score.share_of_ideal is not None:
        most = score.ideal_speedup_node_seconds / (answer.trace.seconds or 1.0)
        share = f"{score.share_of_ideal:.1%}"
        bound = f" Upper bound, at no cost and with no limit: {most:,.1f} nodes; this is {share} of it."
    return (
        f"In {length(answer.trace.seconds)} {trace['idle_share']:.1%} of {trace['nodes']:,} nodes' time stood idle "
        f"({score.idle_node_seconds / 3600:,.0f} node-hours). {who} would have held {used:.1%} of it with policy "
        f"{name}, and trained as much as {score.equivalent_nodes:,.1f} dedicated nodes all the time.{bound}"
    )


def sampled(answer: Replay) -> str:
    """Which part was replayed and how sure that makes the headline; empty where all was."""
    if answer.sampled is None:
        return ""
    name, score = best(answer)
    idle = score.idle_node_seconds or 1.0
    sure = answer.sampled.headline(name, answer.trace.seconds or 1.0)
    held, nodes, share = sure["occupied_node_seconds"], sure["equivalent_nodes"], sure.get("share_of_ideal")
    of_ideal = "" if share is None else f", {share.low:.1%} to {share.high:.1%} of the upper bound"
    return (
        f"Sampled: {answer.sampled.sample.sentence()}. A replay of all days lies within the intervals in about 95 of "
        f"100 such samples. Here: {held.low / idle:.1%} to {held.high / idle:.1%} of idle time held, "
        f"{nodes.low:,.1f} to {nodes.high:,.1f} nodes{of_ideal}."
    )


def key_figures(answer: Replay) -> Iterator[tuple[str, str]]:
    """(what, how much) in the order in which a director reads them, for the policy that trained most."""
    name, score = best(answer)
    days = answer.trace.seconds / 86_400.0
    monthly = 30.4375 / days if days > 0 else 0.0  # days of a mean month
    yield "Idle node-hours a month", f"{score.idle_node_seconds / 3600 * monthly:,.0f}"
    yield "of these held for training", f"{score.occupied_node_seconds / 3600 * monthly:,.0f}"
    yield (
        "worth, in node-hours of dedicated nodes a month",
        f"{score.speedup_node_seconds / 3600 * monthly:,.0f}",
    )
    sure = nodes_interval(answer, name)
    nodes = f"{score.equivalent_nodes:,.1f}"
    if sure is not None:
        nodes += f" (95 %: {sure[0]:,.1f} to {sure[1]:,.1f})"
    yield "nodes won, as many dedicated ones would train as much", nodes
    if score.starts_per_minute is not None:
        of = "" if answer.sampled is None else " of those replayed"
        starts = f"{score.starts_per_minute:.2f}; {score.busiest_minute_starts or 0:,} in the busiest minute{of}"
        yield "nodes on which pilots start a minute, which slurmctld has to serve", starts
    delay = score.main_delay
    if delay is not None:
        share = delay.starts_on_pilots / (delay.starts or 1)
        yield (
            "main jobs' starts that met a pilot, as modelled",
            f"{share:.1%}; mean delay of all {delay.mean_s:.2f} s",
        )


def trainings(answer: Replay) -> str:
    """What was trained, in words."""
    name, score = best(answer)
    if all(each.job.total_samples is None for each in answer.jobs):
        return (
            f"The {len(answer.jobs):,} trainings have no end in this replay; {score.samples:,.0f} samples were seen."
        )
    whole = f"{score.jobs_completed:,} of {len(answer.jobs):,} trainings would have been finished"
    return f"{whole} in {length(answer.trace.seconds)} (policy {name})."


def limits(answer: Replay) -> str:
    """What was replayed, in words."""
    options = answer.options
    if not options.daemon:
        return "Replayed: the ideal machine, which no daemon's rules limit but those that [replay] sets."
    rules = options.rules
    width = "one node" if rules.max_nodes == 1 else f"at most {rules.max_nodes} nodes"
    lasts = rules.max_pilot_s / 60
    return (
        f"Replayed: {options.daemon}: at most {rules.max_pilots:,} pilots of {width}, {lasts:g} minutes each at "
        f"most, {rules.keep_idle:,} nodes kept idle, a look every {options.tick_s:g} s."
    )


def table(scores: Mapping[str, Score]) -> list[list[str]]:
    """A head, and one row for each name; fairness by Jain's index of the jobs' node-seconds (1: all the same)."""
    head = (
        "policy|of ideal|used|productive|worth (nodes)|million samples|rescales|starts|preempted|jobs done|"
        "mean wait h|mean JCT h|Jain|ms a decision"
    )
    due = any(s.deadlines for s in scores.values())
    rows = [[*head.split("|"), *(["deadlines met"] if due else [])]]
    for name, s in scores.items():
        idle = s.idle_node_seconds or 1.0
        rows.append(
            [
                name,
                "-" if s.share_of_ideal is None else f"{s.share_of_ideal:.2%}",
                f"{s.occupied_node_seconds / idle:.1%}",
                f"{s.productive_node_seconds / idle:.1%}",
                f"{s.equivalent_nodes:,.1f}",
                f"{s.samples / 1e6:,.1f}",
                f"{s.rescales:,}",
                f"{s.activations:,}",
                f"{s.preemptions:,}",
                f"{s.jobs_completed:,}",
                "-" if s.mean_wait_s is None else f"{s.mean_wait_s / 3600:,.2f}",
                "-" if s.mean_jct_s is None else f"{s.mean_jct_s / 3600:,.2f}",
                "-" if s.jain is None else f"{s.jain:.3f}",
                "-" if s.solve_s is None else f"{s.solve_s['median'] * 1e3:.2f}",
                *([f"{s.deadlines_met:,} of {s.deadlines:,}"] if due else []),
            ]
        )
    return rows


def waterfall_table(score: Score) -> list[list[str]]:
    """A head, and one row for each part that idle node-time went to."""
    idle = score.idle_node_seconds or 1.0
    return [
        ["idle node-hours went to", "node-hours", "share"],
        *(
            [WATERFALL[part], f"{seconds / 3600:,.1f}", f"{seconds / idle:.1%}"]
            for part, seconds in (score.waterfall or {}).items()
            if seconds > 0
        ),
    ]


def _aligned(rows: list[list[str]]) -> list[str]:
    """Lines of a table for a terminal: the first column to the left, figures to the right."""
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        for row in rows
    ]


def summary(answer: Replay) -> str:
    """Sentence, table, and what was skipped."""
    lines = [headline(answer), *filter(None, [sampled(answer)]), limits(answer), ""]
    lines += _aligned(table(answer.scores))
    name, score = best(answer)
    fell = waterfall_table(score)
    if len(fell) > 1:
        lines += ["", f"policy {name}:", *_aligned(fell)]
    skipped = answer.trace.account.skipped
    if skipped:
        lines += ["", "skipped lines: " + ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())]
    return "\n".join(lines)
