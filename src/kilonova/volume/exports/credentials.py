"""The certificates by which the daemon proves who it is, and by which it knows the hosts: files of QEMU's names."""

from __future__ import annotations

import ssl
from hashlib import blake2s
from pathlib import Path
from typing import Any, NamedTuple

from kilonova import certificates
from kilonova.certificates import Unusable

# Whose certificates are good, and the daemon's own with its key.
CA, CERTIFICATE, KEY = "ca-cert.pem", "server-cert.pem", "server-key.pem"
_PREFIX = "tls"


class Credentials(NamedTuple):
    """`ident` is another one as soon as a file has changed."""

    directory: Path
    ident: str

    @classmethod
    def read(cls, directory: Path) -> Credentials:
        """Raises Unusable: what is good for us is good for QEMU."""
        try:
            certificates.context(ssl.Purpose.CLIENT_AUTH, directory / CA, directory / CERTIFICATE, directory / KEY)
            content = b"\0".join((directory / name).read_bytes() for name in (CA, CERTIFICATE, KEY))
        except (OSError, Unusable) as error:
            names = f"{CA}, {CERTIFICATE} and {KEY}"
            raise Unusable(f"volume.nbd_tls: {names} in {directory} cannot be used: {error}") from None
        digest = blake2s(str(directory).encode() + b"\0" + content, digest_size=12).hexdigest()
        return cls(directory, f"{_PREFIX}{digest}")

    @property
    def options(self) -> dict[str, Any]:
        """What QEMU is told. Clients without a certificate of the same authority get nothing."""
        return {
            "qom-type": "tls-creds-x509",
            "id": self.ident,
            "dir": str(self.directory),
            "endpoint": "server",
            "verify-peer": True,
        }


def is_ident(name: str) -> bool:
    return name.startswith(_PREFIX)
