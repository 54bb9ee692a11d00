"""Text from outside: PostgreSQL stores neither NUL nor half a surrogate pair, so neither may reach a statement."""

from __future__ import annotations

from typing import Any


def clean(text: str) -> str:
    """The text without NUL, and with unpaired surrogates replaced."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def clean_json(value: Any) -> Any:
    """A JSON value with every text in it, keys included, cleaned."""
    match value:
        case str():
            return clean(value)
        case dict():
            return {clean(k): clean_json(v) for k, v in value.items()}
        case list():
            return [clean_json(v) for v in value]
    return value


def place(host: str, port: int | str) -> str:
    """Where something listens, as it stands in an address: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
