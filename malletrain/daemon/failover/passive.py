"""A passive daemon at work: its server, and the wait for its turn."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from malletrain.api.auth import Auth
from malletrain.api.connections import ConnectionLimits, ConnectionTable
from malletrain.api.http_server import serve
from malletrain.api.roles import Roles
from malletrain.api.standby_app import standby_app
from malletrain.config import Config
from malletrain.daemon.clock import SystemClock
from malletrain.daemon.failover.standby import StandbyHalf
from malletrain.daemon.failover.warm_ledger import WarmLedger
from malletrain.daemon.views.metrics import Metrics
from malletrain.domain.errors import InvalidInput
from malletrain.loop.ledger import Ledger
from malletrain.store.errors import Fenced, OutOfStep
from malletrain.store.pair.register import Register, Term
from malletrain.wire.failover import FENCED, OUT_OF_STEP

#: Seconds between two looks at whether it is this daemon's turn.
CLAIM_INTERVAL_S = 0.1

UPKEEP_S = 3600.0


def boot_time() -> float:
    """Seconds since the machine was booted: never set, and counted on while it is suspended (clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def pair_urls(config: Config) -> tuple[str, str]:
    """The URLs of both daemons, in the order of the configuration."""
    first, second = config.failover.urls
    return first, second


def other_url(config: Config) -> str:
    """The URL of the other daemon."""
    return next(url for url in pair_urls(config) if url != config.api.url)


@dataclass(frozen=True, slots=True)
class Turn:
    """This daemon's turn to be the active one: its term, and the ledger of its journal where it has followed it."""

    term: Term
    ledger: Ledger | None = None


def await_turn(
    config: Config, register: Register, ended: Callable[[float], bool], ready: Callable[[], None]
) -> Turn | None:
    """Serve as the passive daemon until this one is the active one. None once `ended` is.

    Args:
        ended: waits for so many seconds; returns whether this daemon is to end.
        ready: called once the passive daemon answers its peer.

    Raises:
        StoreError: the journal cannot be used.
        Unavailable: the address is taken.
    """
    clock = SystemClock()
    metrics = Metrics(clock)
    half = StandbyHalf(
        Path(config.store.path),
        register,
        pair_urls(config),
        config.api.url,
        config.failover.lease_s,
        clock,
        boot_time,
        metrics.registry,
    )
    warm = WarmLedger(Path(config.store.path))
    try:
        # A daemon that starts again where it was the active one takes no detour.
        if (term := half.claim()) is not None:
            return Turn(term)
        roles = Roles({os.geteuid()}, serves={os.geteuid()})
        auth = Auth((config.api.url,), roles, clock, certificate=config.api.certificate)
        limits = ConnectionLimits()
        table = ConnectionTable(limits, limits.within_descriptors())
        statuses = ((Fenced, FENCED), (OutOfStep, OUT_OF_STEP))
        app = standby_app(half, auth, table, clock, statuses, metrics.render)
        with serve(app, config.api.host, config.api.port, table) as server:
            ready()
            upkeep_at, replaced, behind = clock.elapsed() + UPKEEP_S, half.replaced, True
            while not ended(0.0 if behind else CLAIM_INTERVAL_S):
                if (term := half.claim()) is not None:
                    server.close(at_once=True)
                    if replaced != half.replaced:
                        warm.restart()
                    return Turn(term, warm.finish())
                if replaced != half.replaced:
                    replaced = half.replaced
                    warm.restart()
                behind = warm.follow()
                if clock.elapsed() >= upkeep_at:
                    half.tend()
                    warm.tend(clock.now())
                    upkeep_at = clock.elapsed() + UPKEEP_S
        return None
    finally:
        warm.close()
        half.close()


def take_over(config: Config, register: Register, now: float) -> str:
    """Have this daemon be the active one whatever the other has; what was decided, for the operator.

    Raises:
        InvalidInput: there is no pair, or this daemon is the active one.
        RegisterUnavailable: nothing was decided.
    """
    if not config.failover.urls:
        raise InvalidInput("failover.urls", "names no pair: there is nothing to take over")
    last = register.read()
    if last is not None and last.holder == config.api.url:
        raise InvalidInput("--take-over", f"{last.holder} is the active one already (epoch {last.epoch})")
    before = Term(0, 0, "") if last is None else last
    term = Term(before.number + 1, before.epoch + 1, config.api.url, 0, now)
    if not register.decide(term):
        raise InvalidInput("--take-over", "the register has just changed: look again, and repeat the command")
    lost = (
        "It had all that was acknowledged."
        if before.pairing
        else "What the other one acknowledged while this one was not in step is lost: jobs that `malletrain status` "
        "does not show must be submitted again."
    )
    return f"{term.holder} is the active one once the other's lease is over. {lost}"
