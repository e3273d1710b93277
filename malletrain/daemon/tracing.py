"""Traces of the daemon's ticks and looks for an OpenTelemetry collector, where the site has one (`[traces]`).

A span holds times and counts: no user, job or node is named in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from malletrain import __version__, pip_install
from malletrain.config.sections import TracesSection
from malletrain.domain.errors import InvalidInput

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

#: Sets attributes of the span that is open.
SetCounts = Callable[[Mapping[str, int]], None]

#: Seconds that one request to the collector may take, and that the last spans may take when the daemon ends.
EXPORT_TIMEOUT_S = 3.0
#: Spans that wait for the collector; later ones are dropped while it is away.
MAX_WAITING_SPANS = 2048


class Tracer(Protocol):
    """Where spans go."""

    def span(self, name: str) -> AbstractContextManager[SetCounts]:
        """A span of the enclosed work, inside the one that is open in this thread, if any.

        Yields a function that adds counts to it. An exception of the work marks the span as failed and goes on.
        """

    def command(self, name: str, seconds: float, *, ok: bool) -> None:
        """A span of a Slurm command that has just ended after `seconds`; ignored outside any span."""

    def close(self) -> None:
        """Send what waits, within `EXPORT_TIMEOUT_S`."""


def tracer_of(traces: TracesSection, exporter: SpanExporter | None = None) -> Tracer:
    """The tracer that the configuration asks for; one that does nothing where it names no endpoint.

    Args:
        traces: the section of the configuration.
        exporter: takes the spans in place of the collector.

    Raises:
        InvalidInput: an endpoint is named, and OpenTelemetry is not installed.
    """
    if not traces.endpoint and exporter is None:
        return NoTracer()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidInput(
            "traces.endpoint", f"needs OpenTelemetry: {pip_install('traces')}, or leave it out ({error})"
        ) from error
    exporter = exporter or OTLPSpanExporter(
        traces.endpoint, certificate_file=traces.ca or None, headers={}, timeout=EXPORT_TIMEOUT_S
    )
    provider = TracerProvider(
        resource=Resource({"service.name": "malletraind", "service.version": __version__}), shutdown_on_exit=False
    )
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=MAX_WAITING_SPANS, export_timeout_millis=1000 * EXPORT_TIMEOUT_S)
    )
    return CollectorTracer(provider)


class NoTracer:
    """Records nothing."""

    def span(self, name: str) -> AbstractContextManager[SetCounts]:
        return nullcontext(lambda counts: None)

    def command(self, name: str, seconds: float, *, ok: bool) -> None:
        pass

    def close(self) -> None:
        pass


class CollectorTracer:
    """Hands spans to OpenTelemetry, which sends them from a thread of its own."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("malletraind", __version__)

    @contextmanager
    def span(self, name: str) -> Iterator[SetCounts]:
        with self._tracer.start_as_current_span(name) as opened:
            yield lambda counts: opened.set_attributes({f"malletrain.{key}": n for key, n in counts.items()})

    def command(self, name: str, seconds: float, *, ok: bool) -> None:
        from opentelemetry import trace

        if not trace.get_current_span().get_span_context().is_valid:
            return
        end = time.time_ns()
        span = self._tracer.start_span(name, kind=trace.SpanKind.CLIENT, start_time=end - int(seconds * 1e9))
        if not ok:
            span.set_status(trace.StatusCode.ERROR)
        span.end(end)

    def close(self) -> None:
        # OpenTelemetry's own limits hold for one request each, of which several may wait.
        last = threading.Thread(target=self._provider.shutdown, name="traces-shutdown", daemon=True)
        last.start()
        last.join(EXPORT_TIMEOUT_S)
