"""Figures of a pair of daemons, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge


class FailoverMetrics:
    """In the registry of whichever half runs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._active = Gauge("malletrain_failover_active", "1 while this daemon is active.", registry=registry)
        self._paired = Gauge(
            "malletrain_failover_paired",
            "1 while the passive daemon has all that is acknowledged, and may take over.",
            registry=registry,
        )
        self._epoch = Gauge("malletrain_failover_epoch", "Number of takeovers and starts so far.", registry=registry)
        self._heard = Gauge(
            "malletrain_failover_heard_timestamp_seconds",
            "When the other daemon was last heard (Unix time).",
            registry=registry,
        )

    def show(self, *, active: bool, paired: bool, epoch: int) -> None:
        """What is so now."""
        self._active.set(active)
        self._paired.set(paired)
        self._epoch.set(epoch)

    def heard(self, now: float) -> None:
        """The other daemon has spoken at `now` (Unix seconds)."""
        self._heard.set(now)
