"""A certificate authority for tests. Files have the names that QEMU and libvirt expect."""

from __future__ import annotations

import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIBVIRT_NAMES = {"ca-cert.pem": "cacert.pem", "client-cert.pem": "clientcert.pem", "client-key.pem": "clientkey.pem"}
_DAY = datetime.timedelta(days=1)
_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Authority:
    """Issues certificates for hosts."""

    def __init__(self, name: str = "authority") -> None:
        self._name = _common_name(name)
        self._key = _new_key()
        self._certificate = self._sign(self._name, self._key, [], is_ca=True)

    def issue(self, directory: Path, address: str, key_type: str = "ec") -> Path:
        """Write the CA and a certificate for the address, as server and client, into the directory.

        `key_type` is "ec" or "rsa".
        """
        key: _Key = rsa.generate_private_key(65537, 2048) if key_type == "rsa" else _new_key()
        certificate = self._sign(_common_name(address), key, [address])
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "ca-cert.pem").write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        for side in ("server", "client"):
            (directory / f"{side}-cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
            (directory / f"{side}-key.pem").write_bytes(secret)
        for name, libvirt_name in _LIBVIRT_NAMES.items():
            if not (directory / libvirt_name).exists():
                (directory / libvirt_name).symlink_to(name)
        return directory

    def _sign(self, name: x509.Name, key: _Key, addresses: list[str], *, is_ca: bool = False) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        usage = x509.KeyUsage(
            digital_signature=not is_ca,
            content_commitment=False,
            key_encipherment=not is_ca,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=is_ca,
            crl_sign=is_ca,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(usage, critical=True)
        )
        if not is_ca:
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            alternative_names = [x509.IPAddress(ip_address(address)) for address in addresses]
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
