"""TLS contexts from certificate files."""

from __future__ import annotations

import logging
import os
import ssl
import time
from pathlib import Path

log = logging.getLogger(__name__)

# Forward secrecy and authenticated encryption only. TLS 1.3 has its own ciphers, which are all sane.
SERVER_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
EXPIRY_WARNING_SECONDS = 14 * 86400.0


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


def client_context(authority: str | Path | None, setting: str = "") -> ssl.SSLContext:
    """Verify servers by this authority, or by the system's. Raises UnusableCertificate, which names the setting."""
    try:
        return tls_context(ssl.Purpose.SERVER_AUTH, authority, None, None)
    except UnusableCertificate as error:
        raise UnusableCertificate(f"{setting}: {authority} cannot be used: {error}") from None


class ServerCertificate:
    """The certificate of the public API. Its `context` uses new files for new connections after `reload`."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Both may be the same file. Raises UnusableCertificate."""
        self.certificate = certificate
        self.key = key
        self._loaded = self._load()
        # OpenSSL keeps one certificate per type of key in a context. So this context has none, and each load has a
        # context of its own: an RSA certificate would be served beside the EC certificate that it replaces.
        self.context = _server_context()
        self.context.sni_callback = self._choose_certificate

    def reload(self) -> None:
        """Read the files again. If they cannot be used, raise UnusableCertificate and keep the old ones."""
        self._loaded = self._load()

    def _choose_certificate(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL calls this for each new connection, even if the client does not name the server."""
        connection.context = self._loaded

    def _load(self) -> ssl.SSLContext:
        certificate, key = _read("tls_cert", self.certificate), _read("tls_key", self.key)
        _check_certificate(self.certificate, certificate)
        _check_key(self.key, key)
        context = _server_context()
        # The context loads the bytes that were checked, even if somebody replaces the files in the meantime.
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, certificate + b"\n" + key)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        except ssl.SSLError as error:
            raise UnusableCertificate(
                f"tls_key: {self.key} cannot be used with the certificate in {self.certificate}: {error}"
            ) from None
        finally:
            os.close(descriptor)
        return context


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnusableCertificate(f"{setting}: {path} cannot be read: {error.strerror}") from None


def _check_certificate(path: Path, content: bytes) -> None:
    from cryptography.x509 import load_pem_x509_certificates

    try:
        certificates = load_pem_x509_certificates(content)
    except ValueError as error:
        raise UnusableCertificate(f"tls_cert: {path} has no certificate in PEM: {error}") from None
    if (expires_at := certificates[0].not_valid_after_utc.timestamp()) < time.time() + EXPIRY_WARNING_SECONDS:
        days = (expires_at - time.time()) / 86400
        log.warning("tls_cert: the certificate in %s expires in %.1f days", path, days)


def _check_key(path: Path, content: bytes) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        load_pem_private_key(content, None)
    except TypeError:
        raise UnusableCertificate(f"tls_key: the key in {path} is encrypted") from None
    except ValueError as error:
        raise UnusableCertificate(f"tls_key: {path} has no key in PEM: {error}") from None


def _server_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(SERVER_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _refuse_passphrase() -> str:
    """Without this callback OpenSSL would prompt on the terminal."""
    raise ValueError("the key is encrypted")
