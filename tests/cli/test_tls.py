"""Processes with TLS: certificates, reloads on SIGHUP, and clients that verify the cloud."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.certificates import Authority
from tests.support.cloud_process import CloudProcess, kilonova

ADDRESS = "127.0.0.1"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    """A cloud with its own authority."""
    with CloudProcess(tmp_path_factory.mktemp("tls") / "data", "--tls", "--placement-port", "0") as cloud:
        yield cloud


def port_of(cloud: CloudProcess, service: str = "compute") -> int:
    return urlsplit(cloud.endpoints[service]).port or 0


def shown_certificate(cloud: CloudProcess, service: str = "compute") -> bytes:
    """The certificate that a new connection gets."""
    with socket.create_connection((ADDRESS, port_of(cloud, service)), 60) as plain:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(plain) as encrypted:
            return encrypted.getpeercert(binary_form=True) or b""


def list_flavors(clouds: Path) -> subprocess.CompletedProcess[str]:
    """Run the stock client as users do, without any other setting."""
    program = Path(sys.executable).with_name("openstack")
    environ = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(clouds), "OS_CLOUD": "kilonova-demo"}
    command = [program, "flavor", "list"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=300)


# The cloud's own authority


def test_urls_and_cacert_are_written(cloud: CloudProcess) -> None:
    authority = str(cloud.data / "tls/ca.pem")
    urls = {name: url for name, url in cloud.endpoints.items() if name != "cacert"}
    assert len(urls) == 9
    assert all(url.startswith(f"https://{ADDRESS}:") for url in urls.values())
    assert cloud.endpoints["cacert"] == authority
    assert {shown["cacert"] for shown in cloud.clouds.values()} == {authority}
    assert all(shown["auth"]["auth_url"] == urls["auth_url"] for shown in cloud.clouds.values())
    assert {stat.S_IMODE(path.stat().st_mode) for path in (cloud.data / "tls").iterdir()} == {0o600}


def test_services_and_links_use_https(cloud: CloudProcess) -> None:
    client = cloud.client()
    for service in client.log_in().json()["token"]["catalog"]:
        for endpoint in service["endpoints"]:
            assert endpoint["url"].startswith(f"https://{ADDRESS}:")
            assert client.request_url("GET", endpoint["url"]).status in (200, 300), endpoint
    flavor = client.get("compute", "/flavors").json()["flavors"][0]
    assert flavor["links"][0]["href"].startswith(client.endpoints["compute"])
    assert client.request_url("GET", cloud.endpoints["placement-root"] + "/").json()["versions"]


def test_stock_client_verifies_the_cloud(cloud: CloudProcess, tmp_path: Path) -> None:
    shown = list_flavors(cloud.data / "clouds.yaml")
    assert "m1.tiny" in shown.stdout, shown.stderr
    stranger = tmp_path / "clouds.yaml"
    other = Authority().issue(tmp_path, ADDRESS) / "ca-cert.pem"
    stranger.write_text((cloud.data / "clouds.yaml").read_text().replace(cloud.endpoints["cacert"], str(other)))
    refused = list_flavors(stranger)
    assert refused.returncode == 1
    assert "certificate verify failed" in refused.stdout + refused.stderr


def test_own_commands_verify_the_cloud(cloud: CloudProcess) -> None:
    client = cloud.client()
    server_id = client.boot()
    client.wait(server_id, status="ACTIVE")
    for command in (["why", server_id], ["fit", "--flavor", "m1.tiny"], ["host", "drain", "sim-001", "--dry-run"]):
        done = kilonova(*command, "--data", str(cloud.data))
        assert done.returncode == 0, done.stderr


def test_own_commands_refuse_another_authority(cloud: CloudProcess, tmp_path: Path) -> None:
    """Another server at the cloud's address does not get the password."""
    authority = cloud.data / "tls/ca.pem"
    original = authority.read_bytes()
    authority.write_bytes((Authority().issue(tmp_path, ADDRESS) / "ca-cert.pem").read_bytes())
    try:
        refused = kilonova("fit", "--flavor", "m1.tiny", "--data", str(cloud.data))
    finally:
        authority.write_bytes(original)
    assert refused.returncode == 1
    assert "certificate verify failed" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_plain_http_is_refused(cloud: CloudProcess) -> None:
    with socket.create_connection((ADDRESS, port_of(cloud)), 60) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: cloud\r\n\r\n")
        answer = b""
        try:
            while received := plain.recv(4096):
                answer += received
        except ConnectionResetError:
            pass
    assert b"HTTP/" not in answer


def test_stop_does_not_wait_for_idle_clients(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data", "--hosts", "0", "--tls") as cloud:
        client = cloud.client()  # which keeps its connection
        assert client.get("compute", "/flavors").status == 200
        assert cloud.stop() == 0
        assert "graceful shutdown exceeded" not in cloud.log


def test_old_tls_is_refused(cloud: CloudProcess) -> None:
    context = ssl.create_default_context(cafile=cloud.endpoints["cacert"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
    context.set_ciphers("ALL:@SECLEVEL=0")
    for newest, is_accepted in ((ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_1, False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.maximum_version = newest
        with socket.create_connection((ADDRESS, port_of(cloud)), 60) as plain:
            try:
                with context.wrap_socket(plain, server_hostname=ADDRESS) as encrypted:
                    assert is_accepted, encrypted.version()
            except ssl.SSLError:
                assert not is_accepted


# Reload


def tls_environ(pki: Path) -> dict[str, str]:
    files = {"CERT": "server-cert.pem", "KEY": "server-key.pem", "CA": "ca-cert.pem"}
    return {f"KILONOVA_TLS_{name}": str(pki / file) for name, file in files.items()}


def test_certificate_is_reloaded_without_dropping_connections(tmp_path: Path) -> None:
    authority, pki = Authority(), tmp_path / "pki"
    authority.issue(pki, ADDRESS)
    options = ("--hosts", "0", "--placement-port", "0")
    with CloudProcess(tmp_path / "data", *options, environ=tls_environ(pki)) as cloud:
        client = cloud.client()
        assert cloud.endpoints["cacert"] == client.authority == str(pki / "ca-cert.pem")
        assert client.get("compute", "/flavors").status == 200
        connection = client._connection
        old = shown_certificate(cloud)

        authority.issue(pki, ADDRESS, "rsa")
        cloud.reload("TLS certificate reloaded")
        new = shown_certificate(cloud)
        assert new != old
        assert shown_certificate(cloud, "placement-root") == new
        assert client.get("compute", "/flavors").status == 200
        assert client._connection is connection

        (pki / "server-key.pem").write_text("no key")
        log = cloud.reload("not reloaded")
        assert f"tls_key: {pki / 'server-key.pem'} has no key in PEM" in log
        # Half of a pair must not replace the pair in use.
        authority.issue(pki, ADDRESS)
        authority.issue(tmp_path / "other", ADDRESS)
        (pki / "server-cert.pem").write_bytes((tmp_path / "other/server-cert.pem").read_bytes())
        assert "cannot be used with the certificate in" in cloud.reload("not reloaded")
        assert shown_certificate(cloud) == new
        assert cloud.client().get("compute", "/flavors").status == 200
