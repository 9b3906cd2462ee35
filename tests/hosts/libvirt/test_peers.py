"""Disks that one agent gives to another: whole, with their holes, and to nobody else."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kilonova import clock
from kilonova.config import load
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.connection import Connection
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor
from kilonova.hosts.drivers.libvirt.layout import Layout
from kilonova.hosts.drivers.libvirt.peers import NotGiven, Peer, Unreachable, fetch_base, serve, signature, tls
from tests.support.certificates import Authority

GUEST = "6f5c8ab2-7b7a-4a0e-8a3e-0d6ac39a3f01"
SLOT = "5d0b8f0f-93b5-4c9b-a6cb-0c1d5d4f2a11"
BASE = f"{'a' * 32}-{'b' * 16}.raw"
MIB = 1 << 20


def hypervisor(root: Path, known: str = "shared") -> Hypervisor:
    root.mkdir(exist_ok=True)
    config = load(environ={}, flags={"data": str(root)})
    config.agent.disk_secret = known
    return Hypervisor("one", config, Connection("test:///default"), Layout(root))


@asynccontextmanager
async def served(hv: Hypervisor) -> AsyncIterator[str]:
    task = asyncio.create_task(serve(hv))
    try:
        while not hv.disks_url:
            assert not task.done()
            await asyncio.sleep(0.01)
        yield hv.disks_url
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def keep(hv: Hypervisor, name: str = "disk", content: bytes = b"content") -> Path:
    directory = hv.layout.slot(GUEST, SLOT)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "spec").write_bytes(b"secret of the guest")
    (directory / name).write_bytes(content)
    return directory / name


def test_a_disk_arrives_whole_and_keeps_its_holes(tmp_path: Path) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        disk = keep(hv)
        with disk.open("wb") as file:
            for at in (0, 40 * MIB, 90 * MIB):
                file.seek(at)
                file.write(os.urandom(5 * MIB))
            file.truncate(200 * MIB)
        target = tmp_path / "disk"
        (tmp_path / "disk.part").write_bytes(b"what an earlier try has left")
        async with served(hv) as url:
            peer = Peer(hypervisor(tmp_path / "two"), "one", url)
            assert await peer.find(f"/slots/{GUEST}/{SLOT}") == {"disk": 200 * MIB}
            await peer.fetch(f"/slots/{GUEST}/{SLOT}/disk", target)
        assert target.read_bytes() == disk.read_bytes()
        assert target.stat().st_blocks * 512 < 20 * MIB
        assert target.stat().st_mode & 0o777 == 0o600
        assert not (tmp_path / "disk.part").exists()

    asyncio.run(main())


def test_only_those_with_the_secret_get_anything(tmp_path: Path) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        keep(hv)
        target = f"/slots/{GUEST}/{SLOT}/disk"
        async with served(hv) as url:
            stranger = Peer(hypervisor(tmp_path / "two", known="another"), "one", url)
            with pytest.raises(NotGiven, match="the signature is not that"):
                await stranger.ask(target)
            now = clock.now()
            good = f"{now:.3f}"
            assert await status(url, target, good, signature("shared", target, good)) == "200"
            for time in (now - 3600, now + 3600, "never", "nan"):
                assert await status(url, target, str(time), signature("shared", target, str(time))) == "403"
            assert await status(url, target, good, signature("shared", "/other", good)) == "403"
            assert await status(url, target, good, "") == "403"

    asyncio.run(main())


@pytest.mark.parametrize(
    "target",
    [
        f"/slots/{GUEST}/{SLOT}/spec",
        f"/slots/{GUEST}/{SLOT}/../{GUEST}@{SLOT}/spec",
        f"/slots/{GUEST}/{SLOT}/disk/../spec",
        f"/slots/{GUEST}/other",
        f"/slots/..%2f/{SLOT}/disk",
        f"/slots/../{SLOT}/disk",
        f"/guests/{GUEST}/spec",
        "/guests/../disk.config",
        "/base/../outside",
        "/base/%2e%2e%2foutside",
        "/base/.hidden",
        "/",
        "//etc/passwd",
    ],
)
def test_nothing_else_is_given_away(tmp_path: Path, target: str) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        keep(hv)
        (hv.layout.base).mkdir()
        for path in (tmp_path / "outside", hv.layout.root / "outside", hv.layout.base / ".hidden"):
            path.write_bytes(b"not for others")
        async with served(hv) as url:
            with pytest.raises(NotGiven):
                await Peer(hv, "one", url).ask(target)

    asyncio.run(main())


def test_what_broke_off_goes_on_where_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        disk = keep(hv, content=os.urandom(20 * MIB))
        async with served(hv) as url, cutting(url, after=9 * MIB) as (shaky, passed):
            peer = Peer(hypervisor(tmp_path / "two"), "one", shaky)
            await peer.fetch(f"/slots/{GUEST}/{SLOT}/disk", tmp_path / "disk")
        assert (tmp_path / "disk").read_bytes() == disk.read_bytes()
        # Of what had arrived only the piece that broke off came twice.
        assert len(passed) > 1
        assert sum(passed) < 40 * MIB

    asyncio.run(main())


def test_a_host_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("kilonova.hosts.drivers.libvirt.peers._TRIES", 1)
        hv = hypervisor(tmp_path / "one")
        async with served(hv) as url:
            pass
        with pytest.raises(Unreachable, match="two gives no disks at") as silent:
            await Peer(hv, "two", url).fetch("/base/x", tmp_path / "x")
        assert silent.value.passing
        assert list(tmp_path.glob("x*")) == []

    asyncio.run(main())


def test_without_a_secret_nobody_is_served(tmp_path: Path) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path, known="")
        await serve(hv)
        assert hv.disks_url == ""
        with pytest.raises(DriverError, match="disk_secret is not configured"):
            Peer(hv, "two", "http://127.0.0.1:1")
        with pytest.raises(DriverError, match="does not say where it gives disks away"):
            Peer(hypervisor(tmp_path), "two", "")

    asyncio.run(main())


def test_an_image_is_fetched_once(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = hypervisor(tmp_path / "one"), hypervisor(tmp_path / "two")
        one.layout.base.mkdir(parents=True)
        (one.layout.base / BASE).write_bytes(os.urandom(MIB))
        async with served(one) as url:
            path = await fetch_base(two, Peer(two, "one", url), BASE)
            assert path == two.layout.base / BASE
            assert path.read_bytes() == (one.layout.base / BASE).read_bytes()
            (one.layout.base / BASE).unlink()
            assert await fetch_base(two, Peer(two, "one", url), BASE) == path

    asyncio.run(main())


async def status(url: str, target: str, time: str, signed: str) -> str:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"GET {target} HTTP/1.1\r\nx-kilonova-time: {time}\r\nx-kilonova-signature: {signed}\r\n\r\n"
    writer.write(head.encode())
    answer = (await reader.read()).decode(errors="replace")
    writer.close()
    return answer.split(" ")[1]


@asynccontextmanager
async def cutting(url: str, after: int) -> AsyncIterator[tuple[str, list[int]]]:
    """A way to the server on which connections break; and how much each has let through."""
    host, port = url.removeprefix("http://").split(":")
    passed: list[int] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        inner_writer.write(await reader.readuntil(b"\r\n\r\n"))
        number = len(passed)
        passed.append(0)
        while passed[number] < after and (data := await inner_reader.read(1 << 16)):
            writer.write(data)
            await writer.drain()
            passed[number] += len(data)
        inner_writer.close()
        writer.close()

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", passed


# TLS


def with_certificates(hv: Hypervisor, files: Path) -> Hypervisor:
    agent = hv.config.agent
    agent.ca_file, agent.cert_file = str(files / "ca-cert.pem"), str(files / "server-cert.pem")
    agent.key_file = str(files / "server-key.pem")
    return hv


def test_with_certificates_disks_go_by_tls_to_those_who_have_one(tmp_path: Path) -> None:
    authority, strangers = Authority(), Authority("strangers")
    files = {name: authority.issue(tmp_path / f"pki-{name}", "127.0.0.1") for name in ("one", "two")}
    stranger = strangers.issue(tmp_path / "pki-stranger", "127.0.0.1")
    # Trusts the right authority, but is not of it.
    forger = strangers.issue(tmp_path / "pki-forger", "127.0.0.1")
    shutil.copy(files["one"] / "ca-cert.pem", forger)
    elsewhere = authority.issue(tmp_path / "pki-elsewhere", "127.0.0.2")
    target = f"/slots/{GUEST}/{SLOT}/disk"

    async def main() -> None:
        hv = with_certificates(hypervisor(tmp_path / "one"), files["one"])
        disk = keep(hv, content=os.urandom(9 * MIB))
        two = with_certificates(hypervisor(tmp_path / "two"), files["two"])
        async with served(hv) as url:
            assert url.startswith("https://")
            await Peer(two, "one", url).fetch(target, tmp_path / "disk")
            assert (tmp_path / "disk").read_bytes() == disk.read_bytes()
            for wrong in (stranger, forger):
                with pytest.raises(Unreachable):
                    await Peer(with_certificates(hypervisor(tmp_path / "three"), wrong), "one", url).ask(target)
            plain = hypervisor(tmp_path / "three")
            with pytest.raises(DriverError, match="has no certificates"):
                Peer(plain, "one", url)
            with pytest.raises(Unreachable):
                await Peer(plain, "one", url.replace("https", "http")).ask(target)
            with pytest.raises(DriverError, match="gives disks without TLS"):
                Peer(two, "one", url.replace("https", "http"))
        # One that is known, but not at this address.
        async with served(with_certificates(hypervisor(tmp_path / "four"), elsewhere)) as url:
            with pytest.raises(Unreachable, match="IP address mismatch"):
                await Peer(two, "one", url).ask(target)

    asyncio.run(main())


@pytest.mark.parametrize("lacking", ["ca_file", "cert_file", "key_file"])
def test_certificates_that_cannot_be_read_are_told(tmp_path: Path, lacking: str) -> None:
    files = Authority().issue(tmp_path / "pki", "127.0.0.1")
    agent = with_certificates(hypervisor(tmp_path / "one"), files).config.agent
    assert tls(agent, ssl.Purpose.CLIENT_AUTH) is not None
    for value in ("/nowhere.pem", "") if lacking != "key_file" else ("/nowhere.pem",):
        setattr(agent, lacking, value)
        with pytest.raises(DriverError, match=r"cannot be read|go together"):
            tls(agent, ssl.Purpose.CLIENT_AUTH)
