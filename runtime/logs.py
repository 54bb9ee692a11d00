"""Logs: JSON lines where standard error is not a terminal, coloured text where it is; secrets are never logged."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

_SECRET = ("password", "secret", "card_token", "authorization", "dsn", "database_url")


def set_up_logging(level: str) -> None:
    """Send structlog's and the standard library's records through one chain to standard error."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _redact,
    ]
    terminal = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    tail: list[Any] = [structlog.processors.format_exc_info, renderer] if not terminal else [renderer]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tail],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "uvicorn.access", "psycopg.pool"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _redact(_logger: Any, _name: str, event: Any) -> Any:
    for key in event:
        if any(secret in key.lower() for secret in _SECRET):
            event[key] = "[redacted]"
    return event
