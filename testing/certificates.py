"""A private authority, and certificates of it: for services that are reached over TLS in tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate and of its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a folder. `certificate`: what a client trusts."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._authority = folder, trustme.CA()
        self.certificate = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(str(self.certificate))

    def issue(self, name: str, *addresses: str) -> Certificate:
        """A certificate for `localhost`, 127.0.0.1 and further addresses, of that common name; each time another."""
        issued = self._authority.issue_cert("localhost", "127.0.0.1", *addresses, common_name=name)
        found = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(str(found.certificate))
        issued.private_key_pem.write_to_path(str(found.key))
        return found
