"""The image cache: fetching, checks, locks and cleanup."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.images import ImageCache
from kilonova.hosts.messages import Image
from tests.hosts.libvirt.support import MIB, FakeImageService, require_tools, run_tool, transfer


@pytest.fixture(autouse=True)
def _tools() -> None:
    require_tools("qemu-img", "prlimit")


DATA = b"boot" + bytes(3 * MIB) + b"end"
RAW = Image(id="raw-1", disk_format="raw", hash=f"sha512:{hashlib.sha512(DATA).hexdigest()}")
# Of a server that booted under an older release.
WITHOUT_HASH = Image(id="raw-1", disk_format="raw")


def make_cache(tmp_path: Path, service: FakeImageService) -> ImageCache:
    return ImageCache(tmp_path / "_base", service)


def cached_files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "_base").iterdir())


def test_image_is_fetched_once_and_sparse(tmp_path: Path) -> None:
    service = FakeImageService()
    service.put("raw-1", DATA)
    cache = make_cache(tmp_path, service)

    async def scenario() -> None:
        bases = await asyncio.gather(*(cache.get(RAW, transfer("raw-1")) for _ in range(8)))
        assert len(set(bases)) == 1
        # A cached image needs no request.
        assert await cache.get(RAW, None) == bases[0]
        assert await make_cache(tmp_path, FakeImageService()).get(RAW, transfer("raw-1")) == bases[0]
        base = bases[0]
        assert base.path.read_bytes() == DATA
        assert (base.format, base.virtual_size) == ("raw", len(DATA))
        assert base.path.stat().st_blocks * 512 < MIB
        assert base.path.stat().st_mode & 0o777 == 0o600

    asyncio.run(scenario())
    assert service.reads == ["raw-1"]
    assert len(cached_files(tmp_path)) == 1


def test_concurrent_processes_fetch_an_image_once(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from kilonova.hosts.drivers.libvirt.images import ImageCache
        from kilonova.hosts.messages import Image
        from tests.hosts.libvirt.support import FakeImageService, transfer

        service = FakeImageService()
        service.put("raw-1", b"boot" * 1_000_000)
        cache = ImageCache(Path(sys.argv[1]), service)
        base = asyncio.run(cache.get(Image(id="raw-1"), transfer("raw-1")))
        print(len(service.reads), base.virtual_size)
        """
    )
    command = [sys.executable, "-c", program, str(tmp_path / "_base")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0].split() for process in running]
    assert sorted(outputs) == [["0", "4000000"], ["0", "4000000"], ["1", "4000000"]]
    assert len(cached_files(tmp_path)) == 1


@pytest.mark.parametrize(
    "facts, why",
    [
        ({"os_hash_value": "0" * 128}, "damaged"),
        ({"os_hash_algo": "sha256", "os_hash_value": "0" * 64}, "damaged"),
        ({"os_hash_algo": None, "checksum": "0" * 32}, "damaged"),
        ({"os_hash_algo": "rot13", "os_hash_value": "0"}, "rot13"),
        ({"size": 7}, "7 bytes"),
        ({"size": len(DATA) + 1}, "bytes"),
        ({"size": 1 << 60}, "free on this host"),
        ({"status": "deactivated"}, "deactivated"),
    ],
)
def test_data_that_differs_from_the_image_record_is_refused(tmp_path: Path, facts: dict[str, object], why: str) -> None:
    service = FakeImageService()
    service.put("raw-1", DATA, **facts)
    with pytest.raises(DriverError, match=why):
        asyncio.run(make_cache(tmp_path, service).get(WITHOUT_HASH, transfer("raw-1")))
    assert cached_files(tmp_path) == []


def test_md5_checksum_is_used_without_os_hash(tmp_path: Path) -> None:
    service = FakeImageService()
    service.put("raw-1", DATA, os_hash_algo=None, os_hash_value=None, checksum=hashlib.md5(DATA).hexdigest())
    assert asyncio.run(make_cache(tmp_path, service).get(WITHOUT_HASH, transfer("raw-1"))).virtual_size == len(DATA)


def test_image_service_without_hashes(tmp_path: Path) -> None:
    service = FakeImageService()
    for name in ("raw-1", "raw-2"):
        service.put(name, DATA, os_hash_algo=None, os_hash_value=None)
    cache = make_cache(tmp_path, service)

    async def scenario() -> None:
        found = [await cache.get(Image(id=name), transfer(name)) for name in ("raw-1", "raw-2", "raw-1")]
        assert found[0] == found[2] != found[1]

    asyncio.run(scenario())
    assert service.reads == ["raw-1", "raw-2"]


def test_image_that_was_replaced_under_its_id_is_refused(tmp_path: Path) -> None:
    """Cached or not, with the true hash in the image service, a wrong one or only an MD5."""
    service = FakeImageService()
    stranger = b"stranger" + DATA
    cache = make_cache(tmp_path, service)

    async def refused(why: str, **facts: object) -> None:
        service.put("raw-1", stranger, **facts)
        with pytest.raises(DriverError, match=why) as error:
            await cache.get(RAW, transfer("raw-1"))
        assert RAW.hash in str(error.value)

    async def scenario() -> None:
        await refused("was replaced")
        assert service.reads == []
        await refused("damaged", os_hash_value=RAW.hash.removeprefix("sha512:"))
        await refused("damaged", os_hash_algo=None, os_hash_value=None, checksum="0" * 32)
        assert cached_files(tmp_path) == []
        # The stranger's image in the cache is not taken for the server's one.
        service.put("raw-1", stranger)
        assert (await cache.get(WITHOUT_HASH, transfer("raw-1"))).path.read_bytes() == stranger
        await refused("was replaced")
        # The server's image in the cache needs no image service.
        service.put("raw-1", DATA)
        base = await cache.get(RAW, transfer("raw-1"))
        service.put("raw-1", stranger)
        assert await cache.get(RAW, transfer("raw-1")) == base
        assert base.path.read_bytes() == DATA

    asyncio.run(scenario())


def test_image_is_cached_per_format(tmp_path: Path) -> None:
    """The data of an image without signatures can be declared as raw and as iso."""
    service = FakeImageService()
    qcow2 = tmp_path / "q"
    run_tool("qemu-img", "create", "-q", "-f", "qcow2", qcow2, "1M")
    service.put("q", qcow2.read_bytes())
    cache = make_cache(tmp_path, service)

    async def scenario() -> None:
        await cache.get(Image(id="q", disk_format="qcow2"), transfer("q"))
        with pytest.raises(DriverError, match="qcow2"):
            await cache.get(Image(id="q", disk_format="raw"), transfer("q"))

    asyncio.run(scenario())
    assert len(cached_files(tmp_path)) == 1


def test_file_of_an_older_release_is_removed_when_no_guest_uses_it(tmp_path: Path) -> None:
    service = FakeImageService()
    service.put("raw-1", DATA)
    cache = make_cache(tmp_path, service)
    (tmp_path / "_base").mkdir()
    paths = []
    for image_id in ("raw-1", "in-use"):
        path = tmp_path / "_base" / f"{hashlib.sha256(image_id.encode()).hexdigest()[:32]}-{'0' * 16}.raw"
        path.write_bytes(b"of a stranger")
        os.utime(path, (1000, 1000))
        paths.append(path)

    async def scenario() -> None:
        for image in (RAW, WITHOUT_HASH):
            assert (await cache.get(image, transfer("raw-1"))).path.read_bytes() == DATA
        assert await cache.remove_unused({paths[1]}, 3600) == [paths[0]]
        assert paths[1].exists()

    asyncio.run(scenario())


def test_refused_image_leaves_no_files(tmp_path: Path) -> None:
    qcow2 = tmp_path / "q"
    run_tool("qemu-img", "create", "-q", "-f", "qcow2", qcow2, "1M")
    service = FakeImageService()
    service.put("raw-1", qcow2.read_bytes())
    with pytest.raises(DriverError, match="qcow2"):
        asyncio.run(make_cache(tmp_path, service).get(WITHOUT_HASH, transfer("raw-1")))
    assert cached_files(tmp_path) == []


def test_cancelled_download_leaves_no_files_and_releases_the_lock(tmp_path: Path) -> None:
    service = FakeImageService()
    service.put("raw-1", DATA)
    cache = make_cache(tmp_path, service)

    async def scenario() -> None:
        service.gate = asyncio.Event()
        first = asyncio.create_task(cache.get(RAW, transfer("raw-1")))
        while not service.reads:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(cache.get(RAW, transfer("raw-1")))
        await asyncio.sleep(0.1)
        assert service.reads == ["raw-1"]
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        service.gate.set()
        assert (await second).path.read_bytes() == DATA

    asyncio.run(scenario())
    assert len(cached_files(tmp_path)) == 1


def test_qcow2_is_cached_unchanged(tmp_path: Path) -> None:
    qcow2 = tmp_path / "q"
    run_tool("qemu-img", "create", "-q", "-f", "qcow2", qcow2, "5M")
    service = FakeImageService()
    service.put("q", qcow2.read_bytes())
    base = asyncio.run(make_cache(tmp_path, service).get(Image(id="q", disk_format="qcow2"), transfer("q")))
    assert (base.format, base.virtual_size) == ("qcow2", 5 * MIB)
    assert base.path.read_bytes() == qcow2.read_bytes()


@pytest.mark.parametrize("kind, driver", [("vmdk", "vmdk"), ("vdi", "vdi"), ("vhd", "vpc"), ("vhdx", "vhdx")])
def test_other_formats_are_converted_to_raw(tmp_path: Path, kind: str, driver: str) -> None:
    raw, other = tmp_path / "raw", tmp_path / kind
    raw.write_bytes(b"boot".ljust(2 * MIB, b"\1"))
    run_tool("qemu-img", "convert", "-f", "raw", "-O", driver, raw, other)
    service = FakeImageService()
    service.put("i", other.read_bytes())
    base = asyncio.run(make_cache(tmp_path, service).get(Image(id="i", disk_format=kind), transfer("i")))
    assert base.format == "raw"
    assert base.path.read_bytes()[: 2 * MIB] == raw.read_bytes()
    assert len(cached_files(tmp_path)) == 1


def test_sparse_qcow2_is_not_expanded(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    run_tool("qemu-img", "create", "-q", "-f", "vdi", huge, str(shutil.disk_usage(tmp_path).free * 2))
    service = FakeImageService()
    service.put("i", huge.read_bytes())
    with pytest.raises(DriverError, match="free on this host"):
        asyncio.run(make_cache(tmp_path, service).get(Image(id="i", disk_format="vdi"), transfer("i")))
    assert cached_files(tmp_path) == []


def test_converted_data_is_checked(tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    run_tool("qemu-img", "create", "-q", "-f", "qcow2", inner, "1M")
    run_tool("qemu-img", "convert", "-f", "raw", "-O", "vmdk", inner, outer)
    service = FakeImageService()
    service.put("i", outer.read_bytes())
    with pytest.raises(DriverError, match="qcow2"):
        asyncio.run(make_cache(tmp_path, service).get(Image(id="i", disk_format="vmdk"), transfer("i")))
    assert cached_files(tmp_path) == []


def test_unused_image_is_removed(tmp_path: Path) -> None:
    service = FakeImageService()
    cache = make_cache(tmp_path, service)
    images = {}
    for name in ("old", "used", "new"):
        data = name.encode() + DATA
        service.put(name, data)
        images[name] = Image(id=name, hash=f"sha512:{hashlib.sha512(data).hexdigest()}")

    async def scenario() -> None:
        old, used, new = [await cache.get(image, transfer(name)) for name, image in images.items()]
        rest = tmp_path / "_base" / ("0" * 32 + ".part")
        rest.write_bytes(b"half")
        lock = rest.with_suffix(".lock")
        lock.touch()
        for path in (old.path, used.path, rest, lock):
            os.utime(path, (1000, 1000))
        assert await cache.remove_unused({used.path}, 1 << 40) == [rest]
        assert await cache.remove_unused({used.path}, 3600) == [old.path]
        assert cached_files(tmp_path) == sorted([used.path.name, new.path.name])
        # A request for an image marks it as used.
        os.utime(new.path, (1000, 1000))
        await cache.get(images["new"], None)
        assert await cache.remove_unused({used.path}, 3600) == []

    asyncio.run(scenario())


def test_image_being_fetched_is_not_removed(tmp_path: Path) -> None:
    service = FakeImageService()
    service.put("raw-1", DATA)
    cache = make_cache(tmp_path, service)

    async def scenario() -> None:
        service.gate = asyncio.Event()
        fetching = asyncio.create_task(cache.get(RAW, transfer("raw-1")))
        while not list((tmp_path / "_base").glob("*.part")):
            await asyncio.sleep(0.01)
        assert await cache.remove_unused(set(), -10) == []
        service.gate.set()
        await fetching

    (tmp_path / "_base").mkdir()
    asyncio.run(scenario())


def test_uncached_image_without_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="the command has no URL"):
        asyncio.run(make_cache(tmp_path, FakeImageService()).get(RAW, None))
