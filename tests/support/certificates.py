"""A small authority for tests, and certificates of it under the names that QEMU and libvirt look for."""

from __future__ import annotations

import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_NAMES = {"ca-cert.pem": "cacert.pem", "client-cert.pem": "clientcert.pem", "client-key.pem": "clientkey.pem"}
_DAY = datetime.timedelta(days=1)


class Authority:
    def __init__(self, name: str = "authority") -> None:
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._own = self._signed(self._name, self._key, [], is_ca=True)

    def issue(self, directory: Path, address: str) -> Path:
        """The directory with the authority and a certificate for who has the address, as a server and as a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._signed(_named(address), key, [address])
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "ca-cert.pem").write_bytes(self._own.public_bytes(serialization.Encoding.PEM))
        for side in ("server", "client"):
            (directory / f"{side}-cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
            (directory / f"{side}-key.pem").write_bytes(secret)
        for name, of_libvirt in _NAMES.items():
            if not (directory / of_libvirt).exists():
                (directory / of_libvirt).symlink_to(name)
        return directory

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, addresses: list[str], *, is_ca: bool = False
    ) -> x509.Certificate:
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
            both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            where = [x509.IPAddress(ip_address(one)) for one in addresses]
            builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
            builder = builder.add_extension(x509.SubjectAlternativeName(where), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
