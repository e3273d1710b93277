"""`malletrain top`: the live picture. Rich redraws it where rich is installed; without it the screen is cleared."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

import click

from malletrain.cli import render
from malletrain.wire.daemon import DaemonClient, connect
from malletrain.wire.errors import WireError
from malletrain.wire.rows import EventRow

#: Kinds of events that would only make the list below the table flicker.
_QUIET = frozenset({"samples", "decided", "pool", "holes_opened", "holes_ended", "metric", "outcome"})

Draw = Callable[[Sequence[render.Line]], None]
F = TypeVar("F", bound=Callable[..., Any])


def redrawn(command: F) -> F:
    """The options of a command that draws again and again."""
    once = click.option("--once", is_flag=True, help="Draw once and end.")
    interval = click.option(
        "--interval",
        "-n",
        type=click.FloatRange(min=0.5),
        default=2.0,
        show_default=True,
        help="Seconds between updates.",
    )
    return interval(once(command))


@click.command(epilog="Example:  malletrain top --interval 1")
@redrawn
def top(interval: float, once: bool) -> None:
    """Watch nodes, jobs and events live, until Ctrl-C."""
    daemon = connect()
    recent: deque[EventRow] = deque(maxlen=200)
    last: int | None = None
    with screen(live=sys.stdout.isatty() and not once) as draw:
        for look in count():
            if look:
                time.sleep(interval)
            size = shutil.get_terminal_size((120, 40))
            try:
                last = _collect(daemon, last, recent)
                draw(picture(daemon, recent, width=size.columns, height=size.lines))
            except WireError as error:
                # A daemon that is being restarted comes back: say so, keep the screen, try again.
                if once:
                    raise
                draw([(render.Span(f"{error}; trying again", color="red"),)])
            if once:
                return


def picture(daemon: DaemonClient, recent: Sequence[EventRow], *, width: int, height: int) -> list[render.Line]:
    """The whole screen: status above, the last events below as far as there is room."""
    lines = render.status(daemon.status(), width=width)
    room = height - len(lines) - 2
    if room > 1 and recent:
        lines += [(), *(clip(render.event(row), width) for row in list(recent)[-room:])]
    return lines[: max(1, height - 1)]


def clip(line: render.Line, width: int) -> render.Line:
    """A line cut to `width` columns."""
    kept: list[render.Span] = []
    for span in line:
        if width <= 0:
            break
        kept.append(render.Span(span.text[:width], span.color, span.back, span.bold, span.dim))
        width -= len(span.text)
    return tuple(kept)


def _collect(daemon: DaemonClient, last: int | None, recent: deque[EventRow]) -> int:
    rows, last = daemon.latest_events(200) if last is None else daemon.events(after=last)
    recent.extend(row for row in rows if row.kind not in _QUIET)
    return last


@contextmanager
def screen(*, live: bool) -> Iterator[Draw]:
    """Where to draw: a live screen, or plain prints one after the other."""
    if not live:
        yield lambda lines: click.echo(render.plain(lines))
        return
    try:
        from rich.live import Live
        from rich.text import Text
    except ModuleNotFoundError:
        yield _redraw
        return
    with Live(screen=True, auto_refresh=False) as view:
        yield lambda lines: view.update(Text.from_ansi(render.colored(lines), no_wrap=True), refresh=True)


def _redraw(lines: Sequence[render.Line]) -> None:
    click.clear()
    click.echo(render.colored(lines))
