"""NBD exports with TLS: clients need a certificate of the right authority."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from kilonova.volume.exports.daemon import Daemon, DaemonError
from kilonova.volume.exports.manager import ExportManager
from tests.support import run
from tests.support.certificates import Authority
from tests.volume.exports import support
from tests.volume.exports.support import attach, exporting, io
from tests.volume.operations.test_content import make
from tests.volume.support import VolumeCloud

HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def tools() -> None:
    support.require()


@pytest.fixture
def authority() -> Authority:
    return Authority()


async def run_client(*command: str, certificates: Path | None = None) -> str:
    """The output of a QEMU client that reads the export, or lists all exports."""
    options = ["--object", f"tls-creds-x509,id=c,dir={certificates},endpoint=client"] if certificates else []
    process = await asyncio.create_subprocess_exec(
        *command[:1],
        *options,
        *command[1:],
        *(("--tls-creds", "c") if certificates and command[0] == "qemu-nbd" else ()),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), support.SECONDS)
    return f"failed {output.decode()}" if process.returncode else output.decode()


async def read(connection: dict[str, Any], certificates: Path | None = None) -> str:
    options = {
        "driver": "raw",
        "file.driver": "nbd",
        "file.server.type": "inet",
        "file.server.host": connection["host"],
        "file.server.port": connection["port"],
        "file.export": connection["export"],
        **({"file.tls-creds": "c"} if certificates else {}),
    }
    image = ",".join(f"{name}={value}" for name, value in options.items())
    return await run_client("qemu-io", "-c", "read 0 512", "-r", "--image-opts", image, certificates=certificates)


async def listed(connection: dict[str, Any], certificates: Path | None = None) -> str:
    address = ("-b", str(connection["host"]), "-p", str(connection["port"]))
    return await run_client("qemu-nbd", "--list", *address, certificates=certificates)


async def restarted(c: VolumeCloud, nbd_tls: Path | str) -> ExportManager:
    """Restart the export manager with another setting."""
    c.services.config.volume.nbd_tls = str(nbd_tls)
    manager = ExportManager(c.services.config, c.db)
    await manager.recover()
    return manager


async def refusal(c: VolumeCloud, volume_id: str) -> str:
    requested = {"volume_uuid": volume_id, "instance_uuid": volume_id, "connector": support.CONNECTOR}
    response = await c.post("/attachments", {"attachment": requested}, as_="admin")
    assert response.status == 503, response.body
    return response.body.decode()


async def detach(c: VolumeCloud, created: dict[str, Any]) -> None:
    assert (await c.delete(f"/attachments/{created['id']}", as_="admin")).status == 200


def data_of(c: VolumeCloud) -> Path:
    return Path(c.services.config.data_dir)


def test_clients_need_a_certificate_of_the_authority(sqlite_url: str, tmp_path: Path, authority: Authority) -> None:
    server, host = authority.issue(tmp_path / "server", HERE), authority.issue(tmp_path / "host", "10.0.0.1")
    stranger = Authority("strangers").issue(tmp_path / "stranger", HERE)
    # Trusts the right server, but has no certificate.
    anonymous = tmp_path / "anonymous"
    anonymous.mkdir()
    (anonymous / "ca-cert.pem").write_bytes((host / "ca-cert.pem").read_bytes())
    # Trusts the right server, but has a certificate of another authority.
    forger = Authority("strangers").issue(tmp_path / "forger", HERE)
    (forger / "ca-cert.pem").write_bytes((host / "ca-cert.pem").read_bytes())

    async def scenario() -> None:
        async with exporting(sqlite_url, volume__nbd_tls=str(server)) as (c, _):
            created = await attach(c, await make(c))
            connection = created["connection_info"]
            assert connection["tls"] is True
            assert "read 512/512" in await read(connection, host)
            assert connection["export"] in await listed(connection, host)
            assert "failed" in await io(connection, "read 0 512", read_only=True)
            for certificates in (None, anonymous, stranger, forger):
                assert "failed" in await read(connection, certificates), certificates
                output = await listed(connection, certificates)
                assert "failed" in output, certificates
                assert connection["export"] not in output
            # The name does not match the server's certificate.
            elsewhere = {**connection, "host": "localhost"}
            assert "failed" in await read(elsewhere, host)

    run(scenario())


def test_restart_uses_new_certificates_without_interruption(
    sqlite_url: str, tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server, host = authority.issue(tmp_path / "server", HERE), authority.issue(tmp_path / "host", "10.0.0.1")

    async def scenario() -> None:
        async with exporting(sqlite_url, volume__nbd_tls=str(server)) as (c, _):
            connection = (await attach(c, await make(c)))["connection_info"]
            pid = support.pid_of(data_of(c))
            await restarted(c, server)
            assert support.pid_of(data_of(c)) == pid
            authority.issue(server, HERE)
            # A certificate with the wrong key does not interrupt the exports.
            good = (server / "server-key.pem").read_bytes()
            (server / "server-key.pem").write_bytes((host / "server-key.pem").read_bytes())
            await restarted(c, server)
            assert support.pid_of(data_of(c)) == pid
            assert "cannot be used" in caplog.text
            (server / "server-key.pem").write_bytes(good)
            await restarted(c, server)
            assert support.pid_of(data_of(c)) != pid
            assert "read 512/512" in await read(connection, host)

    run(scenario())


def test_existing_attachments_stay_without_tls_when_tls_is_switched_on(
    sqlite_url: str, tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server, host = authority.issue(tmp_path / "server", HERE), authority.issue(tmp_path / "host", "10.0.0.1")

    async def scenario() -> None:
        async with exporting(sqlite_url) as (c, _):
            volume_id, other = await make(c), await make(c)
            old = await attach(c, volume_id)
            manager = await restarted(c, server)
            assert "1 attachments without TLS" in caplog.text
            assert "read 512/512" in await read(old["connection_info"])
            # A new daemon has the same mode.
            support.kill(data_of(c))
            await manager.sync_all()
            assert "read 512/512" in await read(old["connection_info"])
            assert "without TLS" in await refusal(c, other)
            await detach(c, old)
            connection = (await attach(c, other))["connection_info"]
            assert "read 512/512" in await read(connection, host)
            assert "failed" in await read({**connection, "tls": False})

    run(scenario())


def test_existing_attachments_stay_with_tls_when_tls_is_switched_off(
    sqlite_url: str, tmp_path: Path, authority: Authority
) -> None:
    server, host = authority.issue(tmp_path / "server", HERE), authority.issue(tmp_path / "host", "10.0.0.1")

    async def scenario() -> None:
        async with exporting(sqlite_url, volume__nbd_tls=str(server)) as (c, _):
            volume_id, other = await make(c), await make(c)
            old = await attach(c, volume_id)
            manager = await restarted(c, "")
            support.kill(data_of(c))
            await manager.sync_all()
            assert "read 512/512" in await read(old["connection_info"], host)
            assert "with TLS" in await refusal(c, other)
            await detach(c, old)
            connection = (await attach(c, other))["connection_info"]
            assert "tls" not in connection
            assert "read 512/512" in await read(connection)

    run(scenario())


def test_unusable_certificates_are_logged_at_start(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with exporting(sqlite_url) as (c, _):
            await restarted(c, tmp_path / "nowhere")
            assert "ca-cert.pem, server-cert.pem and server-key.pem in" in caplog.text

    run(scenario())


@pytest.mark.parametrize("missing", ["ca-cert.pem", "server-cert.pem", "server-key.pem"])
def test_missing_certificate_file_prevents_start(
    tmp_path: Path, authority: Authority, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    server = authority.issue(tmp_path / "server", HERE)
    (server / missing).unlink()

    async def scenario() -> None:
        daemon = Daemon(tmp_path / "exports", HERE, 0, server)
        with pytest.raises(DaemonError, match=missing):
            async with daemon.session(start=True):
                pass
        assert not daemon.is_alive()

    run(scenario())
