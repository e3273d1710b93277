"""`malletraind --actuator`: the process that holds Slurm's rights, apart from the one that listens on the network."""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import FrameType

import structlog

from malletrain import __version__
from malletrain.config import Config
from malletrain.daemon.notify import Notifier
from malletrain.daemon.site_rules import harvest_of
from malletrain.domain.errors import InvalidInput
from malletrain.slurm import site_facts
from malletrain.slurm.actuator.server import Actuator, ActuatorServer
from malletrain.slurm.command import Commands

#: A command that runs when the actuator is told to end has so long (seconds).
GOODBYE_S = 3.0


def steer(settings: Config, environ: Mapping[str, str]) -> int:
    """Carry out the listener's orders until SIGTERM or SIGINT; the exit status.

    Raises:
        MalletrainError: there is no socket to serve, Slurm does not answer, or pilots may not run on this site.
    """
    log: structlog.stdlib.BoundLogger = structlog.get_logger("malletraind")
    if not settings.actuator.socket:
        raise InvalidInput("actuator.socket", "is empty: name the socket that malletraind finds this process at")
    commands = Commands(settings.slurm.environment(os.environ), settings.slurm.command_timeout_s)
    facts = site_facts.read(commands)
    harvest = harvest_of(settings, facts)
    findings = site_facts.check_harvest_partition(facts, harvest)
    if faults := [f"{f.what}; {f.remedy}" for f in findings if f.level is site_facts.Level.ERROR]:
        raise InvalidInput("slurm.partition", "\n".join(faults))
    notifier = Notifier.from_environment(environ)
    actuator = Actuator(commands, harvest, settings.pilot.max_minutes * 60.0)
    allowed = frozenset({_uid(settings.actuator.listener)})
    server = ActuatorServer(Path(settings.actuator.socket), actuator, allowed, notifier.watchdog)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, partial(_end, server, commands))
    try:
        log.info(
            "steering", socket=settings.actuator.socket, listener=settings.actuator.listener, version=__version__
        )
        notifier.ready(f"steering for {settings.actuator.listener} as user {os.geteuid()}")
        server.run()
        notifier.stopping()
        return 0
    finally:
        server.close()
        log.info("stopping")


def _end(server: ActuatorServer, commands: Commands, _number: int, _frame: FrameType | None) -> None:
    server.stop()
    commands.end_within(GOODBYE_S)


def _uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError as error:
        raise InvalidInput("actuator.listener", f"there is no user {user} here: add it, or name another") from error
