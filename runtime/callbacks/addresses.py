"""Signed addresses under which services answer later.

An address depends on the idempotency key only, so any attempt of the task can take the answer.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import quote

from domain.faults import UsageError
from runtime.settings import LEAST_SECRET, Settings


class CallbackAddresses:
    """Addresses by idempotency key. Each carries a signature, and the id of the secret that made it.

    Args:
        base_url: Where services reach the endpoint.
        secret: Signs. previous: Signed before it, and still counts; empty if there is none.
    """

    def __init__(self, base_url: str, secret: str, previous: str = "") -> None:
        self._base_url, self._secrets = base_url.rstrip("/"), [s.encode() for s in (secret, previous) if s]

    def address(self, key: str) -> str:
        """Where a service answers a key."""
        return f"{self._base_url}/callbacks/{_sign(self._secrets[0], key)}/{quote(key, safe='')}"

    def is_signed(self, key: str, signature: str) -> bool:
        """Whether the signature is that of the key, by one of the secrets."""
        return any(hmac.compare_digest(_sign(s, key).encode(), signature.encode()) for s in self._secrets)


def callback_addresses(settings: Settings) -> CallbackAddresses:
    """Signed addresses for services that answer later.

    Raises:
        UsageError: A secret is too short to keep forgers out.
    """
    for name in settings.short_secrets():
        raise UsageError(f"{name} has fewer than {LEAST_SECRET} characters: `openssl rand -hex 32` makes one")
    secrets = (settings.callback_secret, settings.callback_secret_previous)
    return CallbackAddresses(settings.callback_url, *(s.get_secret_value() for s in secrets))


def _sign(secret: bytes, key: str) -> str:
    return f"{_digest(secret, 'key id', 8)}-{_digest(secret, key, 32)}"


def _digest(secret: bytes, text: str, length: int) -> str:
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()[:length]
