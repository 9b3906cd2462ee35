"""Certificates in files: what is of no use is refused in words, and nobody is asked for a password."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from kilonova.certificates import Unusable, context
from tests.support.certificates import Authority


def use(directory: Path) -> ssl.SSLContext:
    files = (directory / name for name in ("ca-cert.pem", "server-cert.pem", "server-key.pem"))
    return context(ssl.Purpose.CLIENT_AUTH, *files)


def test_files_that_belong_together(tmp_path: Path) -> None:
    made = use(Authority().issue(tmp_path, "127.0.0.1"))
    assert made.cert_store_stats()["x509_ca"] == 1


def test_a_key_that_is_encrypted(tmp_path: Path) -> None:
    path = Authority().issue(tmp_path, "127.0.0.1") / "server-key.pem"
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"password")
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with pytest.raises(Unusable, match="encrypted"):
        use(tmp_path)


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    authority = Authority()
    other = authority.issue(tmp_path / "other", "127.0.0.2") / "server-key.pem"
    other.replace(authority.issue(tmp_path, "127.0.0.1") / "server-key.pem")
    with pytest.raises(Unusable):
        use(tmp_path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="No such file"):
        use(tmp_path)
