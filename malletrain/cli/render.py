"""What people see: tables, the strip of nodes, events, as lines of styled text. Pure. Colours repeat the letters."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from string import ascii_letters
from typing import Generic, TypeVar

import click

from malletrain.wire.job_columns import JOB_COLUMNS, JobColumn, count, node_words, pause, progress, rate, size_words
from malletrain.wire.rows import EventRow, JobRow, NodeRow, PilotRow, PoolRow, StatusRow, UsageRow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line; `color` and `back` are click's names of terminal colours."""

    text: str
    color: str | None = None
    back: str | None = None
    bold: bool = False
    dim: bool = False

    def ansi(self) -> str:
        """With terminal codes."""
        text = printable(self.text)
        if self.color is None and self.back is None and not self.bold and not self.dim:
            return text
        return click.style(text, fg=self.color, bg=self.back, bold=self.bold or None, dim=self.dim or None)


Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table: `head` in capitals, what it says of a row; a `number` stands to the right."""

    head: str
    cell: Callable[[T], str | Span]
    number: bool = False

    def span(self, row: T) -> Span:
        """The cell of a row."""
        cell = self.cell(row)
        return Span(cell) if isinstance(cell, str) else cell


#: As wide as the longest kind of event.
_KIND_WIDTH = len("generations_reserved")

#: Backgrounds of jobs in the strip, distinct for most eyes; none is used for anything else.
_JOB_BACKS = ("blue", "magenta", "cyan", "green", "bright_blue", "bright_magenta", "bright_cyan", "bright_green")

#: What a node is by the words of `malletrain snapshot`, and its letter and colour. What is in no line is down.
_MEANINGS = (
    ("main queue", "mixed allocated completing", Span("#", color="bright_black", back="bright_black")),
    ("idle", "idle", Span(".", color="white")),
    ("planned", "planned", Span(":", color="yellow")),
    ("stray (a job in the harvest partition that is not a pilot)", "stray", Span("!", color="red", bold=True)),
    ("reserved", "reserved maint", Span("r", color="yellow", dim=True)),
    ("powered down", "powered_down", Span("~", color="bright_black")),
    ("down", "down", Span("x", color="red")),
)
_BLOCKS = {state: span for _, states, span in _MEANINGS for state in states.split()}

_PHASE_COLORS = {
    "running": "green",
    "completed": "green",
    "queued": "yellow",
    "announced": "yellow",
    "held": "yellow",
    "failed": "red",
    "cancelled": "red",
}


def plain(lines: Iterable[Line]) -> str:
    """Lines as text without colours."""
    return "\n".join("".join(printable(span.text) for span in line).rstrip() for line in lines)


def colored(lines: Iterable[Line]) -> str:
    """Lines with terminal codes."""
    return "\n".join("".join(span.ansi() for span in line) for line in lines)


def printable(text: str) -> str:
    """Text that cannot steer a terminal: names and reasons come from other users."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def status(picture: StatusRow, *, width: int, zone: tzinfo | None = None, over: bool = False) -> list[Line]:
    """The whole picture: pool, strip, jobs; `over`: those that have ended too."""
    notices: list[Line] = [(Span(notice, color="yellow"),) for notice in picture.notices]
    lines = [header(picture, zone), *notices, *strip(picture.nodes, width=width), ()]
    shown = [job for job in picture.jobs if over or job.ended_at is None]
    lines += jobs(shown, width=width) if shown else [(Span("no malleable jobs; submit one with mtbatch", dim=True),)]
    return lines


def header(picture: StatusRow, zone: tzinfo | None = None) -> Line:
    """Time, node counts, and how good the last sizing was; says so when Slurm has not been seen lately."""
    pool = picture.pool
    known = pool.idle + pool.planned + pool.harvested + pool.main
    total = known + pool.down + pool.reserved + pool.stray + pool.powered_down
    spans = [Span(f"{clock(picture.at, zone)}  ", bold=True), Span(f"{total} nodes: {pool_words(pool)}")]
    if picture.decision.status and picture.decision.status != "optimal":
        spans.append(Span(f"  sizing {picture.decision.status}", color="yellow"))
    if picture.taken_at is None:
        spans.append(Span("  Slurm not seen yet", color="red"))
    elif picture.at - picture.taken_at > 60:
        spans.append(Span(f"  Slurm last seen {duration(picture.at - picture.taken_at)} ago", color="red"))
    return tuple(spans)


def pool_words(pool: PoolRow) -> str:
    """Node counts in words."""
    always = f"{pool.main} main queue, {pool.harvested} harvested, {pool.idle} idle, {pool.planned} planned"
    seldom = {"stray": pool.stray, "reserved": pool.reserved, "powered down": pool.powered_down, "down": pool.down}
    return ", ".join([always, *(f"{count} {name}" for name, count in seldom.items() if count)])


def strip(nodes: Sequence[NodeRow], *, width: int) -> list[Line]:
    """One block a node in the order given, wrapped to `width`, and a legend of what is there."""
    if not nodes:
        return [(Span("no nodes seen", dim=True),)]
    blocks = [block(node) for node in nodes]
    per_line = max(1, width)
    lines: list[Line] = [tuple(blocks[at : at + per_line]) for at in range(0, len(blocks), per_line)]
    legend: list[Span] = []
    for word, _, span in _MEANINGS:
        if span in blocks:
            legend += [span, Span(f" {word}  ", dim=True)]
    letters = dict.fromkeys(node.job for node in nodes if node.state == "pilot" and node.job is not None)
    for job in sorted(letters)[:12]:
        legend += [job_block(job), Span(f" job {job}  ", dim=True)]
    return [*lines, tuple(legend)]


def block(node: NodeRow) -> Span:
    """One node as one coloured letter."""
    if node.state == "pilot" and node.job is not None:
        return job_block(node.job)
    return _BLOCKS.get(node.state, _BLOCKS["down"])


def job_block(job: int) -> Span:
    """A job's letter and colour: the same at every look."""
    return Span(letter(job), color="black", back=_JOB_BACKS[(job - 1) % len(_JOB_BACKS)])


def letter(job: int) -> str:
    """A job's letter in the strip; two jobs 52 apart share one."""
    return ascii_letters[(job - 1) % len(ascii_letters)]


def jobs(rows: Sequence[JobRow], *, width: int = 120) -> list[Line]:
    """A table of jobs: their number and letter, the columns declared in `malletrain.wire.job_columns`, and why."""

    def declared(each: JobColumn) -> Column[JobRow]:
        if each.head == "PHASE":
            return Column(each.head, lambda row: Span(each.words(row), color=_PHASE_COLORS.get(row.phase)))
        return Column(each.head, each.words, each.number)

    columns: list[Column[JobRow]] = [
        Column("JOB", lambda row: str(row.id), number=True),
        Column("", lambda row: job_block(row.id)),
        *map(declared, JOB_COLUMNS),
        Column("WHY", lambda row: Span(row.reason, dim=True)),
    ]
    return table(columns, rows, width=width)


def job(row: JobRow, *, now: float, zone: tzinfo | None = None) -> list[Line]:
    """All that is known of one job."""
    account = f", account {row.account}" if row.account else ""
    nodes = f"{node_words(row)} of {size_words(row)}"
    facts = [
        ("job", f"{row.id} {row.name} ({letter(row.id)}) of {row.user}{account}"),
        ("phase", row.phase + (f": {row.reason}" if row.reason else "")),
        ("nodes", f"{nodes}, generation {row.generation}, {row.held_tasks} tasks held"),
        ("trained", f"{progress(row)} samples at {rate(row.rate)}, {duration(row.node_seconds)} of nodes"),
        ("resizes", f"{row.resizes}, pause {pause(row.mean_pause_s)} on average, {pause(row.max_pause_s)} at most"),
        ("losses", f"{row.preemptions} preemptions, {row.lost_workers} workers lost"),
        ("submitted", clock(row.submitted_at, zone)),
    ]
    if row.trusted or row.check_verdict:
        facts.append(("check", check_words(row)))
    if row.ended_at is not None:
        facts.append(("ended", clock(row.ended_at, zone)))
    facts += [(name, str(value)) for name, value in (*row.metrics.items(), *row.result.items())]
    lines: list[Line] = [(Span(f"{name:<10}", dim=True), Span(value)) for name, value in facts]
    if row.pilots:
        lines += [(), *pilots(row.pilots, now=now)]
    return lines


def pilots(rows: Sequence[PilotRow], *, now: float) -> list[Line]:
    """A table of one job's pilots."""
    columns: list[Column[PilotRow]] = [
        Column("PILOT", lambda row: row.id),
        Column("NODE", lambda row: row.node or "-"),
        Column("PHASE", lambda row: row.phase),
        Column("RUNS", lambda row: duration(now - row.started_at) if row.started_at else "-", number=True),
        Column("LEFT", lambda row: duration(row.ends_at - now) if row.ends_at else "-", number=True),
        Column("WHY", lambda row: Span(row.reason, dim=True)),
    ]
    return table(columns, rows)


def event(row: EventRow, zone: tzinfo | None = None) -> Line:
    """One event in one line."""
    who = [f"job {row.job}" if row.job is not None else "", f"pilot {row.pilot}" if row.pilot else "", row.node or ""]
    more = ((key, value) for key, value in row.data.items() if not _said(row, key, value))
    data = " ".join(f"{key}={_short(key, value, zone)}" for key, value in more)
    return (
        Span(f"{row.seq:>6} {clock(row.at, zone)} ", dim=True),
        Span(f"{row.kind:<{_KIND_WIDTH}} ", bold=True),
        Span(" ".join(word for word in who if word)),
        Span(f"  {row.reason}" if row.reason else ""),
        Span(f"  {data}" if data else "", dim=True),
    )


USAGE_COLUMNS: tuple[Column[UsageRow], ...] = (
    Column("DAY", lambda row: row.day),
    Column("ACCOUNT", lambda row: row.account or "-"),
    Column("USER", lambda row: row.user),
    Column("NODE HOURS", lambda row: f"{row.node_seconds / 3600:.2f}", number=True),
    Column("SHARE", lambda row: "-" if row.share is None else f"{row.share:.1%}", number=True),
    Column("SAMPLES", lambda row: count(row.samples), number=True),
    Column("JOBS", lambda row: str(row.jobs), number=True),
    Column("PILOTS", lambda row: str(row.stays), number=True),
    Column("PREEMPTED", lambda row: str(row.preemptions), number=True),
)


def table(columns: Sequence[Column[T]], rows: Sequence[T], *, width: int | None = None) -> list[Line]:
    """Columns as wide as their widest cell, two spaces apart; the last one is cut at `width`."""
    head = [Span(each.head, bold=True) for each in columns]
    cells = [head, *([each.span(row) for each in columns] for row in rows)]
    widths = [max(len(cell.text) for cell in column) for column in zip(*cells, strict=True)]
    lines: list[Line] = []
    for spans in cells:
        line: list[Span] = []
        used = 0
        for at, cell in enumerate(spans):
            last = at == len(columns) - 1
            gap = " " * (widths[at] - len(cell.text))
            if last and width is not None and len(cell.text) > max(0, width - used):
                cell = replace(cell, text=cell.text[: max(0, width - used - 1)] + "…")
            line += [Span(gap), cell] if columns[at].number else [cell, Span("" if last else gap)]
            line.append(Span("" if last else "  "))
            used += widths[at] + 2
        lines.append(tuple(span for span in line if span.text))
    return lines


def check_words(row: JobRow) -> str:
    """Whether a job's script trains alike at every size, and why."""
    if row.trusted:
        return "none: --trust"
    return ": ".join(filter(None, (row.check_verdict, row.check_text)))


def duration(seconds: float) -> str:
    """A duration in its two largest units: 42s, 3m05s, 2h10m, 5d03h."""
    left = max(0, round(seconds))
    if left < 60:
        return f"{left}s"
    for big, small, unit, sub in ((3600, 60, "m", "s"), (86400, 3600, "h", "m")):
        if left < big:
            return f"{left // small}{unit}{left % small // (small // 60):02d}{sub}"
    return f"{left // 86400}d{left % 86400 // 3600:02d}h"


_UTC_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def local_times(text: str, zone: tzinfo | None = None) -> str:
    """The daemon's text with its times, which are in UTC, in `zone` (the machine's own by default)."""
    return _UTC_TIME.sub(lambda found: clock(datetime.fromisoformat(found[0]).timestamp(), zone), text)


def drains(until: Mapping[str, float], zone: tzinfo | None = None) -> list[Line]:
    """Which nodes are kept free of pilots, the same ends together."""
    if not until:
        return [(Span("no node is drained of pilots", dim=True),)]
    ends: dict[float, list[str]] = {}
    for node, end in sorted(until.items()):
        ends.setdefault(end, []).append(node)
    return [
        (Span(f"until {clock(end, zone)}  ", bold=True), Span(f"{len(names)} nodes: {', '.join(names)}"))
        for end, names in sorted(ends.items())
    ]


def clock(at: float, zone: tzinfo | None = None) -> str:
    """Date and time of day, in `zone` (the machine's own by default)."""
    return datetime.fromtimestamp(at, zone).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")


def _said(row: EventRow, key: str, value: object) -> bool:
    """Whether a line about `row` says this already, or it says nothing."""
    same: dict[str, object] = {"job_id": row.job, "pilot": row.pilot, "node": row.node}
    if key in ("reason", "detail"):
        return value == row.reason
    return (key in same and value == same[key]) or value is None or value in ("", [], {})


def _short(key: str, value: object, zone: tzinfo | None) -> str:
    if isinstance(value, float):
        is_time = value > 1e9 and (key.endswith("_at") or key in ("deadline", "until"))
        return clock(value, zone)[11:] if is_time else f"{value:.6g}"
    if isinstance(value, list):
        return ",".join(_short(key, item, zone) for item in value)
    if isinstance(value, dict):
        return ",".join(f"{name}:{_short(name, item, zone)}" for name, item in value.items())
    text = str(value)
    return text if len(text) <= 60 else text[:59] + "…"
