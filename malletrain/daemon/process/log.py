"""The daemon's log: structlog on stderr, as text for people or JSON for machines; journald takes it from there."""

import asyncio
import logging
import sys
from collections.abc import Mapping
from typing import TextIO

import structlog

#: Syslog's number of each level.
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}

_JSON = structlog.processors.JSONRenderer(default=str)


def configure(
    *, level: str, environ: Mapping[str, str], stream: TextIO | None = None
) -> structlog.stdlib.BoundLogger:
    """Set up structlog and the standard library's logging (uvicorn, APScheduler) alike; returns the daemon's logger.

    Text for people on a terminal, JSON elsewhere. Repeated calls replace what was set before."""
    stream = stream or sys.stderr
    console = stream.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    renderers: list[structlog.typing.Processor]
    handler = logging.StreamHandler(stream)
    if console:
        renderers = [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    else:
        json = _with_priority if environ.get("JOURNAL_STREAM") else _JSON
        renderers = [structlog.processors.format_exc_info, json]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(), _without_colors],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # A long poll that the end of the server cut off is no fault.
    logging.getLogger("uvicorn.error").addFilter(_is_no_goodbye)
    # One line a request is too much; what becomes of timers' runs the daemon logs itself.
    logging.getLogger("uvicorn.access").setLevel(logging.INFO if level == "debug" else logging.WARNING)
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)
    logger: structlog.stdlib.BoundLogger = structlog.get_logger("malletraind")
    return logger


def _is_no_goodbye(record: logging.LogRecord) -> bool:
    """Whether a record of uvicorn's is about more than requests in progress that its end cuts off."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.CancelledError) and "timeout graceful shutdown exceeded" not in record.msg


def _without_colors(
    _logger: structlog.typing.WrappedLogger, _name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """uvicorn gives each message a second time, coloured."""
    event.pop("color_message", None)
    return event


def _with_priority(logger: structlog.typing.WrappedLogger, name: str, event: structlog.typing.EventDict) -> str:
    """JSON with journald's priority in front, which it takes off again (sd-daemon(3), SyslogLevelPrefix=)."""
    return f"<{_PRIORITIES.get(str(event.get('level')), 6)}>{_JSON(logger, name, event)!s}"
