"""`malletrain top`: the live picture."""

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import click

from malletrain.cli import render
from malletrain.wire.daemon import DaemonClient, connect
from malletrain.wire.errors import WireError
from malletrain.wire.rows import EventRow

#: Kinds of events that would only make the list below the table flicker.
_QUIET = frozenset({"samples", "decided", "pool", "holes_opened", "holes_ended", "metric", "outcome"})


@click.command(epilog="Example:  malletrain top --interval 1")
@click.option("--once", is_flag=True, help="Draw once and end.")
@click.option("--interval", "-n", type=click.FloatRange(min=0.5), default=2.0, help="Seconds between updates.")
def top(interval: float, once: bool) -> None:
    """Watch nodes, jobs and events live, until Ctrl-C."""
    daemon = connect()
    recent: deque[EventRow] = deque(maxlen=200)
    last: int | None = None

    with _screen(live=sys.stdout.isatty() and not once) as draw:
        while True:
            size = shutil.get_terminal_size((120, 40))
            try:
                rows, last = daemon.latest_events(200) if last is None else daemon.events(after=last)
                recent.extend(row for row in rows if row.kind not in _QUIET)
                draw(picture(daemon, recent, width=size.columns, height=size.lines))
            except WireError as error:
                # A daemon that is being restarted comes back: say so, keep the screen, try again.
                if once:
                    raise
                draw([(render.Span(f"{error}; trying again", color="red"),)])
            if once:
                return
            time.sleep(interval)


def picture(daemon: DaemonClient, recent: Sequence[EventRow], *, width: int, height: int) -> list[render.Line]:
    """The whole screen: status above, the last events below as far as there is room."""
    lines = render.status(daemon.status(), width=width)
    room = height - len(lines) - 2
    if room > 1 and recent:
        lines += [(), *(render.event(row) for row in list(recent)[-room:])]
    return [_clip(line, width) for line in lines[: max(1, height - 1)]]


def _clip(line: render.Line, width: int) -> render.Line:
    """A line cut to `width` columns."""
    kept: list[render.Span] = []
    for span in line:
        if width <= 0:
            break
        kept.append(replace(span, text=span.text[:width]))
        width -= len(span.text)
    return tuple(kept)


@contextmanager
def _screen(*, live: bool) -> Iterator[Callable[[Sequence[render.Line]], None]]:
    """What draws: over the picture before on a terminal's other screen, or one below the other."""
    if not live:
        yield lambda lines: click.echo(render.plain(lines))
        return

    def draw(lines: Sequence[render.Line]) -> None:
        text = render.colored(lines).replace("\n", "\x1b[K\n")
        click.echo(f"\x1b[H{text}\x1b[K\x1b[J", nl=False)

    click.echo("\x1b[?1049h\x1b[?25l", nl=False)
    try:
        yield draw
    finally:
        click.echo("\x1b[?25h\x1b[?1049l", nl=False)
