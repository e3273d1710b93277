"""Traces of ticks reach a collector by OTLP over a real socket; one that is away holds nothing up."""

from __future__ import annotations

import gzip
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from malletrain import config
from malletrain.config.sections import TracesSection
from malletrain.daemon.tracing import EXPORT_TIMEOUT_S, NoTracer, tracer_of
from malletrain.domain.errors import InvalidInput
from scripts.lab import Lab
from tests.daemon.running import Running, file, start

__all__ = ["file", "start"]


class Collector:
    """A collector of traces: takes OTLP/HTTP on a free port."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                request = ExportTraceServiceRequest()
                request.ParseFromString(body)
                collector.requests.append(request)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def spans(self) -> dict[str, Span]:
        """The latest span of each name."""
        found = (
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        )
        return {span.name: span for span in found}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def counts(span: Span) -> dict[str, int]:
    return {each.key: each.value.int_value for each in span.attributes}


def test_spans_are_nested_and_carry_counts(collector: Collector) -> None:
    tracer = tracer_of(TracesSection(endpoint=collector.url))
    with tracer.span("tick") as count:
        with tracer.span("look"):
            tracer.command("squeue", 0.25, ok=True)
        tracer.command("scontrol update", 0.01, ok=False)
        count({"nodes": 7})
    tracer.close()
    spans = collector.spans()
    assert set(spans) == {"tick", "look", "squeue", "scontrol update"}
    assert spans["look"].parent_span_id == spans["tick"].span_id == spans["scontrol update"].parent_span_id
    assert spans["squeue"].parent_span_id == spans["look"].span_id
    assert spans["squeue"].end_time_unix_nano - spans["squeue"].start_time_unix_nano == 250_000_000
    assert spans["scontrol update"].status.code == Status.STATUS_CODE_ERROR
    assert counts(spans["tick"]) == {"malletrain.nodes": 7}
    resource = {
        each.key: each.value.string_value for each in collector.requests[0].resource_spans[0].resource.attributes
    }
    assert resource["service.name"] == "malletraind"


def test_an_exception_marks_the_span_and_goes_on(collector: Collector) -> None:
    tracer = tracer_of(TracesSection(endpoint=collector.url))
    with pytest.raises(ZeroDivisionError), tracer.span("tick"):
        raise ZeroDivisionError
    tracer.close()
    assert collector.spans()["tick"].status.code == Status.STATUS_CODE_ERROR


def test_commands_outside_a_span_make_none(collector: Collector) -> None:
    tracer = tracer_of(TracesSection(endpoint=collector.url))
    tracer.command("squeue", 0.1, ok=True)
    tracer.close()
    assert not collector.requests


def test_a_collector_that_hangs_holds_neither_work_nor_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        tracer = tracer_of(TracesSection(endpoint=f"http://127.0.0.1:{deaf.getsockname()[1]}/v1/traces"))
        begun = time.monotonic()
        for _ in range(5000):
            with tracer.span("tick"):
                pass
        worked = time.monotonic()
        tracer.close()
        assert worked - begun < 5 * EXPORT_TIMEOUT_S, "it would wait for ten exports"
        assert time.monotonic() - worked < 5 * EXPORT_TIMEOUT_S


def test_without_an_endpoint_nothing_is_made() -> None:
    assert isinstance(tracer_of(TracesSection()), NoTracer)
    with NoTracer().span("tick") as count:
        count({"nodes": 1})


def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(InvalidInput, match=r"pip install '\./malletrain-\S+\.whl\[traces\]'"):
        tracer_of(TracesSection(endpoint="http://127.0.0.1:4318/v1/traces"))


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:4318", "http://127.0.0.1:4318", "http://a:b@host/v1/traces", "ftp://h/x"]
)
def test_an_endpoint_that_is_none_is_refused_with_its_place(tmp_path: Path, endpoint: str) -> None:
    made = tmp_path / "malletrain.toml"
    made.write_text(f'[traces]\nendpoint = "{endpoint}"\n')
    with pytest.raises(config.ConfigError, match=r"malletrain.toml:2: traces\.endpoint: give a URL"):
        config.load(made)


@pytest.mark.slurm
def test_ticks_of_the_daemon_reach_the_collector(
    start: Callable[..., Running], file: Path, lab: Lab, collector: Collector
) -> None:
    file.write_text(file.read_text() + f'[traces]\nendpoint = "{collector.url}"\n')
    running = start("--config", str(file), OTEL_BSP_SCHEDULE_DELAY="200")
    lab.wait_for(lambda: "decide and act" in collector.spans(), 120, "a tick's spans")
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(120) == 0
    spans = collector.spans()
    assert counts(spans["tick"])["malletrain.nodes"] == len(lab.nodes)
    commands = [span for span in spans.values() if span.kind == Span.SPAN_KIND_CLIENT]
    assert commands, "the look runs commands of Slurm"
    assert all(span.parent_span_id for span in commands)
