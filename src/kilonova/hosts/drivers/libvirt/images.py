"""The images of guests on a host: fetched once, checked, and kept for as long as somebody uses them.

A raw image stays raw and a qcow2 stays qcow2, since guests' disks are laid over either: nothing is expanded, so a small
upload takes little room however large a disk it describes. What neither is becomes raw. The id of an image never gets
other data, so what is here once is right for ever.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kilonova import clock
from kilonova.hosts.drivers.base import DriverError, Images
from kilonova.hosts.drivers.libvirt import formats, programs
from kilonova.hosts.drivers.libvirt.connection import finished, in_thread
from kilonova.hosts.drivers.libvirt.hypervisor import settle
from kilonova.hosts.messages import Image, Transfer

log = logging.getLogger(__name__)

_WRITE_AT_ONCE = 1 << 20
_HOLE = 1 << 16
_ZEROS = bytes(_HOLE)
_LOCK_LOOKS_EVERY = 0.05
# What nobody has written to for so long will not become whole.
_PART_SECONDS = 3600.0
_PART, _LOCK = ".part", ".lock"
_NAME = re.compile(r"([0-9a-f]{32})-[0-9a-f]{16}\.(raw|qcow2)")


@dataclass(frozen=True)
class Base:
    """An image that disks may be laid over. `format`: raw or qcow2; `virtual_size`: bytes as a guest sees it."""

    path: Path
    format: str
    virtual_size: int


class _Hash(Protocol):
    def update(self, data: memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


class ImageCache:
    """`images`: how the data of images is read and written."""

    def __init__(self, directory: Path, images: Images) -> None:
        self.directory = directory
        self.images = images

    async def ensure(self, image: Image, data: Transfer | None) -> Base:
        """The image, fetched if it is not here. It is kept from being tidied away for as long as that takes a file
        that nobody has used."""
        formats.check_names(image.disk_format, image.container_format)
        name = _name(image)
        while True:
            found = self._find(name)
            if found is not None:
                return found
            if data is None:
                raise DriverError(f"image {image.id} is not on this host, and nothing says where to get it")
            async with self._lock(name):
                # Another task or process may have fetched it while this one waited.
                if self._find(name) is None:
                    await self._fetch(image, data, name)

    async def tidy(self, in_use: set[Path], older_than: float) -> list[Path]:
        """Removes what is not in use and was last used so many seconds ago; what a killed process left goes too."""
        removed = []
        for path in self._files():
            age = min(older_than, _PART_SECONDS) if path.suffix == _PART else older_than
            if path in in_use or not _older(path, age):
                continue
            # A lock that nobody holds goes by being taken.
            async with self._lock(_stem(path), wait=False) as mine:
                # Somebody may have begun to use it before it was ours.
                if mine and path.suffix != _LOCK and _older(path, age):
                    path.unlink(missing_ok=True)
                    removed.append(path)
        return removed

    def _files(self) -> list[Path]:
        try:
            return sorted(self.directory.iterdir())
        except FileNotFoundError:
            return []

    def _find(self, name: str) -> Base | None:
        for path in self.directory.glob(f"{name}-*"):
            match = _NAME.fullmatch(path.name)
            if match is None:
                continue
            try:
                os.utime(path)
                found = formats.check(path, match[2])
            except FileNotFoundError:
                continue  # tidied away just now
            assert found.virtual_size is not None
            return Base(path, match[2], found.virtual_size)
        return None

    async def _fetch(self, image: Image, data: Transfer, name: str) -> None:
        shown = await self.images.show(data)
        if shown.get("status") != "active":
            raise DriverError(f"image {image.id} is {shown.get('status')}, not active")
        part = self.directory / f"{name}{_PART}"
        raw = self.directory / f"{name}.raw{_PART}"
        try:
            self._check_room(image, int(shown.get("size") or 0))
            digest = await self._download(image, data, shown, part)
            found = await asyncio.to_thread(formats.check, part, image.disk_format)
            kind = "raw" if found.format == "iso" else found.format
            if found.format in formats.CONVERTED:
                await self._convert(image, part, raw)
                kind, whole = "raw", raw
            else:
                whole = part
            await finished(in_thread(settle, whole, self.directory / f"{name}-{digest[:16]}.{kind}"))
        finally:
            for rest in (part, raw):
                rest.unlink(missing_ok=True)

    async def _download(self, image: Image, data: Transfer, shown: dict[str, Any], part: Path) -> str:
        """Writes the file; its digest, which is the one that the image service tells."""
        digest, told = _digest(image, shown)
        size, written = shown.get("size"), 0
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            async with aclosing(_blocks(self.images.read(data))) as blocks:
                async for block in blocks:
                    written += len(block)
                    if size is not None and written > size:
                        break
                    await finished(in_thread(_write, file, block, digest))
            file.truncate()
        if size is not None and written != size:
            raise DriverError(f"image {image.id} has {size} bytes, but the image service sent {written}")
        found = digest.hexdigest()
        if told and found != told:
            raise DriverError(f"the data of image {image.id} is damaged: its hash is {found}, not {told}")
        return found

    async def _convert(self, image: Image, source: Path, target: Path) -> None:
        driver = formats.CONVERTED[image.disk_format]
        info = await programs.info(source, driver)
        named = [
            extent.get("filename") for extent in info.get("format-specific", {}).get("data", {}).get("extents", ())
        ]
        if info.get("backing-filename") or any(name != str(source) for name in named):
            raise formats.Unsafe(f"a {image.disk_format} that refers to other files cannot be used")
        self._check_room(image, int(info["virtual-size"]))
        await programs.convert(source, driver, target, "raw")
        # What comes out is somebody's upload as much as what went in.
        await asyncio.to_thread(formats.check, target, "raw")

    def _check_room(self, image: Image, size: int) -> None:
        self.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        room = os.statvfs(self.directory)
        free = room.f_bavail * room.f_frsize
        if size > free:
            raise DriverError(f"image {image.id} needs {size} bytes, but only {free} are free on this host")

    @asynccontextmanager
    async def _lock(self, name: str, wait: bool = True) -> AsyncIterator[bool]:
        """Whether it is ours, between tasks and processes; it is gone with its holder."""
        self.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        path = self.directory / f"{name}{_LOCK}"
        while (held := _try_lock(path)) is None and wait:
            await asyncio.sleep(_LOCK_LOOKS_EVERY)
        try:
            yield held is not None
        finally:
            if held is not None:
                path.unlink(missing_ok=True)
                os.close(held)


def _name(image: Image) -> str:
    """Ids of images are text from outside: only their hash becomes a name. The second part is that of the data."""
    return hashlib.sha256(image.id.encode()).hexdigest()[:32]


def _stem(path: Path) -> str:
    return path.name[:32]


def _older(path: Path, seconds: float) -> bool:
    try:
        return path.stat().st_mtime <= clock.now() - seconds
    except FileNotFoundError:
        return False


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Who had it before has removed the file: then it is another one that counts.
        if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _digest(image: Image, shown: dict[str, Any]) -> tuple[_Hash, str]:
    """A new digest, and what it shall come to; nothing if the image service does not say."""
    algorithm, value = shown.get("os_hash_algo"), shown.get("os_hash_value")
    if algorithm and value:
        if algorithm not in hashlib.algorithms_available:
            raise DriverError(f"image {image.id} is hashed by {algorithm}, which this host does not know")
        return hashlib.new(algorithm), str(value)
    if shown.get("checksum"):
        return hashlib.md5(usedforsecurity=False), str(shown["checksum"])
    return hashlib.sha512(), ""


async def _blocks(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Fewer and larger ones."""
    block = bytearray()
    try:
        async for chunk in chunks:
            block += chunk
            if len(block) >= _WRITE_AT_ONCE:
                yield bytes(block)
                block.clear()
        if block:
            yield bytes(block)
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


def _write(file: Any, block: bytes, digest: _Hash) -> None:
    """Zeros become holes."""
    digest.update(memoryview(block))
    for start in range(0, len(block), _HOLE):
        piece = block[start : start + _HOLE]
        if piece == _ZEROS[: len(piece)]:
            file.seek(len(piece), os.SEEK_CUR)
        else:
            file.write(piece)
