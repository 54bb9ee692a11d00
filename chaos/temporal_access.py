"""Who may reach a Temporal cluster, by Temporal's own settings: TLS with client certificates, and signed API keys."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256

from testing.certificates import Authority

_NAME = "localhost"
_KEY_ID = "chaos"
_HOURS = 24


class Access:
    """A certificate authority, one certificate for the members and one for clients, and a key that signs API keys.

    Args:
        folder: Takes all of it, as files. addresses: Further ones of the members.
    """

    def __init__(self, folder: Path, *addresses: str) -> None:
        self._keys = folder / "keys.json"
        authority = Authority(folder)
        self._ca, self._member = str(authority.certificate), authority.issue("member", *addresses)
        self._client = authority.issue("client")
        self._signer = generate_private_key(public_exponent=65537, key_size=2048)
        numbers = self._signer.public_key().public_numbers()
        public = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": _KEY_ID}
        public |= {
            name: _encoded(n.to_bytes((n.bit_length() + 7) // 8)) for name, n in (("n", numbers.n), ("e", numbers.e))
        }
        self._keys.write_text(json.dumps({"keys": [public]}))

    @property
    def of_member(self) -> Mapping[str, str]:
        """Variables of the server's own configuration."""
        return {
            "TEMPORAL_TLS_REQUIRE_CLIENT_AUTH": "true",
            "TEMPORAL_TLS_SERVER_CA_CERT": self._ca,
            "TEMPORAL_TLS_SERVER_CERT": str(self._member.certificate),
            "TEMPORAL_TLS_SERVER_KEY": str(self._member.key),
            "TEMPORAL_TLS_INTERNODE_SERVER_NAME": _NAME,
            "TEMPORAL_TLS_FRONTEND_CERT": str(self._member.certificate),
            "TEMPORAL_TLS_FRONTEND_KEY": str(self._member.key),
            "TEMPORAL_TLS_FRONTEND_SERVER_NAME": _NAME,
            "TEMPORAL_TLS_CLIENT1_CA_CERT": self._ca,
            "TEMPORAL_TLS_CLIENT2_CA_CERT": self._ca,
            "TEMPORAL_JWT_KEY_SOURCE1": f"file://{self._keys}",
            "TEMPORAL_AUTH_AUTHORIZER": "default",
            "TEMPORAL_AUTH_CLAIM_MAPPER": "default",
            "USE_INTERNAL_FRONTEND": "true",  # the cluster's own workers have no API key
        }

    def of_client(self, *permissions: str) -> Mapping[str, str]:
        """Variables of a client with these permissions, each as `namespace:role`."""
        return {
            "TEMPORAL_TLS": "true",
            "TEMPORAL_TLS_SERVER_CA_CERT_PATH": self._ca,
            "TEMPORAL_TLS_CLIENT_CERT_PATH": str(self._client.certificate),
            "TEMPORAL_TLS_CLIENT_KEY_PATH": str(self._client.key),
            "TEMPORAL_TLS_SERVER_NAME": _NAME,
            "TEMPORAL_API_KEY": self._signed(
                {"sub": "sas", "permissions": permissions, "exp": int(time.time()) + _HOURS * 3600}
            ),
        }

    def _signed(self, claims: Mapping[str, object]) -> str:
        head = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        text = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
        return f"{text}.{_encoded(self._signer.sign(text.encode(), PKCS1v15(), SHA256()))}"


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
