"""Certificate files: unusable ones are refused with a reason, and no password is prompted for."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from kilonova.certificates import UnusableCertificate, tls_context
from tests.support.certificates import Authority


def load(directory: Path) -> ssl.SSLContext:
    files = (directory / name for name in ("ca-cert.pem", "server-cert.pem", "server-key.pem"))
    return tls_context(ssl.Purpose.CLIENT_AUTH, *files)


def test_matching_files_are_loaded(tmp_path: Path) -> None:
    context = load(Authority().issue(tmp_path, "127.0.0.1"))
    assert context.cert_store_stats()["x509_ca"] == 1


def test_encrypted_key_is_refused(tmp_path: Path) -> None:
    path = Authority().issue(tmp_path, "127.0.0.1") / "server-key.pem"
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"password")
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    with pytest.raises(UnusableCertificate, match="encrypted"):
        load(tmp_path)


def test_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    authority = Authority()
    other = authority.issue(tmp_path / "other", "127.0.0.2") / "server-key.pem"
    other.replace(authority.issue(tmp_path, "127.0.0.1") / "server-key.pem")
    with pytest.raises(UnusableCertificate):
        load(tmp_path)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableCertificate, match="No such file"):
        load(tmp_path)
