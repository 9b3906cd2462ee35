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
from typing import Any

import pytest

from kilonova import clock
from kilonova.config import load
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import move_tickets
from kilonova.hosts.drivers.libvirt.connection import Connection
from kilonova.hosts.drivers.libvirt.disk_transfer import (
    Peer,
    PeerError,
    PeerUnreachable,
    fetch_base_image,
    serve,
    tls_context,
)
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor
from kilonova.hosts.drivers.libvirt.images import ImageCache
from kilonova.hosts.drivers.libvirt.layout import Layout
from kilonova.hosts.drivers.libvirt.migration_records import OUTGOING_FILE, OutgoingGuest, write_record
from kilonova.hosts.drivers.libvirt.move_tickets import StoredTicket, new_stamp, sign
from kilonova.hosts.messages import Flavor, Guest, Image
from tests.hosts.libvirt.support import FakeImageService, require_tools, run_tool, transfer
from tests.support.certificates import Authority

GUEST = "6f5c8ab2-7b7a-4a0e-8a3e-0d6ac39a3f01"
SLOT = "5d0b8f0f-93b5-4c9b-a6cb-0c1d5d4f2a11"
BASE = f"{'a' * 32}-{'b' * 16}.raw"
MIB = 1 << 20


KEY = "key of the move"


def hypervisor(root: Path, host: str = "one") -> Hypervisor:
    root.mkdir(exist_ok=True)
    config = load(environ={}, flags={"data": str(root), "messaging.url": "nats://unused"})
    hv = Hypervisor(host, config, Connection("test:///default"), Layout(root))
    hv.images = ImageCache(hv.layout.base, FakeImageService())
    return hv


def give_ticket(hv: Hypervisor, role: Any = "parked", guest_id: str = GUEST, **fields: Any) -> None:
    move_tickets.store(hv, guest_id, role, StoredTicket(**{"slot": SLOT, "key": KEY, **fields}))


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
        give_ticket(hv)
        with disk.open("wb") as file:
            for at in (0, 40 * MIB, 90 * MIB):
                file.seek(at)
                file.write(os.urandom(5 * MIB))
            file.truncate(200 * MIB)
        target = tmp_path / "disk"
        (tmp_path / "disk.part").write_bytes(b"of an earlier attempt")
        async with served(hv) as url:
            peer = Peer(hypervisor(tmp_path / "two"), "one", url, KEY)
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
            # Without a ticket nothing is accepted, not even a signature with an empty key.
            for key in (KEY, ""):
                assert await status(url, target, stamp := new_stamp(), sign(key, target, stamp)) == "403"
            give_ticket(hv)
            with pytest.raises(PeerError, match="no valid ticket"):
                await Peer(hypervisor(tmp_path / "two"), "one", url, "another").get(target)
            stamp, signature = (stamp := new_stamp()), sign(KEY, target, stamp)
            assert await status(url, target, stamp, signature) == "200"
            assert await status(url, target, stamp, signature) == "403", "a repeated request"
            now = clock.wall()
            for time in (now - 3600, now + 3600, "never", "nan"):
                assert await status(url, target, str(time), sign(KEY, target, str(time))) == "403"
            stamp = new_stamp()
            assert await status(url, target, stamp, sign(KEY, "/other", stamp)) == "403"
            assert await status(url, target, stamp, "") == "403"
            assert await status(url, "/", "", "") == "200", "only whether the host can be reached"

    asyncio.run(main())


def test_ticket_is_for_one_guest_and_one_operation(tmp_path: Path) -> None:
    other_guest, other_slot = GUEST.replace("6f", "7f"), SLOT.replace("5d", "6d")

    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        write_disk(hv)
        for guest_id, slot in ((GUEST, other_slot), (other_guest, SLOT)):
            shutil.copytree(hv.layout.slot_directory(GUEST, SLOT), hv.layout.slot_directory(guest_id, slot))
        give_ticket(hv)
        give_ticket(hv, guest_id=other_guest, key="key of another move")
        async with served(hv) as url:
            peer = Peer(hypervisor(tmp_path / "two"), "one", url, KEY)
            assert await peer.get(f"/slots/{GUEST}/{SLOT}/disk")
            for target in (f"/slots/{GUEST}/{other_slot}/disk", f"/slots/{other_guest}/{SLOT}/disk"):
                with pytest.raises(PeerError, match="no valid ticket"):
                    await peer.get(target)
            # The guest moves again: the ticket of its earlier move is over.
            give_ticket(hv, key="key of the next move")
            with pytest.raises(PeerError, match="no valid ticket"):
                await peer.get(f"/slots/{GUEST}/{SLOT}/disk")
        # Tickets survive a restart of the agent.
        async with served(hypervisor(tmp_path / "one")) as url:
            peer = Peer(hypervisor(tmp_path / "two"), "one", url, "key of the next move")
            assert await peer.get(f"/slots/{GUEST}/{SLOT}/disk")

    asyncio.run(main())


ALLOWED = {
    "parked": {f"/slots/{GUEST}/{SLOT}", f"/slots/{GUEST}/{SLOT}/disk"},
    "leaving": {f"/guests/{GUEST}/disk.config", f"/guests/{GUEST}/console.log"},
    "arriving": {f"/expected/{GUEST}/{SLOT}", f"/arrived/{GUEST}"},
}


@pytest.mark.parametrize("role", ALLOWED)
def test_role_of_the_ticket_decides_what_is_allowed(tmp_path: Path, role: str) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        write_disk(hv)
        for name in ("disk.config", "console.log"):
            hv.layout.guest_directory(GUEST).mkdir(exist_ok=True)
            hv.layout.file(GUEST, name).write_bytes(b"of the guest")
        give_ticket(hv, role)
        async with served(hv) as url:
            for target in set().union(*ALLOWED.values()):
                found = await status(url, target, stamp := new_stamp(), sign(KEY, target, stamp))
                assert (found != "403") == (target in ALLOWED[role]), (target, found)

    asyncio.run(main())


def test_destination_gets_nothing_before_and_after_the_migration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        hv.layout.guest_directory(GUEST).mkdir(parents=True)
        hv.layout.file(GUEST, "console.log").write_bytes(b"TICK")
        give_ticket(hv, "leaving")
        now = clock.wall()
        async with served(hv) as url:
            peer = Peer(hypervisor(tmp_path / "two"), "one", url, KEY)
            target = f"/guests/{GUEST}/console.log"
            assert await peer.get(target) == b"TICK"
            monkeypatch.setattr(clock, "wall", lambda: now + 7200)
            with pytest.raises(PeerError, match="no valid ticket"):
                await peer.get(target)
            record = hv.layout.file(GUEST, OUTGOING_FILE)
            for slot, allowed in ((SLOT, True), ("of-a-later-move", False)):
                write_record(record, OutgoingGuest(slot=slot, destination="two", shared=False, running=True))
                if allowed:
                    assert await peer.get(target) == b"TICK"
                else:
                    with pytest.raises(PeerError, match="no valid ticket"):
                        await peer.get(target)

    asyncio.run(main())


def test_old_tickets_are_removed_at_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        give_ticket(hv)
        give_ticket(hv, "leaving")
        old = tmp_path / "one" / "tickets" / f"{GUEST}.parked"
        assert old.stat().st_mode & 0o777 == 0o600
        os.utime(old, (0, 0))
        async with served(hv):
            assert move_tickets.find(hv, GUEST, "parked") is None
            assert move_tickets.find(hv, GUEST, "leaving", SLOT) is not None
            assert move_tickets.find(hv, GUEST, "leaving", "of-another-move") is None

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
        f"/base/{BASE}",
        f"/slots/{GUEST}/{SLOT}/base/{BASE}",
        f"/slots/{GUEST}/{SLOT}/base/../outside",
        f"/guests/{GUEST}/base/{BASE}",
        f"/guests/{GUEST}/base/%2e%2e%2foutside",
        f"/guests/{GUEST}/base/.hidden",
        "/unknown",
        "//etc/passwd",
        "http://[",
    ],
)
def test_other_files_are_not_served(tmp_path: Path, target: str) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        write_disk(hv)
        for role in ALLOWED:
            give_ticket(hv, role)
        (hv.layout.base).mkdir()
        for path in (tmp_path / "outside", *(hv.layout.base / name for name in ("outside", ".hidden", BASE))):
            path.write_bytes(b"not for others")
        async with served(hv) as url:
            with pytest.raises(PeerError):
                await Peer(hv, "one", url, KEY).get(target)

    asyncio.run(main())


def test_interrupted_download_resumes(tmp_path: Path) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path / "one")
        disk = write_disk(hv, content=os.urandom(20 * MIB))
        give_ticket(hv)
        async with served(hv) as url, breaking_proxy(url, after=9 * MIB) as (proxy_url, passed):
            peer = Peer(hypervisor(tmp_path / "two"), "one", proxy_url, KEY)
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


def test_server_does_not_run_without_other_hosts(tmp_path: Path) -> None:
    async def main() -> None:
        hv = hypervisor(tmp_path)
        hv.config.messaging.url = ""
        await serve(hv)
        assert hv.disks_url == ""
        with pytest.raises(DriverError, match="reports no URL for disks"):
            Peer(hv, "two", "")

    asyncio.run(main())


def image_of(data: bytes, disk_format: str = "raw") -> Image:
    return Image(id="image", disk_format=disk_format, hash=f"sha512:{hashlib.sha512(data).hexdigest()}")


async def cached(hv: Hypervisor, image: Image, data: bytes) -> Path:
    """Fetch the image from the image service."""
    service = FakeImageService()
    service.put(image.id, data)
    hv.images = ImageCache(hv.layout.base, service)
    return (await hv.images.get(image, transfer(image.id))).path


DISKS = f"/slots/{GUEST}/{SLOT}"


def park_guest(hv: Hypervisor, base: Path) -> Path:
    """Put a guest with a disk on the base image into the slot, with a ticket for its move. Returns its directory."""
    flavor = Flavor(vcpus=1, ram_mb=64, disk_gb=1, ephemeral_gb=1)
    hv.write_spec(Guest(id=GUEST, name="web", project_id="p", user_id="u", flavor=flavor, image=Image(id="i")), SLOT)
    directory = hv.layout.slot_directory(GUEST, SLOT)
    run_tool(*OVERLAY, base, directory / "disk")
    give_ticket(hv)
    return directory


OVERLAY = ("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b")


def test_base_image_of_the_guest_is_fetched_once(tmp_path: Path) -> None:
    require_tools("qemu-img")

    async def main() -> None:
        one, two = hypervisor(tmp_path / "one"), hypervisor(tmp_path / "two")
        data = os.urandom(MIB)
        image = image_of(data)
        source = await cached(one, image, data)
        other = await cached(one, image_of(other_data := os.urandom(MIB)), other_data)
        directory = park_guest(one, source)
        # The guest has written to its own disk what looks like a disk on another guest's image.
        run_tool(*OVERLAY, other, directory / "disk.eph0")
        async with served(one) as url:
            peer = Peer(two, "one", url, KEY)
            for _ in range(2):
                path = await fetch_base_image(two, peer, DISKS, source.name, image)
                assert path == two.layout.base / source.name
                assert path.read_bytes() == data
            with pytest.raises(PeerError, match="does not exist"):
                await fetch_base_image(two, peer, DISKS, other.name, None)
            source.unlink()
            assert await fetch_base_image(two, peer, DISKS, source.name, image) == path
        # It is a cached image now.
        assert (await two.images.get(image, None)).path == path

    asyncio.run(main())


def test_base_image_with_another_hash_is_refused(tmp_path: Path) -> None:
    require_tools("qemu-img")

    async def main() -> None:
        one, two = hypervisor(tmp_path / "one"), hypervisor(tmp_path / "two")
        data = os.urandom(MIB)
        image = image_of(data)
        source = await cached(one, image, data)
        source.write_bytes(data[::-1])
        park_guest(one, source)
        async with served(one) as url:
            with pytest.raises(DriverError, match="damaged"):
                await fetch_base_image(two, Peer(two, "one", url, KEY), DISKS, source.name, image)
        assert list(two.layout.base.iterdir()) == []

    asyncio.run(main())


def test_base_image_of_another_host_is_not_taken_for_an_image(tmp_path: Path) -> None:
    """A host sends its own data under the name of an image that the guest was not built from."""
    require_tools("qemu-img")

    async def main() -> None:
        one, two = hypervisor(tmp_path / "one"), hypervisor(tmp_path / "two")
        data, evil = b"popular" * 100_000, b"evil" * 100_000
        popular, guest_image = image_of(data), image_of(b"other data")
        source = await cached(one, popular, data)
        source.write_bytes(evil)
        park_guest(one, source)
        async with served(one) as url:
            peer = Peer(two, "one", url, KEY)
            for image in (guest_image, None, Image(id="image")):
                path = await fetch_base_image(two, peer, DISKS, source.name, image)
                assert path.read_bytes() == evil
            with pytest.raises(DriverError, match="no URL"):
                await two.images.get(popular, None)
            # A cached image is not given to a guest of another image either.
            mine = await cached(two, popular, data)
            assert await fetch_base_image(two, peer, DISKS, source.name, guest_image) == path != mine

    asyncio.run(main())


@pytest.mark.parametrize("name", ["../disk", "..", f"../_base/{BASE}", f"{BASE}/x", ".hidden.raw", "spec", ""])
def test_name_of_base_image_is_checked(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        two = hypervisor(tmp_path / "two")
        with pytest.raises(DriverError, match="not the name"):
            await fetch_base_image(two, Peer(two, "one", "http://127.0.0.1:1", KEY), DISKS, name, None)

    asyncio.run(main())


async def status(url: str, target: str, time: str, signed: str) -> str:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"GET {target} HTTP/1.1\r\nx-kilonova-stamp: {time}\r\nx-kilonova-signature: {signed}\r\n\r\n"
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
        give_ticket(hv)
        two = with_certificates(hypervisor(tmp_path / "two"), files["two"])
        async with served(hv) as url:
            assert url.startswith("https://")
            await Peer(two, "one", url, KEY).download(target, tmp_path / "disk")
            assert (tmp_path / "disk").read_bytes() == disk.read_bytes()
            for wrong in (stranger, forger):
                with pytest.raises(PeerUnreachable):
                    await Peer(with_certificates(hypervisor(tmp_path / "three"), wrong), "one", url, KEY).get(target)
            plain = hypervisor(tmp_path / "three")
            with pytest.raises(DriverError, match="has no certificates"):
                Peer(plain, "one", url)
            with pytest.raises(PeerUnreachable):
                await Peer(plain, "one", url.replace("https", "http"), KEY).get(target)
            with pytest.raises(DriverError, match="offers disks without TLS"):
                Peer(two, "one", url.replace("https", "http"))
        # A valid certificate of another address.
        async with served(with_certificates(hypervisor(tmp_path / "four"), elsewhere)) as url:
            with pytest.raises(PeerUnreachable, match="IP address mismatch"):
                await Peer(two, "one", url, KEY).get(target)

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
