"""The cloud's own certificate authority, for `kilonova up --tls`: its certificate, and that of the server.

Clients trust the authority by `cacert` in `clouds.yaml`. A certificate is replaced at a start when it is about to
expire or lacks a name.
"""

from __future__ import annotations

import datetime
import fcntl
import ipaddress
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kilonova import datadir

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

DIRECTORY = "tls"
CA, CA_KEY, CERTIFICATE, KEY = "ca.pem", "ca-key.pem", "server.pem", "server-key.pem"
CA_DAYS, SERVER_DAYS = 3650, 397
# A certificate is replaced when less than this part of its life is left.
RENEWAL_PART = 0.25
# Clocks of clients may be a little late.
_BACKDATED = datetime.timedelta(hours=1)


class OwnCertificate(NamedTuple):
    """The files of the authority's certificate, the server's certificate, and the server's key."""

    authority: Path
    certificate: Path
    key: Path


def ensure_certificate(data_dir: Path, names: Sequence[str]) -> OwnCertificate:
    """Create or renew the authority and a server certificate for these names and addresses. Raises OSError."""
    directory = data_dir / DIRECTORY
    directory.mkdir(mode=0o700, exist_ok=True)
    files = OwnCertificate(directory / CA, directory / CERTIFICATE, directory / KEY)
    with _locked(directory):
        authority = _load(directory / CA, directory / CA_KEY)
        if authority is None or _is_near_expiry(authority[0]):
            authority = _create_authority(directory)
        server = _load(files.certificate, files.key)
        if server is None or _is_near_expiry(server[0]) or not _is_valid(server[0], authority[0], names):
            _create_certificate(files, authority, names)
    return files


def _load(certificate: Path, key: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """The pair in these files; None if they are missing or unusable, also after an interrupted renewal."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
        secret = load_pem_private_key(key.read_bytes(), None)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    if not isinstance(secret, ec.EllipticCurvePrivateKey) or secret.public_key() != loaded.public_key():
        return None
    return loaded, secret


def _is_near_expiry(certificate: x509.Certificate) -> bool:
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return datetime.datetime.now(datetime.UTC) > certificate.not_valid_after_utc - life * RENEWAL_PART


def _is_valid(certificate: x509.Certificate, authority: x509.Certificate, names: Sequence[str]) -> bool:
    """Whether the authority has signed the certificate, and it has all the names."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (InvalidSignature, ValueError, x509.ExtensionNotFound):
        return False
    return all(_alternative_name(name) in found for name in names)


def _create_authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    # The random name distinguishes authorities of several clouds, and a renewed one from its predecessor.
    certificate = _sign(f"Kilonova {os.urandom(4).hex()}", key, None, CA_DAYS, [])
    _write_pair(directory / CA, directory / CA_KEY, certificate, key)
    return certificate, key


def _create_certificate(
    files: OwnCertificate, authority: tuple[x509.Certificate, ec.EllipticCurvePrivateKey], names: Sequence[str]
) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    _write_pair(files.certificate, files.key, _sign("kilonova", key, authority, SERVER_DAYS, names), key)


def _sign(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
    days: int,
    names: Sequence[str],
) -> x509.Certificate:
    """A certificate for the key. Without `authority` it is an authority itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signer = (subject, key) if authority is None else (authority[0].subject, authority[1])
    is_ca = authority is None
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
    )
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, decipher_only=False, **usage
            ),
            critical=True,
        )
    )
    if not is_ca:
        alternative_names = [_alternative_name(name) for name in names]
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _alternative_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name.encode("idna").decode())


def _write_pair(
    certificate_file: Path, key_file: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    datadir.replace_file(key_file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    datadir.replace_file(certificate_file, certificate.public_bytes(Encoding.PEM))


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Processes of one cloud may share the directory."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
