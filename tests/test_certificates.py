"""Certificate files: unusable ones are refused with a reason, and no password is prompted for."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from kilonova.certificates import ServerCertificate, UnusableCertificate, client_context, tls_context
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


# Certificates of a server


def server_files(directory: Path) -> tuple[Path, Path]:
    files = Authority().issue(directory, "127.0.0.1")
    return files / "server-cert.pem", files / "server-key.pem"


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("server-cert.pem", b"", "tls_cert: {} has no certificate in PEM"),
        ("server-cert.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "tls_cert: {} has no"),
        ("server-key.pem", b"key", "tls_key: {} has no key in PEM"),
        ("server-cert.pem", None, "tls_cert: {} cannot be read: No such file"),
        ("server-key.pem", None, "tls_key: {} cannot be read: No such file"),
    ],
)
def test_unusable_file_is_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    certificate, key = server_files(tmp_path)
    server = ServerCertificate(certificate, key)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UnusableCertificate) as refused:
        server.reload()
    assert str(refused.value).startswith(message.format(tmp_path / name))


def test_key_of_another_server_is_refused_and_named(tmp_path: Path) -> None:
    certificate, key = server_files(tmp_path)
    _, other = server_files(tmp_path / "other")
    with pytest.raises(UnusableCertificate, match=f"tls_key: {other} cannot be used with the certificate"):
        ServerCertificate(certificate, other)
    assert ServerCertificate(certificate, key).context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_certificate_and_key_may_share_a_file(tmp_path: Path) -> None:
    certificate, key = server_files(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    ServerCertificate(both, both)


def test_certificate_near_expiry_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ServerCertificate(*server_files(tmp_path))  # valid for a day
    (record,) = caplog.records
    assert f"the certificate in {tmp_path / 'server-cert.pem'} expires in 1.0 days" in record.getMessage()


def test_server_has_only_ciphers_with_forward_secrecy(tmp_path: Path) -> None:
    ciphers = [cipher["name"] for cipher in ServerCertificate(*server_files(tmp_path)).context.get_ciphers()]
    assert ciphers
    assert all(name.startswith(("TLS_", "ECDHE-")) and "CBC" not in name and "SHA1" not in name for name in ciphers)


@pytest.mark.parametrize("types", [("ec", "rsa"), ("rsa", "ec"), ("ec", "ec")])
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_reload_replaces_certificate_of_any_key_type(
    tmp_path: Path, types: tuple[str, str], newest: ssl.TLSVersion
) -> None:
    """New connections get the new certificate, whether or not the client names the server."""
    authority, files = Authority(), tmp_path / "server"
    first, second = types
    authority.issue(files, "127.0.0.1", first)
    server = ServerCertificate(files / "server-cert.pem", files / "server-key.pem")
    assert shown_certificate(server, newest) == (files / "server-cert.pem").read_bytes()
    authority.issue(files, "127.0.0.1", second)
    server.reload()
    for name in (None, "cloud.example"):
        shown = shown_certificate(server, newest, name)
        assert shown == (files / "server-cert.pem").read_bytes()
        assert isinstance(x509.load_pem_x509_certificate(shown).public_key(), rsa.RSAPublicKey) == (second == "rsa")

    (files / "server-key.pem").write_text("no key")
    with pytest.raises(UnusableCertificate):
        server.reload()
    assert shown_certificate(server, newest) == shown


@pytest.mark.parametrize("first, second, ciphers", [("rsa", "ec", "ECDHE+aRSA"), ("ec", "rsa", "ECDHE+aECDSA")])
def test_client_of_the_former_key_type_does_not_get_the_former_certificate(
    tmp_path: Path, first: str, second: str, ciphers: str
) -> None:
    certificate, key = (tmp_path / name for name in ("server-cert.pem", "server-key.pem"))
    Authority().issue(tmp_path, "127.0.0.1", first)
    server = ServerCertificate(certificate, key)
    assert shown_certificate(server, ssl.TLSVersion.TLSv1_2, ciphers=ciphers) == certificate.read_bytes()
    Authority().issue(tmp_path, "127.0.0.1", second)
    server.reload()
    with pytest.raises(ssl.SSLError, match="NO_SHARED_CIPHER"):
        shown_certificate(server, ssl.TLSVersion.TLSv1_2, ciphers=ciphers)


def shown_certificate(
    server: ServerCertificate, newest: ssl.TLSVersion, name: str | None = None, ciphers: str = "DEFAULT"
) -> bytes:
    """The certificate in PEM that a new connection gets."""
    context = ssl.create_default_context()
    context.set_ciphers(ciphers)
    context.check_hostname, context.verify_mode, context.maximum_version = False, ssl.CERT_NONE, newest
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=name)
    peer = server.context.wrap_bio(to_server, to_client, server_side=True)
    done = 0
    while done < 2:
        done = 0
        for side in (client, peer):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
    return ssl.DER_cert_to_PEM_cert(client.getpeercert(binary_form=True) or b"").encode()


def test_unusable_authority_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(UnusableCertificate, match=f"^volume.ca_file: {tmp_path}/ca.pem cannot be used: "):
        client_context(tmp_path / "ca.pem", "volume.ca_file")
