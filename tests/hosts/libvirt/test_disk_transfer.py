"""Transfer of disks between agents."""

from __future__ import annotations

import asyncio
import hashlib
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
from kilonova.hosts.drivers.libvirt.disk_transfer import (
    Peer,
    PeerError,
    PeerUnreachable,
    fetch_base_image,
    serve,
    sign,
    tls_context,
)
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor
from kilonova.hosts.drivers.libvirt.images import ImageCache
from kilonova.hosts.drivers.libvirt.layout import Layout
from kilonova.hosts.messages import Image
from tests.hosts.libvirt.support import FakeImageService, transfer
from tests.support.certificates import Authority

GUEST = "6f5c8ab2-7b7a-4a0e-8a3e-0d6ac39a3f01"
SLOT = "5d0b8f0f-93b5-4c9b-a6cb-0c1d5d4f2a11"
BASE = f"{'a' * 32}-{'b' * 16}.raw"
MIB = 1 << 20


def hypervisor(root: Path, key: str = "shared") -> Hypervisor:
    root.mkdir(exist_ok=True)
    config = load(environ={}, flags={"data": str(root)})
    config.agent.disk_secret = key
    hv = Hypervisor("one", config, Connection("test:///default"), Layout(root))
    hv.images = ImageCache(hv.layout.base, FakeImageService())
    return hv


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


def write_disk(hv: Hypervisor, name: str = "disk", content: bytes = b"content") -> Path:
    directory = hv.layout.slot_directory(GUEST, SLOT)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "spec").write_bytes(b"secret of the guest")
    (directory / name).write_bytes(content)
    return directory / name


def test_download_is_complete_and_sparse(tmp_path: Path) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        disk = write_disk(hv)
        with disk.open("wb") as file:
            for at in (0, 40 * MIB, 90 * MIB):
                file.seek(at)
                file.write(os.urandom(5 * MIB))
            file.truncate(200 * MIB)
        target = tmp_path / "disk"
        (tmp_path / "disk.part").write_bytes(b"of an earlier attempt")
        async with served(hv) as url:
            peer = Peer(hypervisor(tmp_path / "two"), "one", url)
            assert await peer.get_json(f"/slots/{GUEST}/{SLOT}") == {"disk": 200 * MIB}
            await peer.download(f"/slots/{GUEST}/{SLOT}/disk", target)
        assert target.read_bytes() == disk.read_bytes()
        assert target.stat().st_blocks * 512 < 20 * MIB
        assert target.stat().st_mode & 0o777 == 0o600
        assert not (tmp_path / "disk.part").exists()

    asyncio.run(main())


def test_request_without_valid_signature_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        write_disk(hv)
        target = f"/slots/{GUEST}/{SLOT}/disk"
        async with served(hv) as url:
            stranger = Peer(hypervisor(tmp_path / "two", key="another"), "one", url)
            with pytest.raises(PeerError, match="the signature is wrong"):
                await stranger.get(target)
            now = clock.now()
            good = f"{now:.3f}"
            assert await status(url, target, good, sign("shared", target, good)) == "200"
            for time in (now - 3600, now + 3600, "never", "nan"):
                assert await status(url, target, str(time), sign("shared", target, str(time))) == "403"
            assert await status(url, target, good, sign("shared", "/other", good)) == "403"
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
def test_other_files_are_not_served(tmp_path: Path, target: str) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        write_disk(hv)
        (hv.layout.base).mkdir()
        for path in (tmp_path / "outside", hv.layout.root / "outside", hv.layout.base / ".hidden"):
            path.write_bytes(b"not for others")
        async with served(hv) as url:
            with pytest.raises(PeerError):
                await Peer(hv, "one", url).get(target)

    asyncio.run(main())


def test_interrupted_download_resumes(tmp_path: Path) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        disk = write_disk(hv, content=os.urandom(20 * MIB))
        async with served(hv) as url, breaking_proxy(url, after=9 * MIB) as (proxy_url, passed):
            peer = Peer(hypervisor(tmp_path / "two"), "one", proxy_url)
            await peer.download(f"/slots/{GUEST}/{SLOT}/disk", tmp_path / "disk")
        assert (tmp_path / "disk").read_bytes() == disk.read_bytes()
        # Only the interrupted chunk was sent twice.
        assert len(passed) > 1
        assert sum(passed) < 40 * MIB

    asyncio.run(main())


def test_unreachable_host_is_a_passing_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("kilonova.hosts.drivers.libvirt.disk_transfer._MAX_ATTEMPTS", 1)
        hv = hypervisor(tmp_path / "one")
        async with served(hv) as url:
            pass
        with pytest.raises(PeerUnreachable, match="two does not respond at") as raised:
            await Peer(hv, "two", url).download("/base/x", tmp_path / "x")
        assert raised.value.passing
        assert list(tmp_path.glob("x*")) == []

    asyncio.run(main())


def test_server_does_not_run_without_a_secret(tmp_path: Path) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path, key="")
        await serve(hv)
        assert hv.disks_url == ""
        with pytest.raises(DriverError, match="disk_secret is not configured"):
            Peer(hv, "two", "http://127.0.0.1:1")
        with pytest.raises(DriverError, match="reports no URL for disks"):
            Peer(hypervisor(tmp_path), "two", "")

    asyncio.run(main())


def image_of(data: bytes, disk_format: str = "raw") -> Image:
    return Image(id="image", disk_format=disk_format, hash=f"sha512:{hashlib.sha512(data).hexdigest()}")


async def cached(hv: Hypervisor, image: Image, data: bytes) -> Path:
    """Fetch the image from the image service."""
    service = FakeImageService()
    service.put(image.id, data)
    hv.images = ImageCache(hv.layout.base, service)
    return (await hv.images.get(image, transfer(image.id))).path


def test_base_image_is_fetched_once(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = hypervisor(tmp_path / "one"), hypervisor(tmp_path / "two")
        data = os.urandom(MIB)
        image = image_of(data)
        source = await cached(one, image, data)
        async with served(one) as url:
            peer = Peer(two, "one", url)
            for _ in range(2):
                path = await fetch_base_image(two, peer, source.name, image)
                assert path == two.layout.base / source.name
                assert path.read_bytes() == data
                source.unlink(missing_ok=True)
        # It is a cached image now.
        assert (await two.images.get(image, None)).path == path

    asyncio.run(main())


def test_base_image_with_another_hash_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = hypervisor(tmp_path / "one"), hypervisor(tmp_path / "two")
        data = os.urandom(MIB)
        image = image_of(data)
        source = await cached(one, image, data)
        source.write_bytes(data[::-1])
        async with served(one) as url:
            with pytest.raises(DriverError, match="damaged"):
                await fetch_base_image(two, Peer(two, "one", url), source.name, image)
        assert list(two.layout.base.iterdir()) == []

    asyncio.run(main())


def test_base_image_of_another_host_is_not_taken_for_an_image(tmp_path: Path) -> None:
    """A host sends its own data under the name of an image that the guest was not built from."""

    async def main() -> None:
        one, two = hypervisor(tmp_path / "one"), hypervisor(tmp_path / "two")
        data, evil = b"popular" * 100_000, b"evil" * 100_000
        popular, guest_image = image_of(data), image_of(b"other data")
        source = await cached(one, popular, data)
        source.write_bytes(evil)
        async with served(one) as url:
            peer = Peer(two, "one", url)
            for image in (guest_image, None, Image(id="image")):
                path = await fetch_base_image(two, peer, source.name, image)
                assert path.read_bytes() == evil
            with pytest.raises(DriverError, match="no URL"):
                await two.images.get(popular, None)
            # A cached image is not given to a guest of another image either.
            mine = await cached(two, popular, data)
            assert await fetch_base_image(two, peer, source.name, guest_image) == path != mine

    asyncio.run(main())


@pytest.mark.parametrize("name", ["../disk", "..", f"../_base/{BASE}", f"{BASE}/x", ".hidden.raw", "spec", ""])
def test_name_of_base_image_is_checked(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        two = hypervisor(tmp_path / "two")
        with pytest.raises(DriverError, match="not the name"):
            await fetch_base_image(two, Peer(two, "one", "http://127.0.0.1:1"), name, None)

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
async def breaking_proxy(url: str, after: int) -> AsyncIterator[tuple[str, list[int]]]:
    """A proxy that closes connections after some bytes. Yields its URL and the bytes of each connection."""
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


def test_tls_requires_client_certificates(tmp_path: Path) -> None:
    authority, strangers = Authority(), Authority("strangers")
    files = {name: authority.issue(tmp_path / f"pki-{name}", "127.0.0.1") for name in ("one", "two")}
    stranger = strangers.issue(tmp_path / "pki-stranger", "127.0.0.1")
    # Trusts the right authority, but has a certificate of another one.
    forger = strangers.issue(tmp_path / "pki-forger", "127.0.0.1")
    shutil.copy(files["one"] / "ca-cert.pem", forger)
    elsewhere = authority.issue(tmp_path / "pki-elsewhere", "127.0.0.2")
    target = f"/slots/{GUEST}/{SLOT}/disk"

    async def main() -> None:
        hv = with_certificates(hypervisor(tmp_path / "one"), files["one"])
        disk = write_disk(hv, content=os.urandom(9 * MIB))
        two = with_certificates(hypervisor(tmp_path / "two"), files["two"])
        async with served(hv) as url:
            assert url.startswith("https://")
            await Peer(two, "one", url).download(target, tmp_path / "disk")
            assert (tmp_path / "disk").read_bytes() == disk.read_bytes()
            for wrong in (stranger, forger):
                with pytest.raises(PeerUnreachable):
                    await Peer(with_certificates(hypervisor(tmp_path / "three"), wrong), "one", url).get(target)
            plain = hypervisor(tmp_path / "three")
            with pytest.raises(DriverError, match="has no certificates"):
                Peer(plain, "one", url)
            with pytest.raises(PeerUnreachable):
                await Peer(plain, "one", url.replace("https", "http")).get(target)
            with pytest.raises(DriverError, match="offers disks without TLS"):
                Peer(two, "one", url.replace("https", "http"))
        # A valid certificate of another address.
        async with served(with_certificates(hypervisor(tmp_path / "four"), elsewhere)) as url:
            with pytest.raises(PeerUnreachable, match="IP address mismatch"):
                await Peer(two, "one", url).get(target)

    asyncio.run(main())


@pytest.mark.parametrize("setting", ["ca_file", "cert_file", "key_file"])
def test_unreadable_certificates_are_an_error(tmp_path: Path, setting: str) -> None:
    files = Authority().issue(tmp_path / "pki", "127.0.0.1")
    agent = with_certificates(hypervisor(tmp_path / "one"), files).config.agent
    assert tls_context(agent, ssl.Purpose.CLIENT_AUTH) is not None
    for value in ("/nowhere.pem", "") if setting != "key_file" else ("/nowhere.pem",):
        setattr(agent, setting, value)
        with pytest.raises(DriverError, match=r"cannot be read|must be set together"):
            tls_context(agent, ssl.Purpose.CLIENT_AUTH)
