"""The log: JSON for machines, text for people, priorities for journald; libraries in the same shape."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from malletrain.daemon.process import log


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The loggers are the process's own: put them back, or later tests see the daemon's levels."""
    loggers = [logging.getLogger(name) for name in ("", "uvicorn.error", "uvicorn.access", "apscheduler")]
    before = [(each.handlers[:], each.filters[:], each.level) for each in loggers]
    yield
    for each, (handlers, filters, level) in zip(loggers, before, strict=True):
        each.handlers[:] = handlers
        each.filters[:] = filters
        each.setLevel(level)


def test_json_off_a_terminal() -> None:
    stream = io.StringIO()
    log.configure(level="info", environ={}, stream=stream).info("serving", url="http://h:1")
    line = json.loads(stream.getvalue())
    assert (line["event"], line["url"], line["level"], line["logger"]) == (
        "serving",
        "http://h:1",
        "info",
        "malletraind",
    )


def test_lines_of_libraries_have_the_same_shape_and_their_extras() -> None:
    stream = io.StringIO()
    log.configure(level="info", environ={}, stream=stream)
    logging.getLogger("malletrain.api").warning("slow: %s", "x", extra={"status": 200, "color_message": "\x1b[36m"})
    line = json.loads(stream.getvalue())
    assert (line["event"], line["status"], line["level"]) == ("slow: x", 200, "warning")
    assert "color_message" not in line


def test_an_exception_is_one_line_of_json() -> None:
    stream = io.StringIO()
    logger = log.configure(level="info", environ={}, stream=stream)
    try:
        int("x")
    except ValueError:
        logger.exception("failed")
    assert stream.getvalue().count("\n") == 1
    assert "ValueError: invalid literal" in json.loads(stream.getvalue())["exception"]


def test_journald_is_told_the_priority() -> None:
    stream = io.StringIO()
    logger = log.configure(level="debug", environ={"JOURNAL_STREAM": "8:1"}, stream=stream)
    logger.debug("a")
    logger.error("b")
    lines = stream.getvalue().splitlines()
    assert [line[:3] for line in lines] == ["<7>", "<3>"]
    assert json.loads(lines[1][3:])["event"] == "b"


def test_levels_below_the_configured_one_are_left_out_and_settings_are_replaced() -> None:
    first, second = io.StringIO(), io.StringIO()
    log.configure(level="info", environ={}, stream=first)
    logger = log.configure(level="error", environ={}, stream=second)
    logger.warning("quiet")
    logger.error("loud", n=1)
    assert first.getvalue() == ""
    assert "quiet" not in second.getvalue()
    assert "loud" in second.getvalue()
    assert "\x1b" not in second.getvalue()


def test_requests_that_the_end_of_the_server_cuts_off_are_no_errors() -> None:
    stream = io.StringIO()
    log.configure(level="info", environ={}, stream=stream)
    uvicorn = logging.getLogger("uvicorn.error")
    for error in (asyncio.CancelledError("cut off"), RuntimeError("a bug")):
        uvicorn.error("Exception in ASGI application\n", exc_info=error)
    uvicorn.error("Cancel %s running task(s), timeout graceful shutdown exceeded", 3)
    (line,) = stream.getvalue().splitlines()
    assert "a bug" in line
