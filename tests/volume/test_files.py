"""Files of volumes: sparse, complete or absent, and written in blocks."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from kilonova.volume import conversion
from kilonova.volume.files import BLOCK, HOLE, NewFile, TooBig, VolumeFiles, check_space
from tests.support import run
from tests.support.small_disk import free_bytes, small_disk

MIB = 1 << 20


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def ignore(done: int) -> None:
    pass


def test_zeros_become_holes(tmp_path: Path) -> None:
    files, place = VolumeFiles(tmp_path), tmp_path / "v.d"
    content = b"a" * 10 + bytes(3 * BLOCK) + b"b" * HOLE + bytes(BLOCK // 2)

    async def scenario() -> None:
        async with files.create(place, 8 * MIB) as file:
            assert await file.fill(chunks(content[:7], content[7:BLOCK], content[BLOCK:]), ignore) == len(content)

    run(scenario())
    assert place.read_bytes() == content + bytes(8 * MIB - len(content))
    assert place.stat().st_blocks * 512 <= 4 * HOLE


def test_copy_is_limited_to_the_size_of_the_target(tmp_path: Path) -> None:
    """The source is larger than the target: the volume was extended after the request for a snapshot."""
    files, source, place = VolumeFiles(tmp_path), tmp_path / "source", tmp_path / "v.d"
    with source.open("wb") as file:
        os.truncate(file.fileno(), 9 * MIB)
        for at in (0, 4 * MIB - 5, 8 * MIB):
            os.pwrite(file.fileno(), b"0123456789", at)

    async def scenario() -> None:
        async with files.create(place, 4 * MIB) as file:
            await file.copy(source, ignore)

    run(scenario())
    assert place.read_bytes() == source.read_bytes()[: 4 * MIB]


def test_too_big_content_leaves_no_file(tmp_path: Path) -> None:
    files = VolumeFiles(tmp_path)

    async def scenario() -> None:
        with pytest.raises(TooBig):
            async with files.create(tmp_path / "v.d", BLOCK) as file:
                await file.fill(chunks(b"a" * BLOCK, b"b"), ignore)

    run(scenario())
    assert files.names() == []


def test_zeros_beyond_the_end_are_ignored(tmp_path: Path) -> None:
    """Padded images end in zeros."""
    files, place = VolumeFiles(tmp_path), tmp_path / "v.d"

    async def scenario() -> None:
        async with files.create(place, BLOCK) as file:
            await file.fill(chunks(b"a", bytes(2 * BLOCK)), ignore)

    run(scenario())
    assert place.read_bytes() == b"a" + bytes(BLOCK - 1)


def test_cancelled_writer_leaves_no_file(tmp_path: Path) -> None:
    files = VolumeFiles(tmp_path)
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"a" * BLOCK
            begun.set()

    async def write() -> None:
        async with files.create(tmp_path / "v.d", 1 << 40) as file:
            await file.fill(endless(), ignore)

    async def scenario() -> None:
        task = asyncio.create_task(write())
        await begun.wait()
        assert files.names() == ["v.d"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario())
    assert files.names() == []


def test_content_is_not_held_in_memory(tmp_path: Path) -> None:
    files, place = VolumeFiles(tmp_path), tmp_path / "v.d"
    size = 64 * MIB

    async def stream() -> AsyncIterator[bytes]:
        for _ in range(size // HOLE):
            yield os.urandom(HOLE)

    async def scenario() -> None:
        async with files.create(place, size) as file:
            await file.fill(stream(), ignore)
        async with files.create(tmp_path / "v.copy", size) as file:
            await file.copy(place, ignore)

    tracemalloc.start()
    run(scenario())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * BLOCK
    assert place.read_bytes() == (tmp_path / "v.copy").read_bytes()


def test_content_leaves_the_reserve_of_the_disk_free(tmp_path: Path) -> None:
    source, sparse = tmp_path / "source", tmp_path / "sparse"
    source.write_bytes(b"x" * 5 * MIB)
    with sparse.open("wb") as file:
        file.truncate(64 * MIB)
        os.pwrite(file.fileno(), b"x" * MIB, 40 * MIB)
    directory = tmp_path / "volumes"
    files = VolumeFiles(directory, reserved_gb=8 / 1024)

    async def refused(fill: Callable[[NewFile], Awaitable[object]]) -> None:
        with pytest.raises(TooBig, match="not enough disk space"):
            async with files.create(directory / "v.refused", 64 * MIB) as file:
                await fill(file)
        assert files.names() == ["v.kept"]

    async def scenario() -> None:
        async with files.create(directory / "v.kept", 64 * MIB) as file:
            await file.copy(sparse, ignore)
        await refused(lambda file: file.copy(source, ignore))
        await refused(lambda file: file.fill(chunks(*[b"x" * MIB] * 5), ignore))
        assert free_bytes(directory) >= 11 * MIB
        (directory / "other").write_bytes(b"x" * 5 * MIB)

        async def nothing(file: NewFile) -> None:
            pass

        # Less than the reserve is free: not even an empty volume is created, nor an existing one extended.
        await refused(nothing)
        with pytest.raises(TooBig, match="not enough disk space"):
            check_space(directory, 0, files.reserved_gb)

    with small_disk(directory, 13):
        run(scenario())


def test_converted_image_leaves_the_reserve_of_the_disk_free(tmp_path: Path) -> None:
    """The data of a compressed qcow2 is larger than its file."""
    if shutil.which("qemu-img") is None:
        pytest.skip("qemu-img is not installed")
    raw, packed = tmp_path / "raw", tmp_path / "packed"
    raw.write_bytes(b"x" * 16 * MIB)
    subprocess.run(["qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", raw, packed], check=True)
    assert packed.stat().st_size < MIB
    assert 16 * MIB <= run(conversion.data_bytes(packed, "qcow2")) < 18 * MIB
