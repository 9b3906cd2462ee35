"""Images come to a host once, whole, and stay while somebody uses them."""

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
from tests.hosts.libvirt.support import MIB, Shelf, do, need, transfer


@pytest.fixture(autouse=True)
def _tools() -> None:
    need("qemu-img", "prlimit")


RAW = Image(id="raw-1", disk_format="raw")
DATA = b"boot" + bytes(3 * MIB) + b"end"


def cache_of(tmp_path: Path, shelf: Shelf) -> ImageCache:
    return ImageCache(tmp_path / "_base", shelf)


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "_base").iterdir())


def test_an_image_is_fetched_once_and_zeros_take_no_room(tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.put("raw-1", DATA)
    cache = cache_of(tmp_path, shelf)

    async def scenario() -> None:
        bases = await asyncio.gather(*(cache.ensure(RAW, transfer("raw-1")) for _ in range(8)))
        assert len(set(bases)) == 1
        # What is here is found without asking anybody.
        assert await cache.ensure(RAW, None) == bases[0]
        assert await cache_of(tmp_path, Shelf()).ensure(RAW, transfer("raw-1")) == bases[0]
        base = bases[0]
        assert base.path.read_bytes() == DATA
        assert (base.format, base.virtual_size) == ("raw", len(DATA))
        assert base.path.stat().st_blocks * 512 < MIB
        assert base.path.stat().st_mode & 0o777 == 0o600

    asyncio.run(scenario())
    assert shelf.reads == ["raw-1"]
    assert len(left(tmp_path)) == 1


def test_processes_fetch_an_image_once_as_well(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from kilonova.hosts.drivers.libvirt.images import ImageCache
        from kilonova.hosts.messages import Image
        from tests.hosts.libvirt.support import Shelf, transfer

        shelf = Shelf()
        shelf.put("raw-1", b"boot" * 1_000_000)
        cache = ImageCache(Path(sys.argv[1]), shelf)
        base = asyncio.run(cache.ensure(Image(id="raw-1"), transfer("raw-1")))
        print(len(shelf.reads), base.virtual_size)
        """
    )
    command = [sys.executable, "-c", program, str(tmp_path / "_base")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=60)[0].split() for process in running]
    assert sorted(said) == [["0", "4000000"], ["0", "4000000"], ["1", "4000000"]]
    assert len(left(tmp_path)) == 1


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
def test_what_is_not_as_the_image_service_says_is_refused(tmp_path: Path, facts: dict[str, object], why: str) -> None:
    shelf = Shelf()
    shelf.put("raw-1", DATA, **facts)
    with pytest.raises(DriverError, match=why):
        asyncio.run(cache_of(tmp_path, shelf).ensure(RAW, transfer("raw-1")))
    assert left(tmp_path) == []


def test_an_old_checksum_serves_where_there_is_no_better(tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.put("raw-1", DATA, os_hash_algo=None, os_hash_value=None, checksum=hashlib.md5(DATA).hexdigest())
    assert asyncio.run(cache_of(tmp_path, shelf).ensure(RAW, transfer("raw-1"))).virtual_size == len(DATA)


def test_an_image_that_lies_leaves_nothing(tmp_path: Path) -> None:
    qcow2 = tmp_path / "q"
    do("qemu-img", "create", "-q", "-f", "qcow2", qcow2, "1M")
    shelf = Shelf()
    shelf.put("raw-1", qcow2.read_bytes())
    with pytest.raises(DriverError, match="qcow2"):
        asyncio.run(cache_of(tmp_path, shelf).ensure(RAW, transfer("raw-1")))
    assert left(tmp_path) == []


def test_a_download_that_is_stopped_leaves_nothing_and_the_next_one_takes_over(tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.put("raw-1", DATA)
    cache = cache_of(tmp_path, shelf)

    async def scenario() -> None:
        shelf.gate = asyncio.Event()
        first = asyncio.create_task(cache.ensure(RAW, transfer("raw-1")))
        while not shelf.reads:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(cache.ensure(RAW, transfer("raw-1")))
        await asyncio.sleep(0.1)
        assert shelf.reads == ["raw-1"]
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        shelf.gate.set()
        assert (await second).path.read_bytes() == DATA

    asyncio.run(scenario())
    assert len(left(tmp_path)) == 1


def test_a_qcow2_stays_what_it_is(tmp_path: Path) -> None:
    qcow2 = tmp_path / "q"
    do("qemu-img", "create", "-q", "-f", "qcow2", qcow2, "5M")
    shelf = Shelf()
    shelf.put("q", qcow2.read_bytes())
    base = asyncio.run(cache_of(tmp_path, shelf).ensure(Image(id="q", disk_format="qcow2"), transfer("q")))
    assert (base.format, base.virtual_size) == ("qcow2", 5 * MIB)
    assert base.path.read_bytes() == qcow2.read_bytes()


@pytest.mark.parametrize("kind, driver", [("vmdk", "vmdk"), ("vdi", "vdi"), ("vhd", "vpc"), ("vhdx", "vhdx")])
def test_other_formats_become_raw(tmp_path: Path, kind: str, driver: str) -> None:
    raw, other = tmp_path / "raw", tmp_path / kind
    raw.write_bytes(b"boot".ljust(2 * MIB, b"\1"))
    do("qemu-img", "convert", "-f", "raw", "-O", driver, raw, other)
    shelf = Shelf()
    shelf.put("i", other.read_bytes())
    base = asyncio.run(cache_of(tmp_path, shelf).ensure(Image(id="i", disk_format=kind), transfer("i")))
    assert base.format == "raw"
    assert base.path.read_bytes()[: 2 * MIB] == raw.read_bytes()
    assert len(left(tmp_path)) == 1


def test_a_small_upload_of_a_huge_disk_is_not_expanded(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    do("qemu-img", "create", "-q", "-f", "vdi", huge, str(shutil.disk_usage(tmp_path).free * 2))
    shelf = Shelf()
    shelf.put("i", huge.read_bytes())
    with pytest.raises(DriverError, match="free on this host"):
        asyncio.run(cache_of(tmp_path, shelf).ensure(Image(id="i", disk_format="vdi"), transfer("i")))
    assert left(tmp_path) == []


def test_what_a_disk_hides_within_another_format_is_found(tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    do("qemu-img", "create", "-q", "-f", "qcow2", inner, "1M")
    do("qemu-img", "convert", "-f", "raw", "-O", "vmdk", inner, outer)
    shelf = Shelf()
    shelf.put("i", outer.read_bytes())
    with pytest.raises(DriverError, match="qcow2"):
        asyncio.run(cache_of(tmp_path, shelf).ensure(Image(id="i", disk_format="vmdk"), transfer("i")))
    assert left(tmp_path) == []


def test_an_image_that_nobody_uses_goes_after_a_while(tmp_path: Path) -> None:
    shelf = Shelf()
    cache = cache_of(tmp_path, shelf)
    for name in ("old", "used", "new"):
        shelf.put(name, DATA)

    async def scenario() -> None:
        old, used, new = [await cache.ensure(Image(id=name), transfer(name)) for name in ("old", "used", "new")]
        rest = tmp_path / "_base" / ("0" * 32 + ".part")
        rest.write_bytes(b"half")
        lock = rest.with_suffix(".lock")
        lock.touch()
        for path in (old.path, used.path, rest, lock):
            os.utime(path, (1000, 1000))
        assert await cache.tidy({used.path}, 1 << 40) == [rest]
        assert await cache.tidy({used.path}, 3600) == [old.path]
        assert left(tmp_path) == sorted([used.path.name, new.path.name])
        # Whoever asks for one uses it, which keeps it.
        os.utime(new.path, (1000, 1000))
        await cache.ensure(Image(id="new"), None)
        assert await cache.tidy({used.path}, 3600) == []

    asyncio.run(scenario())


def test_what_is_being_fetched_is_not_tidied_away(tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.put("raw-1", DATA)
    cache = cache_of(tmp_path, shelf)

    async def scenario() -> None:
        shelf.gate = asyncio.Event()
        fetching = asyncio.create_task(cache.ensure(RAW, transfer("raw-1")))
        while not list((tmp_path / "_base").glob("*.part")):
            await asyncio.sleep(0.01)
        assert await cache.tidy(set(), -10) == []
        shelf.gate.set()
        await fetching

    (tmp_path / "_base").mkdir()
    asyncio.run(scenario())


def test_without_an_address_an_image_cannot_be_fetched(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="nothing says where"):
        asyncio.run(cache_of(tmp_path, Shelf()).ensure(RAW, None))
