"""A private authority, and certificates of it: for services that are reached over TLS in tests."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate and of its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a folder; `openssl` does the work."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = self._request("authority", "-x509", "-days", "2", "-subj", "/CN=A private authority")

    @property
    def certificate(self) -> Path:
        """What a client trusts."""
        return self._own.certificate

    def issue(self, name: str) -> Certificate:
        """A certificate for `localhost` of that common name; issued again, it is another one."""
        signed = ("-CA", str(self._own.certificate), "-CAkey", str(self._own.key))
        more = ("-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
        return self._request(name, "-x509", *signed, *more)

    def _request(self, name: str, *options: str) -> Certificate:
        found = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(found.key))
        command = ["openssl", "req", *key, "-out", str(found.certificate), *options]
        subprocess.run(command, check=True, capture_output=True)
        return found
