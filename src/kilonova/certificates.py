"""Certificates in files, by which processes prove who they are and know each other."""

from __future__ import annotations

import ssl
from pathlib import Path


class Unusable(Exception):
    """They are not there, cannot be read, or do not belong together."""


def context(
    purpose: ssl.Purpose, authority: str | Path | None, certificate: str | Path | None, key: str | Path | None
) -> ssl.SSLContext:
    """`purpose` is whom one speaks to. Without an authority those of the system count. Raises Unusable."""
    try:
        made = ssl.create_default_context(purpose, cafile=authority or None)
        if certificate:
            made.load_cert_chain(certificate, key or None, password=_nobody_knows)
    except (OSError, ValueError) as error:
        raise Unusable(str(error)) from None
    return made


def _nobody_knows() -> str:
    """Else one would be asked at the terminal."""
    raise ValueError("the key is encrypted")
