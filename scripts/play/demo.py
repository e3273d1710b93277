"""The main job before your eyes: a Slurm cluster, a main queue, trainings in its holes, and a twin without them.

Two labs of 8 nodes play the same main queue at the same time. On one, MalleTrain trains a model on the handwritten
digits of scikit-learn and searches for a better one, in whatever is idle; the other has no harvest. At the end their
start delays are compared, and a picture is written: who had which node when, and the model's loss beside that of the
same run on one node.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

from malletrain.cli import render
from malletrain.domain.job import JobPhase
from malletrain.wire.address import Address
from malletrain.wire.daemon import DaemonClient
from malletrain.wire.errors import WireError
from malletrain.wire.rows import StatusRow
from scripts.lab import Lab, LabConfig, LabError, UsageError
from scripts.play.load import MainJob, day, from_log
from scripts.play.picture import Strip, largest_difference, printed_curve, svg
from scripts.play.player import Player
from scripts.play.site import Site
from scripts.play.summary import Summary, shortcomings, summarise, words
from scripts.play.trainings import EPOCHS, Trainings

T = TypeVar("T")

#: Who had which node when.
PICTURE = Path("/tmp/malletrain-demo.svg")

#: Lengths of the play that jobs may take after it to end: a busy machine trains slowly.
PATIENCE = 4.0


def main(argv: Sequence[str] | None = None) -> int:
    """Play, show, sum up. 0 only if everything that the summary promises is so."""
    options = _options(argv)
    directory = Path(tempfile.mkdtemp(prefix="malletrain-demo-", dir="/tmp"))
    directory.chmod(0o755)
    jobs, described = _load(options)
    print(f"MalleTrain demo in {directory}: {described}", flush=True)
    with ExitStack() as stack:
        if not options.keep:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        config = LabConfig(nodes=options.nodes, profile=options.profile, users=True, accounting=True)
        twin = stack.enter_context(
            Lab.up(directory / "twin", LabConfig(nodes=options.nodes, profile=options.profile, users=True))
        )
        lab = Lab.up(directory / "lab", config, outlive=options.keep)
        if not options.keep:
            stack.callback(lab.down)
        site = Site(
            lab,
            daemon_user="malletrain",
            account="harvest",
            settings={
                "loop": ["tick_s = 2.0"],
                "breaker": ["preemptions_per_hour = 10000"],
                "pilot": ["leave_patience_s = 10.0"],
            },
        )
        site.start()
        if not options.keep:
            stack.callback(site.close)
        strip = Strip()
        trainings = Trainings(site)
        summary = _play(options, lab, twin, site, trainings, jobs, strip)
        for line in words(summary):
            print(line)
        print(_draw(options.picture, strip, summary, trainings.static_run()))
        if options.web:
            _leave_page_open(site, lab)
        if options.keep:
            print(f"\nThe cluster stays up. export SLURM_CONF={lab.path}/slurm.conf MALLETRAIN_URL={site.url}")
            print(f"End it with: scripts/slurm-lab down {lab.path}")
        else:
            site.stop()
    return 1 if shortcomings(summary) else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--nodes", type=int, default=8, help="nodes of each lab (default 8)")
    parser.add_argument("--profile", choices=("fast", "site"), default="fast", help="the lab's Slurm (default fast)")
    parser.add_argument("--log", type=Path, help="play this SWF or sacct log, compressed in time, instead of the day")
    parser.add_argument("--seconds", type=float, default=150.0, help="length of the play (default 150)")
    parser.add_argument("--web", action="store_true", help="print a link to the web page; leave it open at the end")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up to play with")
    parser.add_argument("--picture", type=Path, default=PICTURE, help=f"where it goes (default {PICTURE})")
    return parser.parse_args(argv)


def _load(options: argparse.Namespace) -> tuple[list[MainJob], str]:
    if options.log is None:
        jobs = day(stretch=options.seconds / 150.0)
        return jobs, f"{len(jobs)} main jobs of a day in miniature"
    jobs, factor = from_log(options.log, options.nodes, options.seconds * 0.9)
    return jobs, f"{len(jobs)} main jobs of {options.log.name}, time divided by {factor:.0f}"


def _draw(file: Path, strip: Strip, summary: Summary, printed: str) -> str:
    """Write the picture; a line about it. `printed` is what the job's run on one node said."""
    job, losses = summary.job, summary.losses
    static = printed_curve(printed, job.samples / EPOCHS)
    trials = {str(row.id): row.name.rpartition("-")[2].lstrip("0") or "0" for row in summary.trials}
    title = f"{job.resizes} resizes of {job.name}, {summary.leaves} pilots that made room"
    file.write_text(svg(strip, (str(job.id), job.name), trials, losses, static, title))
    apart = largest_difference(losses, static)
    compared = f"; its loss is at most {apart:.4f} from the static run's" if apart is not None else ""
    return f"\npicture: {file}{compared}"


def _play(
    options: argparse.Namespace,
    lab: Lab,
    twin: Lab,
    site: Site,
    trainings: Trainings,
    jobs: list[MainJob],
    strip: Strip,
) -> Summary:
    trainings.begin()
    players = [Player(each, jobs, "bob", each.path / "main") for each in (lab, twin)]
    begin = time.time() + 1.0
    for player in players:
        player.start(begin)
    daemon = DaemonClient(Address(site.url), str(lab.munge_socket))
    page = f"the page, for a minute: {daemon.web_link()[0]}" if options.web else ""
    shown, curve = -1, list[tuple[int, float]]()
    end = begin + options.seconds
    try:
        while True:
            picture = _answered(daemon.status)
            if picture is not None:
                strip.look(max(0.0, time.time() - begin), picture)
                before, shown = shown, _show(picture, players[0], begin, options.seconds, shown, page)
                if shown != before:
                    curve = _answered(lambda: trainings.curve(daemon)) or curve
                over = all(JobPhase(job.phase).is_over for job in picture.jobs if job.id == trainings.job)
                started = all(played.start_s is not None or played.refused for played in players[0].played())
                if time.time() > end and over and started:
                    break
            if time.time() > end + PATIENCE * options.seconds:
                break
            time.sleep(0.5)  # the refresh of a picture for people, not a synchronisation
    finally:
        for player in players:
            player.stop()
        stopped = time.time()
        trainings.stop_search()
    ours, theirs = (player.played() for player in players)
    journal = site.directory / "malletrain.db"
    return summarise(journal, trainings.job, curve, trainings.found(), ours, theirs, begin, stopped)


def _leave_page_open(site: Site, lab: Lab) -> None:
    """Print links to the web page until Ctrl-C."""
    print("\nThe web page shows all of it. Enter prints a new link, Ctrl-C ends the demo.")
    with closing(DaemonClient(Address(site.url), str(lab.munge_socket))) as daemon:
        try:
            while True:
                print(daemon.web_link()[0], flush=True)
                if not sys.stdin.readline():
                    signal.pause()  # there is no terminal to press Enter at
        except KeyboardInterrupt:
            print()


def _answered(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except WireError:
        return None  # it is busy: the next look tells


def _show(picture: StatusRow, player: Player, begin: float, seconds: float, shown: int, page: str) -> int:
    """Draw the cluster: on a terminal always, elsewhere every ten seconds. `shown`, and what is returned, are the
    last ten seconds that were drawn."""
    waiting = sum(1 for played in player.played() if played.start_s is None)
    lines = render.status(picture, width=shutil.get_terminal_size((110, 24)).columns)
    second = max(0.0, time.time() - begin)
    clock = f"second {second:5.0f} of {seconds:.0f}; {waiting} main jobs wait"
    if page and (second < 60 if sys.stdout.isatty() else shown < 0):
        clock += f"\n{page}"
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[2J\x1b[H" + clock + "\n" + render.colored(lines) + "\n")
        sys.stdout.flush()
    elif int(second) // 10 != shown:
        print(clock, "|", render.plain(lines).splitlines()[1] if lines else "", flush=True)
    return int(second) // 10


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
