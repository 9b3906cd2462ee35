"""TLS certificates of the NBD server. The files have the names that QEMU expects."""

from __future__ import annotations

import ssl
from hashlib import blake2s
from pathlib import Path
from typing import Any, NamedTuple

from kilonova import certificates
from kilonova.certificates import UnusableCertificate

# The certificate authority of clients, and the server's certificate with its key.
CA, CERTIFICATE, KEY = "ca-cert.pem", "server-cert.pem", "server-key.pem"
_PREFIX = "tls"


class Credentials(NamedTuple):
    """`ident` changes when a file changes."""

    directory: Path
    ident: str

    @classmethod
    def read(cls, directory: Path) -> Credentials:
        """Read and check the files with OpenSSL. Raises UnusableCertificate."""
        try:
            certificates.tls_context(ssl.Purpose.CLIENT_AUTH, directory / CA, directory / CERTIFICATE, directory / KEY)
            content = b"\0".join((directory / name).read_bytes() for name in (CA, CERTIFICATE, KEY))
        except (OSError, UnusableCertificate) as error:
            names = f"{CA}, {CERTIFICATE} and {KEY}"
            raise UnusableCertificate(f"volume.nbd_tls: {names} in {directory} cannot be used: {error}") from None
        digest = blake2s(str(directory).encode() + b"\0" + content, digest_size=12).hexdigest()
        return cls(directory, f"{_PREFIX}{digest}")

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of QEMU's object. Clients need a certificate of the same authority."""
        return {
            "qom-type": "tls-creds-x509",
            "id": self.ident,
            "dir": str(self.directory),
            "endpoint": "server",
            "verify-peer": True,
        }


def is_ident(name: str) -> bool:
    return name.startswith(_PREFIX)
