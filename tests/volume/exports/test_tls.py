"""Volumes over NBD with TLS: who has no certificate of the right authority gets nothing, not even the names."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from kilonova.volume.exports.daemon import Daemon, DaemonError
from kilonova.volume.exports.keeper import Keeper
from tests.support import run
from tests.support.certificates import Authority
from tests.volume.content.test_content import make
from tests.volume.exports import support
from tests.volume.exports.support import attach, exporting, io
from tests.volume.support import VolumeCloud

HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def tools() -> None:
    support.require()


@pytest.fixture
def authority() -> Authority:
    return Authority()


async def ask(way: dict[str, Any], *command: str, certificates: Path | None = None) -> str:
    """What QEMU's client says that reads the export, or lists all of them."""
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


async def read(way: dict[str, Any], certificates: Path | None = None) -> str:
    server = f"driver=nbd,server.type=inet,server.host={way['host']},server.port={way['port']},export={way['export']}"
    image = f"driver=raw,file.driver=nbd,file.{server.removeprefix('driver=nbd,').replace(',', ',file.')}"
    creds = ",file.tls-creds=c" if certificates else ""
    return await ask(way, "qemu-io", "-c", "read 0 512", "-r", "--image-opts", image + creds, certificates=certificates)


async def listed(way: dict[str, Any], certificates: Path | None = None) -> str:
    place = ("-b", str(way["host"]), "-p", str(way["port"]))
    return await ask(way, "qemu-nbd", "--list", *place, certificates=certificates)


async def restarted(c: VolumeCloud, nbd_tls: Path | str) -> Keeper:
    """As a control plane that starts with another setting."""
    c.services.config.volume.nbd_tls = str(nbd_tls)
    keeper = Keeper(c.services.config, c.db)
    await keeper.recover()
    return keeper


async def refusal(c: VolumeCloud, volume_id: str) -> str:
    asked = {"volume_uuid": volume_id, "instance_uuid": volume_id, "connector": support.CONNECTOR}
    answer = await c.post("/attachments", {"attachment": asked}, as_="admin")
    assert answer.status == 503, answer.body
    return answer.body.decode()


async def give_back(c: VolumeCloud, made: dict[str, Any]) -> None:
    assert (await c.delete(f"/attachments/{made['id']}", as_="admin")).status == 200


def data_of(c: VolumeCloud) -> Path:
    return Path(c.services.config.data_dir)


def test_who_has_no_certificate_of_the_authority_gets_nothing(
    sqlite_url: str, tmp_path: Path, authority: Authority
) -> None:
    server, host = authority.issue(tmp_path / "server", HERE), authority.issue(tmp_path / "host", "10.0.0.1")
    stranger = Authority("strangers").issue(tmp_path / "stranger", HERE)
    # Trusts the right server, but has nothing to say who it is itself.
    nobody = tmp_path / "nobody"
    nobody.mkdir()
    (nobody / "ca-cert.pem").write_bytes((host / "ca-cert.pem").read_bytes())
    # Trusts the right server, and proves to be somebody whom others know.
    forger = Authority("strangers").issue(tmp_path / "forger", HERE)
    (forger / "ca-cert.pem").write_bytes((host / "ca-cert.pem").read_bytes())

    async def scenario() -> None:
        async with exporting(sqlite_url, volume__nbd_tls=str(server)) as (c, _):
            made = await attach(c, await make(c))
            way = made["connection_info"]
            assert way["tls"] is True
            assert "read 512/512" in await read(way, host)
            assert way["export"] in await listed(way, host)
            assert "failed" in await io(way, "read 0 512", read_only=True)
            for certificates in (None, nobody, stranger, forger):
                assert "failed" in await read(way, certificates), certificates
                told = await listed(way, certificates)
                assert "failed" in told, certificates
                assert way["export"] not in told
            # A server that is not who it says it is.
            elsewhere = {**way, "host": "localhost"}
            assert "failed" in await read(elsewhere, host)

    run(scenario())


def test_new_certificates_come_with_a_restart_and_nobody_notices(
    sqlite_url: str, tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server, host = authority.issue(tmp_path / "server", HERE), authority.issue(tmp_path / "host", "10.0.0.1")

    async def scenario() -> None:
        async with exporting(sqlite_url, volume__nbd_tls=str(server)) as (c, _):
            way = (await attach(c, await make(c)))["connection_info"]
            pid = support.pid_of(data_of(c))
            await restarted(c, server)
            assert support.pid_of(data_of(c)) == pid
            authority.issue(server, HERE)
            # The certificate of now, and the key of before: nobody is cut off for that.
            good = (server / "server-key.pem").read_bytes()
            (server / "server-key.pem").write_bytes((host / "server-key.pem").read_bytes())
            await restarted(c, server)
            assert support.pid_of(data_of(c)) == pid
            assert "cannot be used" in caplog.text
            (server / "server-key.pem").write_bytes(good)
            await restarted(c, server)
            assert support.pid_of(data_of(c)) != pid
            assert "read 512/512" in await read(way, host)

    run(scenario())


def test_who_was_there_before_tls_is_served_as_before_until_he_goes(
    sqlite_url: str, tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server, host = authority.issue(tmp_path / "server", HERE), authority.issue(tmp_path / "host", "10.0.0.1")

    async def scenario() -> None:
        async with exporting(sqlite_url) as (c, _):
            volume_id, other = await make(c), await make(c)
            old = await attach(c, volume_id)
            keeper = await restarted(c, server)
            assert "without TLS to 1 attachments" in caplog.text
            assert "read 512/512" in await read(old["connection_info"])
            # Also by a daemon that is begun only now.
            support.kill(data_of(c))
            await keeper.sync_all()
            assert "read 512/512" in await read(old["connection_info"])
            assert "without TLS" in await refusal(c, other)
            await give_back(c, old)
            way = (await attach(c, other))["connection_info"]
            assert "read 512/512" in await read(way, host)
            assert "failed" in await read({**way, "tls": False})

    run(scenario())


def test_who_came_by_tls_is_served_so_when_it_is_switched_off(
    sqlite_url: str, tmp_path: Path, authority: Authority
) -> None:
    server, host = authority.issue(tmp_path / "server", HERE), authority.issue(tmp_path / "host", "10.0.0.1")

    async def scenario() -> None:
        async with exporting(sqlite_url, volume__nbd_tls=str(server)) as (c, _):
            volume_id, other = await make(c), await make(c)
            old = await attach(c, volume_id)
            keeper = await restarted(c, "")
            support.kill(data_of(c))
            await keeper.sync_all()
            assert "read 512/512" in await read(old["connection_info"], host)
            assert "with TLS" in await refusal(c, other)
            await give_back(c, old)
            way = (await attach(c, other))["connection_info"]
            assert "tls" not in way
            assert "read 512/512" in await read(way)

    run(scenario())


def test_certificates_of_no_use_are_told_when_a_worker_starts(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with exporting(sqlite_url) as (c, _):
            await restarted(c, tmp_path / "nowhere")
            assert "ca-cert.pem, server-cert.pem and server-key.pem in" in caplog.text

    run(scenario())


@pytest.mark.parametrize("lacking", ["ca-cert.pem", "server-cert.pem", "server-key.pem"])
def test_certificates_that_are_not_there_export_nothing(
    tmp_path: Path, authority: Authority, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    server = authority.issue(tmp_path / "server", HERE)
    (server / lacking).unlink()

    async def scenario() -> None:
        daemon = Daemon(tmp_path / "exports", HERE, 0, server)
        with pytest.raises(DaemonError, match=lacking):
            async with daemon.session(start=True):
                pass
        assert not daemon.is_alive()

    run(scenario())
