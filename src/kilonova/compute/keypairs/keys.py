"""Keys of key pairs: validation, fingerprints and generation of SSH public keys and X.509 certificates."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import NamedTuple

from kilonova.http.errors import BadRequest

_KINDS = frozenset(
    {
        "ssh-rsa",
        "ssh-dss",
        "ssh-ed25519",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    }
)
_BITS = 2048
_LIFETIME_DAYS = 3650


class Pair(NamedTuple):
    public: str
    private: str


def fingerprint(kind: str, public: str) -> str:
    """Raises BadRequest if `public` is not a valid key of this kind."""
    return ssh_fingerprint(public) if kind == "ssh" else x509_fingerprint(public)


def ssh_fingerprint(public: str) -> str:
    """MD5 of the decoded key, the format of OpenStack clients."""
    parts = public.split(None, 2)
    if len(parts) < 2 or parts[0] not in _KINDS:
        raise _invalid("it does not begin with a known SSH key type")
    try:
        blob = base64.b64decode(parts[1], validate=True)
    except (binascii.Error, ValueError):
        raise _invalid("its second word is not base64") from None
    fields = _fields(blob)
    if len(fields) < 2 or fields[0] != parts[0].encode():
        raise _invalid(f"its content does not match the type {parts[0]}")
    return _colons(hashlib.md5(blob, usedforsecurity=False).digest())


def x509_fingerprint(public: str) -> str:
    """SHA-1 of the certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    try:
        certificate = x509.load_pem_x509_certificate(public.encode())
    except ValueError:
        raise _invalid("it is not a PEM certificate") from None
    return _colons(certificate.fingerprint(hashes.SHA1()))


def generate(kind: str, user_id: str) -> Pair:
    """Takes about 0.1 seconds of CPU time: call it in a thread."""
    return _generate_ssh() if kind == "ssh" else _generate_x509(user_id)


def _generate_ssh() -> Pair:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import rsa

    # RSA, because clients that need a generated key are old.
    key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.TraditionalOpenSSL, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return Pair(f"{public.decode()} Generated-by-Kilonova\n", private.decode())


def _generate_x509(user_id: str) -> Pair:
    """A self-signed certificate for logins to Windows, with the user as principal name."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

    key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _first_bytes(user_id, 64).decode())])
    # A UTF8String with a one-byte length.
    principal = _first_bytes(f"{user_id}@localhost", 127)
    upn = x509.OtherName(ObjectIdentifier("1.3.6.1.4.1.311.20.2.3"), bytes([0x0C, len(principal)]) + principal)
    begin = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=_LIFETIME_DAYS))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([upn]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return Pair(certificate.public_bytes(form.Encoding.PEM).decode(), private.decode())


def _first_bytes(text: str, limit: int) -> bytes:
    """Truncate to `limit` bytes at a character boundary."""
    return text.encode()[:limit].decode(errors="ignore").encode()


def _fields(blob: bytes) -> list[bytes]:
    """The length-prefixed fields of an SSH key; empty if it is malformed."""
    fields, at = [], 0
    while at + 4 <= len(blob):
        size = int.from_bytes(blob[at : at + 4], "big")
        at += 4 + size
        if at > len(blob):
            return []
        fields.append(blob[at - size : at])
    return fields if at == len(blob) else []


def _colons(digest: bytes) -> str:
    return digest.hex(":")


def _invalid(why: str) -> BadRequest:
    return BadRequest(f"Keypair data is invalid: failed to generate fingerprint ({why}).")
