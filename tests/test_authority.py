"""The cloud's own certificate authority: what it issues, and when it renews."""

from __future__ import annotations

import datetime
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from cryptography import x509

from kilonova import authority
from kilonova.authority import OwnCertificate, ensure_certificate

NAMES = ["localhost", "127.0.0.1", "::1", "cloud.example"]


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@contextmanager
def lifetimes(*, authority_days: int, server_days: int) -> Iterator[None]:
    """Issue certificates of which most of the life is over: they were valid for a year before."""
    with (
        patch.object(authority, "CA_DAYS", authority_days),
        patch.object(authority, "SERVER_DAYS", server_days),
        patch.object(authority, "_BACKDATED", datetime.timedelta(days=365)),
    ):
        yield


def test_certificate_has_names_and_is_signed_by_authority(tmp_path: Path) -> None:
    own = ensure_certificate(tmp_path, NAMES)
    certificate, ca = load(own.certificate), load(own.authority)
    certificate.verify_directly_issued_by(ca)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "cloud.example"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["127.0.0.1", "::1"]
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_files_are_private(tmp_path: Path) -> None:
    own = ensure_certificate(tmp_path, NAMES)
    files = list(own.key.parent.iterdir())
    assert len(files) == 4
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(own.key.parent.stat().st_mode) == 0o700


def content(own: OwnCertificate) -> tuple[bytes, bytes]:
    return own.authority.read_bytes(), own.certificate.read_bytes()


def test_valid_certificate_is_kept(tmp_path: Path) -> None:
    first = content(ensure_certificate(tmp_path, NAMES))
    assert content(ensure_certificate(tmp_path, NAMES[:2])) == first


def test_certificate_near_expiry_is_renewed_by_the_same_authority(tmp_path: Path) -> None:
    with lifetimes(authority_days=3650, server_days=30):
        old = content(ensure_certificate(tmp_path, NAMES))
    new = content(ensure_certificate(tmp_path, NAMES))
    assert new[0] == old[0]
    assert new[1] != old[1]
    assert content(ensure_certificate(tmp_path, NAMES)) == new


def test_authority_near_expiry_is_renewed_with_its_certificate(tmp_path: Path) -> None:
    with lifetimes(authority_days=30, server_days=3650):
        old = content(ensure_certificate(tmp_path, NAMES))
    own = ensure_certificate(tmp_path, NAMES)
    assert set(content(own)).isdisjoint(old)
    load(own.certificate).verify_directly_issued_by(load(own.authority))


def test_further_name_needs_a_new_certificate(tmp_path: Path) -> None:
    old = content(ensure_certificate(tmp_path, NAMES))
    new = content(ensure_certificate(tmp_path, [*NAMES, "10.0.0.1"]))
    assert new[0] == old[0]
    assert new[1] != old[1]


@pytest.mark.parametrize("name", ["ca-key.pem", "ca.pem", "server-key.pem", "server.pem"])
def test_missing_or_corrupt_file_is_replaced(tmp_path: Path, name: str) -> None:
    """An interrupted renewal leaves a key without its certificate."""
    own = ensure_certificate(tmp_path, NAMES)
    for other in (b"", b"no certificate", None):
        file = own.key.parent / name
        file.unlink() if other is None else file.write_bytes(other)
        ensure_certificate(tmp_path, NAMES)
        load(own.certificate).verify_directly_issued_by(load(own.authority))
