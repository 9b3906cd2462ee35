"""TLS contexts from certificate files."""

from __future__ import annotations

import ssl
from pathlib import Path


class UnusableCertificate(Exception):
    """A certificate file is missing, unreadable, or does not match its key."""


def tls_context(
    purpose: ssl.Purpose, authority: str | Path | None, certificate: str | Path | None, key: str | Path | None
) -> ssl.SSLContext:
    """`purpose` names the peer. Without `authority` the system's CAs are trusted. Raises UnusableCertificate."""
    try:
        context = ssl.create_default_context(purpose, cafile=authority or None)
        if certificate:
            context.load_cert_chain(certificate, key or None, password=_refuse_passphrase)
    except (OSError, ValueError) as error:
        raise UnusableCertificate(str(error)) from None
    return context


def _refuse_passphrase() -> str:
    """Without this callback OpenSSL would prompt on the terminal."""
    raise ValueError("the key is encrypted")
