"""What a service asks of its callers: secrets and certificates, by name, from the environment or from files.

A file is read again when it has changed, so that what rotates needs no restart. What is read from one is known to
`domain.redaction` from then on, as the settings are.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import httpx
from pydantic import SecretStr

from domain.faults import NoCredential
from domain.redaction import know, secrets_of

_CA, _CERTIFICATE, _CERTIFICATE_KEY = "ca", "certificate", "certificate_key"
_TLS = (_CA, _CERTIFICATE, _CERTIFICATE_KEY)

Stamp = tuple[int, int, int]
"""Of a file; another than before means that it has changed."""


@cache
def _system_trust() -> ssl.SSLContext:
    """The system's authorities: one context for all services, as to read them blocks all else for a while."""
    return httpx.create_ssl_context()


class Credentials:
    """The credentials for one service.

    Args:
        service: Its name. given: The values by name; that of `{name}_file` is the path of the file that holds it.
    """

    def __init__(self, service: str, given: Mapping[str, SecretStr]) -> None:
        self._service, self._given = service, given
        self._read: dict[str, tuple[Stamp, str]] = {}

    def __getitem__(self, name: str) -> str:
        """The credential of that name, as it is now.

        Raises:
            NoCredential: It is not set, or its file can't be read; names the setting.
        """
        if (file := self._file(name)) is not None:
            return self._content(name, file)
        if (value := self._given.get(name)) is None:
            raise NoCredential(f"{self._setting(name)} is not set, nor is {self._setting(name)}_FILE")
        return value.get_secret_value()

    def missing(self, names: Iterable[str]) -> Iterator[str]:
        """What is wrong with those of these, and with those of TLS, that can't be used."""
        for name in names:
            try:
                self[name]
            except NoCredential as fault:
                yield str(fault)
        try:
            self.tls()
        except NoCredential as fault:
            yield str(fault)

    def tls(self) -> ssl.SSLContext:
        """Whom to trust, and who we are: the system's authorities or a private one, and our certificate if we have one.

        Raises:
            NoCredential: A file can't be used; names the setting.
        """
        if not any(self._file(name) for name in _TLS):
            return _system_trust()
        with self._reading(_CA):
            authority = self._file(_CA)
            context = ssl.create_default_context(cafile=authority) if authority else httpx.create_ssl_context()
        if (certificate := self._file(_CERTIFICATE)) is not None:
            with self._reading(_CERTIFICATE):
                context.load_cert_chain(certificate, self._file(_CERTIFICATE_KEY))
        return context

    def tls_stamps(self) -> tuple[Stamp, ...]:
        """The stamps of the files of TLS that there are."""
        return tuple(self._stamp(name, file) for name in _TLS if (file := self._file(name)) is not None)

    def _file(self, name: str) -> Path | None:
        path = self._given.get(f"{name}_file")
        return Path(path.get_secret_value()) if path is not None else None

    def _content(self, name: str, file: Path) -> str:
        stamp = self._stamp(name, file)
        if name not in self._read or self._read[name][0] != stamp:
            with self._reading(name):
                value = file.read_text(encoding="utf-8").strip()
            know(secrets_of(name, value))
            self._read[name] = stamp, value
        return self._read[name][1]

    def _stamp(self, name: str, file: Path) -> Stamp:
        with self._reading(name):
            found = file.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # of TLS too: an SSLError is an OSError
            raise NoCredential(f"{self._setting(name)}_FILE can't be used: {type(error).__name__}") from error

    def _setting(self, name: str) -> str:
        return f"SAS_ACCESS__{self._service.upper()}__{name.upper()}"
