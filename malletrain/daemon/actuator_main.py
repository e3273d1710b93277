"""`malletraind --actuator`: the process that holds Slurm's rights, apart from the one that listens on the network."""

import os
import signal
import stat
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

import structlog

from malletrain import __version__
from malletrain.api.roles import uids_of
from malletrain.config.sections import Config
from malletrain.daemon.process.systemd import Notifier
from malletrain.daemon.site_watch import SiteWatch
from malletrain.domain.errors import InvalidInput
from malletrain.site_rules import harvest_of
from malletrain.slurm.actuator.bounds import ActuatorBounds
from malletrain.slurm.actuator.server import Actuator, ActuatorServer, AuditLog
from malletrain.slurm.command import Commands
from malletrain.slurm.formats.hostlist import node_names
from malletrain.slurm.site import site_facts

#: A command that runs when the actuator ends has so long (seconds).
GOODBYE_S = 3.0

#: Where the shipped unit makes its socket: served where the configuration names none, so that the two units can be
#: enabled before it does.
DEFAULT_SOCKET = "/run/malletrain/actuator.sock"


def steer(settings: Config, file: Path, environ: Mapping[str, str]) -> int:
    """Carry out the listener's orders until SIGTERM or SIGINT; the exit status. `file`: where `settings` are from.
    Raises MalletrainError: the listener could change the configuration or the log, Slurm does not answer, or pilots
    may not run on this site."""
    log: structlog.stdlib.BoundLogger = structlog.get_logger("malletraind")
    socket = settings.actuator.socket or DEFAULT_SOCKET
    if not settings.actuator.socket:
        said = "actuator.socket is empty: malletraind steers Slurm by itself until it names this socket"
        log.warning(said, socket=socket)
    check_not_alterable(file)
    # systemd names the unit's LogsDirectory in LOGS_DIRECTORY (systemd.exec(5)).
    audit = AuditLog(Path(environ.get("LOGS_DIRECTORY", "/var/log/malletrain")) / "actuator.jsonl", time.time)
    commands = Commands(settings.slurm.environment(os.environ))
    facts = site_facts.read(commands)
    harvest = harvest_of(settings, facts)
    # The listener is who looks at the queue.
    SiteWatch(commands, harvest, replace(facts, sees_all=True), time.monotonic).refuse_unfit()
    notifier = Notifier.from_environment(environ)
    actuator = Actuator(commands, harvest, bounds_from(settings), audit)
    allowed = uids_of([settings.actuator.listener], "actuator.listener")
    server = ActuatorServer(Path(socket), actuator, allowed, notifier.watchdog)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, partial(_end, server, commands))
    try:
        log.info("steering", socket=socket, listener=settings.actuator.listener, version=__version__)
        notifier.ready(f"steering for {settings.actuator.listener} as user {os.geteuid()}")
        server.run()
        notifier.stopping()
        return 0
    finally:
        server.close()
        log.info("stopping")


def bounds_from(settings: Config) -> ActuatorBounds:
    """What the actuator does at most."""
    return ActuatorBounds(
        max_limit_s=settings.pilot.max_minutes * 60.0,
        max_pilots=settings.pool.max_pilots,
        include=node_names(settings.pool.include, "pool.include"),
        exclude=node_names(settings.pool.exclude, "pool.exclude"),
    )


def check_not_alterable(file: Path) -> None:
    """Make sure that root or the actuator's user alone can change the file or put another in its place.
    Raises InvalidInput: somebody else can, by the file or a folder on the way to it."""
    trusted = {0, os.geteuid()}
    path = file.resolve()
    for each in (path, *path.parents):
        found = each.stat()
        shared = found.st_mode & 0o022 and not (each.is_dir() and found.st_mode & stat.S_ISVTX)
        if found.st_uid not in trusted or shared:
            why = f"the actuator's bounds stand in it, and others than root may change {each}"
            raise InvalidInput(str(file), f"{why}: chown root {each}; chmod go-w {each}")


def _end(server: ActuatorServer, commands: Commands, _number: int, _frame: FrameType | None) -> None:
    server.stop()
    commands.end_within(GOODBYE_S)
