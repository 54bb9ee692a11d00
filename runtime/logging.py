"""Logs: JSON lines where standard error is not a terminal, coloured text where it is; secrets are never logged."""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType
from typing import Any

import structlog

from domain.redaction import HIDDEN, is_secret, redact

log = structlog.get_logger(__name__)


def set_up_logging(level: str) -> None:
    """Send structlog's and the standard library's records through one chain to standard error."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _hide,
    ]
    terminal = sys.stderr.isatty()
    plain = structlog.dev.plain_traceback  # not the one that shows local variables
    renderer = (
        structlog.dev.ConsoleRenderer(exception_formatter=plain) if terminal else structlog.processors.JSONRenderer()
    )
    tail: list[Any] = [structlog.processors.format_exc_info, renderer] if not terminal else [renderer]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Formatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tail],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "uvicorn.access", "psycopg.pool"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda args: _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """Redacts the line as it is written, whatever is in it: exceptions, tracebacks, other libraries' words."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _hide(_logger: Any, _name: str, event: Any) -> Any:
    """Hide what is secret by its name, at any depth."""
    match event:
        case dict():
            return {k: HIDDEN if is_secret(str(k)) else _hide(None, "", v) for k, v in event.items()}
        case list():
            return [_hide(None, "", v) for v in event]
        case tuple():
            return tuple(_hide(None, "", v) for v in event)
    return event


def _log_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if error is not None and not issubclass(kind, KeyboardInterrupt):
        log.critical("uncaught", exc_info=(kind, error, trace))
