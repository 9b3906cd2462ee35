"""The host's image cache: fetches and checks images, and keeps them while guests use them.

Raw and qcow2 images keep their format, because both can be base images. So a small upload takes little space however
large its virtual disk is. Other formats are converted to raw. The name of a cached image contains the hash of its data,
so no image is ever mistaken for another one. Files with other names, also those of older releases, are removed when no
guest uses them.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from kilonova import clock, image_hash
from kilonova.disk_space import available_bytes
from kilonova.hosts.drivers.base import DriverError, ImageReplaced, Images
from kilonova.hosts.drivers.libvirt import formats, qemu_img
from kilonova.hosts.drivers.libvirt.connection import in_thread, wait_until_done
from kilonova.hosts.drivers.libvirt.hypervisor import commit_file
from kilonova.hosts.messages import Image, Transfer

log = logging.getLogger(__name__)

_WRITE_BYTES = 1 << 20
_HOLE_BYTES = 1 << 16
_ZEROS = bytes(_HOLE_BYTES)
_LOCK_POLL_SECONDS = 0.05
# A partial download that was not written to for this long is abandoned.
_STALE_PART_SECONDS = 3600.0
_PART, _LOCK = ".part", ".lock"
_CACHE_NAME = re.compile(r"([0-9a-f]{32})-[0-9a-f]{16}\.(raw|qcow2)")
# Also a file that came from another host.
_PEER_NAME = re.compile(r"[0-9a-f]{32}-([0-9a-f]{16}|peer)\.(raw|qcow2)")


@dataclass(frozen=True)
class BaseImage:
    """A cached image that can back disks. `format`: raw or qcow2. `virtual_size`: bytes of the disk in the guest."""

    path: Path
    format: str
    virtual_size: int


class ImageCache:
    """`images`: reads and writes image data. `reserved_gb`: disk space that stays free."""

    def __init__(self, directory: Path, images: Images, reserved_gb: float = 0.0) -> None:
        self.directory = directory
        self.reserved_gb = reserved_gb
        self.images = images

    async def get(self, image: Image, data: Transfer | None) -> BaseImage:
        """Return the image, fetched unless it is cached, and mark it as used."""
        formats.check_formats(image.disk_format, image.container_format)
        if not image.hash and data is not None:
            # A server that booted under an older release. The hash of its image was not recorded.
            image = structs.replace(image, hash=image_hash.of_image(await self.images.show(data)))
        name = _cache_name(image)
        while True:
            found = self._find(name)
            if found is not None:
                return found
            if data is None:
                raise DriverError(f"image {image.id} is not on this host, and the command has no URL for it")
            async with self._lock(name):
                # Another task or process may have fetched it during the wait for the lock.
                if self._find(name) is None:
                    await self._fetch(image, data, name)

    async def get_from_peer(
        self, image: Image | None, source: str, name: str, download: Callable[[Path], Awaitable[None]]
    ) -> Path:
        """Return the base image of a guest of `image` that arrives from the host `source`, which names its file.

        The source is trusted with its own guests only. Its file becomes a cached image if it has the hash of the
        guest's image. Otherwise, for example for a guest that was unshelved, only guests from this source use it.
        """
        if _PEER_NAME.fullmatch(name) is None:
            raise DriverError(f"{source} has a base image {name[:80]!r}, which is not the name of a cached image")
        image = image if image is not None and image.hash and name.startswith(f"{_cache_name(image)}-") else None
        if image is not None and (found := self._find(_cache_name(image))):
            return found.path
        if image is not None and image.disk_format in formats.CONVERTED:
            image = None  # the hash is that of the data before the conversion
        kind = name.rpartition(".")[2]
        stem = _cache_name(image) if image is not None else hashlib.sha256(f"{source} {name}".encode()).hexdigest()[:32]
        path = self.directory / (name if image is not None else f"{stem}-peer.{kind}")
        async with self._lock(stem):
            if path.exists():
                os.utime(path)
                return path
            part = self.directory / f"{stem}{_PART}"
            try:
                await download(part)
                if image is not None:
                    await wait_until_done(in_thread(_check_file, part, image))
                await asyncio.to_thread(formats.check_content, part, kind)
                await wait_until_done(in_thread(commit_file, part, path))
            finally:
                part.unlink(missing_ok=True)
        return path

    async def remove_unused(self, in_use: set[Path], older_than: float) -> list[Path]:
        """Remove images that are not in use and were last used so many seconds ago, and abandoned partial files."""
        removed = []
        for path in self._files():
            age = min(older_than, _STALE_PART_SECONDS) if path.suffix == _PART else older_than
            if path in in_use or not _is_older(path, age):
                continue
            # Acquiring and releasing an unused lock file removes it.
            async with self._lock(_stem(path), wait=False) as acquired:
                # Another task may have used the image before the lock was acquired.
                if acquired and path.suffix != _LOCK and _is_older(path, age):
                    path.unlink(missing_ok=True)
                    removed.append(path)
        return removed

    def _files(self) -> list[Path]:
        try:
            return sorted(self.directory.iterdir())
        except FileNotFoundError:
            return []

    def _find(self, name: str) -> BaseImage | None:
        for path in self.directory.glob(f"{name}-*"):
            match = _CACHE_NAME.fullmatch(path.name)
            if match is None:
                continue
            try:
                os.utime(path)
                found = formats.check_content(path, match[2])
            except FileNotFoundError:
                continue  # removed meanwhile
            assert found.virtual_size is not None
            return BaseImage(path, match[2], found.virtual_size)
        return None

    async def _fetch(self, image: Image, data: Transfer, name: str) -> None:
        shown = await self.images.show(data)
        if shown.get("status") != "active":
            raise DriverError(f"image {image.id} is {shown.get('status')}, not active")
        _check_not_replaced(image, image_hash.of_image(shown))
        part = self.directory / f"{name}{_PART}"
        raw = self.directory / f"{name}.raw{_PART}"
        try:
            self._check_free_space(image, int(shown.get("size") or 0))
            digest = await self._download(image, data, shown, part)
            found = await asyncio.to_thread(formats.check_content, part, image.disk_format)
            kind = "raw" if found.format == "iso" else found.format
            if found.format in formats.CONVERTED:
                await self._convert(image, part, raw)
                kind, complete = "raw", raw
            else:
                complete = part
            await wait_until_done(in_thread(commit_file, complete, self.directory / f"{name}-{digest[:16]}.{kind}"))
        finally:
            for path in (part, raw):
                path.unlink(missing_ok=True)

    async def _download(self, image: Image, data: Transfer, shown: dict[str, Any], part: Path) -> str:
        """Write the file and return its digest, which must be that of the image."""
        digest = _new_hasher(image)
        size, written = shown.get("size"), 0
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            async with aclosing(_join_chunks(self.images.read(data))) as blocks:
                async for block in blocks:
                    written += len(block)
                    if size is not None and written > size:
                        break
                    await wait_until_done(in_thread(_write, file, block, digest))
            file.truncate()
        if size is not None and written != size:
            raise DriverError(f"image {image.id} has {size} bytes, but the image service sent {written}")
        _check_digest(image, digest)
        return digest.hexdigest()

    async def _convert(self, image: Image, source: Path, target: Path) -> None:
        driver = formats.CONVERTED[image.disk_format]
        info = await qemu_img.info(source, driver)
        file_names = [
            extent.get("filename") for extent in info.get("format-specific", {}).get("data", {}).get("extents", ())
        ]
        if info.get("backing-filename") or any(name != str(source) for name in file_names):
            raise formats.UnsafeImage(f"a {image.disk_format} that refers to other files is not supported")
        self._check_free_space(image, int(info["virtual-size"]))
        await qemu_img.convert(source, driver, target, "raw")
        # The converted data is as untrusted as the upload.
        await asyncio.to_thread(formats.check_content, target, "raw")

    def _check_free_space(self, image: Image, size: int) -> None:
        self.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        free = max(available_bytes(self.directory, self.reserved_gb), 0)
        if size > free:
            raise DriverError(f"image {image.id} needs {size} bytes, but only {free} are free on this host")

    @asynccontextmanager
    async def _lock(self, name: str, wait: bool = True) -> AsyncIterator[bool]:
        """Lock an image between tasks and processes. Yields whether it was acquired; a dead process holds no lock."""
        self.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        path = self.directory / f"{name}{_LOCK}"
        while (held := _try_lock(path)) is None and wait:
            await asyncio.sleep(_LOCK_POLL_SECONDS)
        try:
            yield held is not None
        finally:
            if held is not None:
                path.unlink(missing_ok=True)
                os.close(held)


def _cache_name(image: Image) -> str:
    """The first part of the file name. Two images with the same data and format share a file.

    An image without a hash is found by its id: a Glance without hashes never uses an id again.
    """
    key = image.hash or f"id:{image.id}"
    return hashlib.sha256(f"{image.disk_format} {key}".encode()).hexdigest()[:32]


def _stem(path: Path) -> str:
    return path.name[:32]


def _is_older(path: Path, seconds: float) -> bool:
    try:
        return path.stat().st_mtime <= clock.wall() - seconds
    except FileNotFoundError:
        return False


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous holder may have removed the file; then the lock is another file.
        if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _check_not_replaced(image: Image, present: str) -> None:
    if image_hash.is_replaced(image.hash, present):
        raise ImageReplaced(
            f"image {image.id} was replaced: the server was created from data with the hash {image.hash},"
            f" but the image service has {present}"
        )


def _new_hasher(image: Image) -> image_hash.Hasher:
    try:
        return image_hash.new_hasher(image.hash)
    except image_hash.UnsupportedAlgorithm as error:
        raise DriverError(f"the data of image {image.id} cannot be checked: {error}") from None


def _check_digest(image: Image, hasher: image_hash.Hasher) -> None:
    found = f"{image_hash.algorithm_of(image.hash)}:{hasher.hexdigest()}"
    if image.hash and found != image.hash:
        raise ImageReplaced(f"the data of image {image.id} is damaged: its hash is {found}, not {image.hash}")


def _check_file(path: Path, image: Image) -> None:
    hasher = _new_hasher(image)
    with path.open("rb") as file:
        while block := file.read(_WRITE_BYTES):
            hasher.update(block)
    _check_digest(image, hasher)


async def _join_chunks(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Join small chunks into larger ones."""
    block = bytearray()
    try:
        async for chunk in chunks:
            block += chunk
            if len(block) >= _WRITE_BYTES:
                yield bytes(block)
                block.clear()
        if block:
            yield bytes(block)
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


def _write(file: Any, block: bytes, digest: image_hash.Hasher) -> None:
    """Write zeros as holes."""
    digest.update(memoryview(block))
    for start in range(0, len(block), _HOLE_BYTES):
        piece = block[start : start + _HOLE_BYTES]
        if piece == _ZEROS[: len(piece)]:
            file.seek(len(piece), os.SEEK_CUR)
        else:
            file.write(piece)
