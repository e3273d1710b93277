"""`malletraind`: reads the configuration, opens the service, drives it, and ends it in order on a signal."""

from __future__ import annotations

import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import structlog

from malletrain import __version__, config
from malletrain.api.explain import describe
from malletrain.api.roles import Unavailable
from malletrain.config import ConfigError
from malletrain.config.sections import Config
from malletrain.daemon.process import log
from malletrain.daemon.process.short_collections import WHOLE_INTERVAL_S, collect_and_freeze, no_collections
from malletrain.daemon.process.systemd import Notifier
from malletrain.daemon.process.timers import Timers
from malletrain.domain.errors import ClusterUnavailable, InvalidInput, MalletrainError
from malletrain.slurm.command import Commands
from malletrain.slurm.site import site_facts
from malletrain.store.errors import DiskFull, JournalInUse
from malletrain.wire import address
from malletrain.wire.errors import WireError

if TYPE_CHECKING:
    from malletrain.daemon.observing import Observing
    from malletrain.daemon.service import Service

#: What may be otherwise a little later, after a power cut for example. A service then ends with 1, and systemd starts
#: it again; 2 is for what stays wrong until somebody mends it.
_PASSING = (ClusterUnavailable, JournalInUse, DiskFull, Unavailable)

_STOP, _RELOAD, _API_ENDED = "stop", "reload", "api-ended"

#: Seconds after which a signal is noticed at the latest.
SIGNAL_LATENCY_S = 1.0

#: Seconds for which a thread that computes keeps Python's lock while others wait for it.
THREAD_SWITCH_S = 0.001


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Example:  malletraind --config /etc/malletrain/malletrain.toml --dry-run",
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"Configuration; none needed with --user.  [default: {config.SYSTEM_FILE}]",
)
@click.option("--user", "user_mode", is_flag=True, help="Serve only your own jobs: no rights needed.")
@click.option("--once", is_flag=True, help="Run one tick, print it, and end.")
@click.option("--dry-run", is_flag=True, help="Print what one tick would do, and end.")
@click.option("--observe", is_flag=True, help="Simulate pilots, without acting or listening.")
@click.option("--actuator", is_flag=True, help="Act on Slurm for a malletraind without rights.")
@click.option("--check-config", is_flag=True, help="Name everything wrong with the configuration, and end.")
@click.version_option(__version__, prog_name="malletraind")
def command(
    file: Path | None, user_mode: bool, once: bool, dry_run: bool, observe: bool, actuator: bool, check_config: bool
) -> None:
    """Train malleable PyTorch jobs on idle nodes, and leave before the main queue wants them.

    SIGHUP rereads the configuration. Killing it at any moment loses nothing. Exit status 1 (2 with --once,
    --dry-run): Slurm does not answer, or the port or journal is taken.
    """
    if observe and (once or dry_run):
        raise click.UsageError("--observe runs on: it does not go with --once or --dry-run")
    if actuator and (once or dry_run or observe or user_mode):
        raise click.UsageError("--actuator steers for another daemon: it goes with --config alone")
    settings = read_config(file, user_mode=user_mode, environ=os.environ)
    if check_config:
        from malletrain.site_rules import policy_from, unknown_names

        policy_from(settings)
        commands = Commands(settings.slurm.environment(os.environ))
        try:
            facts = site_facts.read(commands)
        except ClusterUnavailable as error:
            click.echo(f"malletraind: names of nodes and partitions are not checked: {error}", err=True)
            facts = None
        if faults := unknown_names(settings, facts):
            raise InvalidInput(str(file or config.SYSTEM_FILE), "\n".join(faults))
        for gone in settings.gone:
            click.echo(f"malletraind: {gone}", err=True)
        click.echo(f"{file or (config.SYSTEM_FILE if not user_mode else '--user')}: no faults")
        return
    log.configure(level=settings.log.level, environ=os.environ)
    if actuator:
        from malletrain.daemon.actuator_main import steer

        sys.exit(_exit_status(partial(steer, settings, file or config.SYSTEM_FILE, os.environ)))
    if user_mode and not dry_run:  # a service's folder is made by its unit (StateDirectory=)
        Path(settings.store.path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if once or dry_run:
        _look_once(settings, dry_run=dry_run, user_mode=user_mode)
        return
    # Python's 5 ms would be the wait of each request for every thread that computes.
    sys.setswitchinterval(THREAD_SWITCH_S)
    daemon = DaemonProcess(settings, file=file, observe=observe, user_mode=user_mode, environ=os.environ)
    sys.exit(_exit_status(daemon.run))


def read_config(file: Path | None, *, user_mode: bool, environ: Mapping[str, str]) -> Config:
    """The configuration that the command line asks for. Raises ConfigError: naming every fault."""
    if user_mode:
        return config.load_for_user(environ, file)
    return config.load(file or config.SYSTEM_FILE)


def _exit_status(serve: Callable[[], int]) -> int:
    """The exit status of a service that may be started again."""
    try:
        return serve()
    except _PASSING as error:
        _tell(error)
        return 1


def _look_once(settings: Config, *, dry_run: bool, user_mode: bool) -> None:
    from malletrain.daemon.service import Service

    with closing(Service(settings, act=not dry_run, user_mode=user_mode)) as service:
        for line in describe(service.tick()):
            click.echo(line)


class DaemonProcess:
    """One run of the daemon: from start to SIGTERM, over any number of reloads."""

    def __init__(
        self, settings: Config, *, file: Path | None, observe: bool, user_mode: bool, environ: Mapping[str, str]
    ) -> None:
        self._settings, self._file, self._environ = settings, file, environ
        self._observe, self._user_mode = observe, user_mode
        self._notifier = Notifier.from_environment(environ)
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("malletraind")
        # A SimpleQueue may be fed from a signal handler: its put is reentrant.
        self._wishes: queue.SimpleQueue[str] = queue.SimpleQueue()

    def run(self) -> int:
        """Serve until a signal ends it; the exit status."""
        for number, wish in ((signal.SIGTERM, _STOP), (signal.SIGINT, _STOP), (signal.SIGHUP, _RELOAD)):
            signal.signal(number, lambda *_, wish=wish: self._wishes.put(wish))
        ended_by = _RELOAD
        while ended_by == _RELOAD:
            ended_by = self._serve()
        return 0 if ended_by == _STOP else 1

    def _serve(self) -> str:
        """Run one service until a wish ends it; which one did."""
        service = self._open()
        timers = Timers(failed=self._run_failed, late=partial(self._run_late, service), elapsed=time.monotonic)
        known_at = address.user_daemon_file(self._environ) if self._user_mode else None
        retired = threading.Event()
        api = threading.Thread(target=self._serve_api, args=(service.serve_forever, retired), name="api", daemon=True)
        try:
            api.start()
            slurm = self._settings.slurm
            if known_at and service.url:
                address.write(address.Address(service.url, slurm.partition, slurm.account, slurm.qos), known_at)
            for name, seconds, work in service.work():
                timers.every(name, seconds, work, at_once=name == "tick")
            timers.every("garbage", WHOLE_INTERVAL_S, collect_and_freeze, at_once=False)
            timers.start()
            self._tell_gone()
            self._log.info("serving", url=service.url, observe=self._observe, version=__version__)
            self._notifier.ready(f"serving {service.url}" if service.url else "observing")
            collect_and_freeze()
            return self._wait(timers)
        finally:
            retired.set()
            service.hurry()
            timers.stop()
            service.close()
            api.join(timeout=10)
            if known_at:
                known_at.unlink(missing_ok=True)

    def _open(self) -> Service | Observing:
        """What serves: with --observe a loop that acts on nothing, and listens on nothing."""
        with no_collections():
            if self._observe:
                from malletrain.daemon.observing import Observing

                return Observing(self._settings)
            slurm = self._settings.slurm
            commands = Commands(slurm.environment(self._environ))
            asking = ThreadPoolExecutor(1, "site")
            asked = asking.submit(site_facts.read, commands).result  # while Python imports the rest
            asking.shutdown(wait=False)
            from malletrain.daemon.service import Service

            return Service(self._settings, act=True, user_mode=self._user_mode, facts=asked)

    def _wait(self, timers: Timers) -> str:
        """Feed the watchdog until a wish ends this service."""
        watchdog_s = self._notifier.watchdog_s
        begun = time.monotonic()
        while True:
            try:
                # Half of systemd's limit, as sd_watchdog_enabled(3) advises. A signal that the kernel gives to
                # another thread does not interrupt this wait: its handler runs when this call returns.
                wish = self._wishes.get(timeout=min(SIGNAL_LATENCY_S, watchdog_s / 2 if watchdog_s else math.inf))
            except queue.Empty:
                since = timers.since_end("tick"), time.monotonic() - begun
                if watchdog_s and makes_progress(*since, max(watchdog_s, 3 * self._settings.loop.tick_s)):
                    self._notifier.watchdog()
                continue
            if wish == _RELOAD and not self._reload():
                continue
            if wish == _STOP:
                self._log.info("stopping")
                self._notifier.stopping()
            return wish

    def _reload(self) -> bool:
        """Read the configuration again; False, with the old one kept, when it has faults."""
        try:
            settings = read_config(self._file, user_mode=self._user_mode, environ=self._environ)
        except ConfigError as error:
            for fault in error.faults:
                self._log.error("configuration not reloaded", fault=fault)
            return False
        self._notifier.reloading(time.clock_gettime(time.CLOCK_MONOTONIC))
        self._settings = settings
        log.configure(level=settings.log.level, environ=self._environ)
        self._tell_gone()
        self._log.info("configuration reloaded")
        return True

    def _tell_gone(self) -> None:
        for gone in self._settings.gone:
            self._log.warning("doubtful configuration", doubt=gone)

    def _serve_api(self, serve_forever: Callable[[], None], retired: threading.Event) -> None:
        try:
            serve_forever()
        except Exception:  # noqa: BLE001  (whatever it is: a daemon that cannot be reached must end and be started again)
            self._log.exception("the API failed")
        if not retired.is_set():
            self._wishes.put(_API_ENDED)

    def _run_failed(self, timer: str, error: BaseException) -> None:
        self._log.error("run failed", timer=timer, exc_info=error)

    def _run_late(self, service: Service | Observing, timer: str) -> None:
        service.skipped(timer)
        self._log.warning("run skipped: the one before is still going", timer=timer)


def makes_progress(since_tick_s: float | None, since_start_s: float, limit_s: float) -> bool:
    """Whether a tick has ended lately, or the first may still be going.

    A tick that hangs must not look alive: systemd then starts the daemon anew, and nothing is lost."""
    return (since_start_s if since_tick_s is None else since_tick_s) < limit_s


def main(argv: list[str] | None = None) -> NoReturn:
    """The entry point: one line on stderr for each thing that is wrong, exit status 0, 1 or 2."""
    try:
        command(argv, prog_name="malletraind", standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"malletraind: {error.format_message()}", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (MalletrainError, WireError, ConfigError) as error:  # for the reader: printed as they are
        _tell(error)
        sys.exit(error.exit_status)
    sys.exit(0)


def _tell(error: Exception) -> None:
    for line in str(error).splitlines():
        click.echo(f"malletraind: {line}", err=True)
