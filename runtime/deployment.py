"""Which deployment a process belongs to, told without telling any secret."""

from __future__ import annotations

import hashlib
import hmac

from runtime.settings import Settings
from store.connection import place_of


def deployment_of(settings: Settings) -> str:
    """The same for all who share a state store and the secret of the callbacks, and for nobody else."""
    secret, store = settings.callback_secret.get_secret_value(), place_of(settings.database_url.get_secret_value())
    return hmac.new(secret.encode(), f"deployment {store}".encode(), hashlib.sha256).hexdigest()[:32]
