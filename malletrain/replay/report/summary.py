"""The answer in words: one sentence, then a table, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from malletrain.replay.run import Replay
from malletrain.replay.scoring.figures import Score


def best(answer: Replay) -> tuple[str, Score]:
    """The policy that trained most."""
    return max(answer.scores.items(), key=lambda item: item[1].speedup_node_seconds)


def headline(answer: Replay) -> str:
    """The answer in one sentence."""
    trace = answer.trace_json()
    name, score = best(answer)
    days = answer.trace.seconds / 86_400
    ideal = "" if score.share_of_ideal is None else f", {score.share_of_ideal:.1%} of the best possible"
    return (
        f"In {days:,.1f} days {trace['idle_share']:.1%} of {trace['nodes']:,} nodes' time stood idle "
        f"({score.idle_node_seconds / 3600:,.0f} node-hours); with policy {name} it would have trained as much as "
        f"{score.equivalent_nodes:,.1f} dedicated nodes all the time{ideal}."
    )


def table(scores: Mapping[str, Score]) -> list[list[str]]:
    """A head, and one row for each name.

    Fairness: Jain's index of the jobs' node-seconds (1: all the same), and finish times over those that each job
    would have had with a share of its own (Themis; up to 1 sharing did no harm), in the mean and at worst, of jobs
    that ended.
    """
    head = (
        "policy|of ideal|used|productive|worth (nodes)|rescales|starts|preempted|jobs done|mean wait h|mean JCT h|"
        "Jain|finish time mean|worst|ms a decision"
    )
    rows = [head.split("|")]
    for name, s in scores.items():
        idle = s.idle_node_seconds or 1.0
        rows.append([
            name,
            "-" if s.share_of_ideal is None else f"{s.share_of_ideal:.2%}",
            f"{s.occupied_node_seconds / idle:.1%}",
            f"{s.productive_node_seconds / idle:.1%}",
            f"{s.equivalent_nodes:,.1f}",
            f"{s.rescales:,}",
            f"{s.activations:,}",
            f"{s.preemptions:,}",
            f"{s.jobs_completed:,}",
            "-" if s.mean_wait_s is None else f"{s.mean_wait_s / 3600:,.2f}",
            "-" if s.mean_jct_s is None else f"{s.mean_jct_s / 3600:,.2f}",
            "-" if s.jain is None else f"{s.jain:.3f}",
            "-" if s.mean_rho is None else f"{s.mean_rho:.2f}",
            "-" if s.max_rho is None else f"{s.max_rho:.2f}",
            "-" if s.solve_s is None else f"{s.solve_s.median * 1e3:.2f}",
        ])  # fmt: skip
    return rows


def summary(answer: Replay) -> str:
    """Sentence, table, and what was skipped."""
    rows = table(answer.scores)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [headline(answer), ""]
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells))
    skipped = answer.trace.account.skipped
    if skipped:
        lines += ["", "skipped lines: " + ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())]
    return "\n".join(lines)
