"""Keeps the daemon's exports in line with the database: one export for every attachment by NBD.

Routes that change attachments call `sync` after the transaction and before the response. `watch` synchronizes after a
crash, and restarts a dead daemon.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from hashlib import blake2s
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from kilonova.volume.exports.daemon import Address, Daemon, DaemonError, Refusal, Session
from kilonova.volume.files import OnProgress, VolumeFiles

if TYPE_CHECKING:
    from kilonova.config import Config
    from kilonova.store import Database, Row

log = logging.getLogger(__name__)

DRIVER = "nbd"
# Key in the connector of a host that uses NBD.
CONNECTOR_KEY = "kilonova_nbd"
_WATCH_SECONDS = 1.0
# Number of checks of the daemon after which all exports are compared.
_CHECKS_PER_SYNC = 15
_COPY_POLL_SECONDS = 0.2
_CLOSE_TIMEOUT_SECONDS = 5.0
# Bytes per second of a copy; 0 is unlimited.
_COPY_SPEED = 0

_EXPORTED_ATTACHMENTS = """
SELECT a.mode, a.connection, v.id, v.data_id FROM volume_attachments a JOIN volumes v ON v.id = a.volume_id
WHERE a.connection LIKE '%"driver_volume_type":"nbd"%' AND v.data_id IS NOT NULL AND v.status <> 'deleting'
"""
# Key in the connection info of a client that must use TLS.
TLS = "tls"
_WITH_TLS = """
SELECT COUNT(*) FROM volume_attachments
WHERE connection LIKE '%"driver_volume_type":"nbd"%' AND connection LIKE '%"tls":true%'
"""
_WITHOUT_TLS = """
SELECT COUNT(*) FROM volume_attachments
WHERE connection LIKE '%"driver_volume_type":"nbd"%' AND connection NOT LIKE '%"tls":true%'
"""


class Export(NamedTuple):
    """The export of a volume's content for one attachment."""

    volume_id: str
    data_id: str
    name: str
    writable: bool
    secure: bool = False

    @property
    def node(self) -> str:
        return node_of(self.volume_id, self.data_id)

    @property
    def ident(self) -> str:
        """Identifies the export: two exports with equal fields are the same."""
        text = f"{self.node} {self.name} {self.writable}"
        return f"x{_digest(text, 16)}"


def _export_of(row: Row, connection: dict[str, str]) -> Export:
    return Export(row["id"], row["data_id"], connection["export"], row["mode"] != "ro", bool(connection.get(TLS)))


def new_name(attachment_id: str) -> str:
    """The attachment's id for operators, and a secret part."""
    return f"{attachment_id}-{secrets.token_urlsafe(24)}"


def is_export(connection: Mapping[str, object] | None) -> bool:
    """Whether the connection of an attachment uses NBD."""
    return connection is not None and connection.get("driver_volume_type") == DRIVER


def node_of(volume_id: str, data_id: str) -> str:
    """The name of the QEMU node. Its length is limited, so the volume's id is encoded and the content's id hashed."""
    return f"{_prefix(volume_id)}{_digest(data_id, 3)}"


def _prefix(volume_id: str) -> str:
    return "v" + base64.urlsafe_b64encode(uuid.UUID(volume_id).bytes).decode().rstrip("=") + "."


class Busy(DaemonError):
    """The volume is being copied."""


class TlsMismatch(DaemonError):
    """Attachments of the other TLS mode exist. The daemon serves only one mode at a time."""

    def __init__(self, number: int, secure: bool) -> None:
        mode, change = ("with", "off") if secure else ("without", "on")
        super().__init__(
            f"{number} attachments {mode} TLS exist from before TLS was switched {change}; new exports are possible"
            " when these attachments are deleted"
        )


class ExportManager:
    def __init__(self, config: Config, db: Database) -> None:
        self._db = db
        self._daemon = Daemon.of(config)
        self._files = VolumeFiles.of(config)

    @property
    def was_used(self) -> bool:
        """Whether a volume was ever exported from this data directory."""
        return self._daemon.was_used

    async def address(self) -> Address:
        """The address of the NBD server. Raises DaemonError."""
        idle = not self._daemon.is_alive() and not await self._wanted()
        return self._daemon.address(unless_taken=idle)

    async def is_secure(self) -> bool:
        """Whether clients of new exports must use TLS. Raises TlsMismatch."""
        secure = self._daemon.is_secure
        if others := await self._count_other_mode():
            raise TlsMismatch(others, not secure)
        return secure

    async def _count_other_mode(self) -> int:
        """The number of attachments of the TLS mode that is not configured."""
        return int(await self._db.fetch_value(_WITHOUT_TLS if self._daemon.is_secure else _WITH_TLS))

    # Synchronization

    async def sync(self, volume_id: str) -> None:
        """Update the exports of the volume to match the database. Raises DaemonError."""
        if not self._daemon.was_used and not await self._wanted(volume_id):
            return
        async with self._session(volume_id) as (session, wanted):
            if session is not None:
                await self._update(session, wanted, _prefix(volume_id))

    async def sync_all(self, *, renew: bool = False) -> None:
        """Update the exports of all volumes. A daemon without exports and copies is stopped.

        With `renew` a daemon with outdated certificates is replaced.
        """
        if not self._daemon.was_used and not await self._wanted():
            return
        async with self._session(None, renew) as (session, wanted):
            if session is None:
                return
            await self._update(session, wanted, "")
            await self._delete_nodes(session, keep={export.node for export in wanted})
            if not wanted and not await session.nodes():
                await session.quit()

    async def recover(self) -> None:
        """Restore the exports at start. Errors are only logged: `watch` tries again."""
        try:
            if others := await self._count_other_mode():
                log.error("%s", TlsMismatch(others, not self._daemon.is_secure))
            await self.sync_all(renew=True)
            await self._daemon.check()
        except DaemonError as error:
            log.error("volumes cannot be exported: %s", error)

    async def watch(self) -> None:
        """Keep the daemon running with the right exports, until cancelled."""
        check, failing = 0, False
        while True:
            try:
                if self._daemon.was_used and (check % _CHECKS_PER_SYNC == 0 or not self._daemon.is_alive()):
                    await self.sync_all()
                failing = False
            except Exception as error:  # keep watching
                if not failing:
                    log.error("volumes cannot be exported: %s", error, exc_info=not isinstance(error, DaemonError))
                failing = True
            check += 1
            await asyncio.sleep(_WATCH_SECONDS)

    async def close(self) -> None:
        """A daemon with exports keeps running."""
        with suppress(DaemonError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_SECONDS):
                await self.sync_all()

    @asynccontextmanager
    async def suspended(self, volume_id: str) -> AsyncIterator[None]:
        """Close the volume's file in the daemon during the block. Clients wait and reconnect afterwards.

        Raises Busy while the volume is being copied, or DaemonError.
        """
        async with self._daemon.session(start=False) as session:
            if session is None:
                yield
                return
            if await _jobs(session, volume_id):
                raise Busy("the volume is being copied")
            try:
                await self._close_file(session, volume_id)
                yield
            finally:
                await self._update(session, await self._wanted(volume_id), _prefix(volume_id))

    async def _close_file(self, session: Session, volume_id: str) -> None:
        exports = await session.exports()
        await session.remove_exports({ident for ident, node in exports.items() if node.startswith(_prefix(volume_id))})
        for node in await session.nodes():
            if node.startswith(_prefix(volume_id)):
                await session.execute("blockdev-del", node_name=node)

    @asynccontextmanager
    async def _session(
        self, volume_id: str | None, renew: bool = False
    ) -> AsyncIterator[tuple[Session | None, list[Export]]]:
        """The wanted exports are read under the lock, so that a later session has newer data."""
        wanted = await self._wanted(volume_id)
        # Existing attachments determine the TLS mode. With attachments of both modes, it is the configured one.
        configured = self._daemon.is_secure
        secure = configured if any(export.secure is configured for export in wanted) else not configured
        async with self._daemon.session(start=bool(wanted), secure=secure, renew=renew) as session:
            yield session, await self._wanted(volume_id)

    async def _update(self, session: Session, wanted: list[Export], prefix: str) -> None:
        """Remove and add exports of nodes with the prefix. Tries all of them, then raises the first error."""
        existing = {ident: node for ident, node in (await session.exports()).items() if node.startswith(prefix)}
        by_ident = {export.ident: export for export in wanted}
        obsolete = existing.keys() - by_ident.keys()
        if obsolete:
            await session.remove_exports(obsolete)
        errors: list[Refusal] = []
        for ident, export in by_ident.items():
            if ident not in existing:
                try:
                    await self._add(session, export)
                except Refusal as error:
                    errors.append(error)
        for node in {existing[ident] for ident in obsolete} - {export.node for export in wanted}:
            with suppress(Refusal):  # the node is being copied
                await session.execute("blockdev-del", node_name=node)
        if errors:
            raise errors[0]

    async def _add(self, session: Session, export: Export) -> None:
        path = self._files.volume(export.volume_id, export.data_id)
        if not path.exists():
            log.error("volume %s cannot be exported: its content is missing", export.volume_id)
            return
        await self._open(session, export.node, path)
        await session.execute(
            "block-export-add",
            type=DRIVER,
            id=export.ident,
            node_name=export.node,
            name=export.name,
            writable=export.writable,
        )

    async def _open(self, session: Session, node: str, path: Path) -> None:
        """Open the file with the page cache: only flushed writes are on the disk."""
        try:
            await session.execute("blockdev-add", driver="file", node_name=node, filename=str(path), discard="unmap")
        except Refusal:
            if node not in await session.nodes():
                raise

    async def _delete_nodes(self, session: Session, keep: set[str]) -> None:
        for node in await session.nodes() - keep:
            if node.startswith("v"):
                with suppress(Refusal):
                    await session.execute("blockdev-del", node_name=node)

    async def _wanted(self, volume_id: str | None = None) -> list[Export]:
        if volume_id is None:
            rows = await self._db.fetch(_EXPORTED_ATTACHMENTS)
        else:
            rows = await self._db.fetch(f"{_EXPORTED_ATTACHMENTS} AND v.id = $1", volume_id)
        connections = [orjson.loads(row["connection"]) for row in rows]
        found = zip(rows, connections, strict=True)
        return [_export_of(row, connection) for row, connection in found if is_export(connection)]

    # Copies of volumes in use

    async def copy(
        self, job: str, volume_id: str, data_id: str, target: Path, size: int, on_progress: OnProgress
    ) -> bool:
        """Copy the volume, as it is at the end of the copy, to the file of `size` bytes. False if it is not exported.

        A file that cannot be written does not disturb the volume's clients. `job` names the copy. A copy of the same
        name from an earlier run is stopped first.
        """
        ident = f"{_job_prefix(volume_id)}{_digest(job, 8)}"
        while (begun := await self._begin_copy(ident, volume_id, data_id, target, size)) is None:
            await asyncio.sleep(_COPY_POLL_SECONDS)  # another copy is running
        if not begun:
            return False
        try:
            while (done := await self._copied(ident)) is not None:
                await on_progress(done)
                await asyncio.sleep(_COPY_POLL_SECONDS)
        finally:
            await asyncio.shield(self._end_copy(ident))
        return True

    async def _begin_copy(self, ident: str, volume_id: str, data_id: str, target: Path, size: int) -> bool | None:
        """False if the volume is not exported, None while another copy of it is running."""
        node, prefix = node_of(volume_id, data_id), _prefix(volume_id)
        async with self._daemon.session(start=False) as session:
            if session is None or not any(name.startswith(prefix) for name in (await session.exports()).values()):
                return False
            await self._stop_copy(session, ident)
            if await _jobs(session, volume_id):
                return None
            nodes = {info["node-name"]: info for info in await session.execute("query-named-block-nodes", flat=True)}
            length = int(nodes[node]["image"]["virtual-size"])
            if length > size:
                return False
            lower = {"driver": "file", "filename": str(target), "discard": "unmap"}
            await session.execute("blockdev-add", driver="raw", node_name=_target_node(ident), size=length, file=lower)
            await session.execute(
                "blockdev-mirror",
                job_id=ident,
                device=node,
                target=_target_node(ident),
                sync="full",
                # Guarantees an end of the copy, however much clients write.
                copy_mode="write-blocking",
                speed=_COPY_SPEED,
                # Exports are on the filter node meanwhile. Its prefix identifies the volume.
                filter_node_name=f"{prefix}{_digest(ident, 3)}f",
                auto_dismiss=False,
            )
        return True

    async def _copied(self, ident: str) -> int | None:
        """The number of bytes copied, None at the end. Raises DaemonError if the copy failed."""
        async with self._daemon.session(start=False) as session:
            found = await _find_job(session, ident) if session is not None else None
            if session is not None and found is not None and found["status"] == "ready":
                # Source and target are equal: end the mirror.
                await session.execute("block-job-cancel", device=ident)
        if found is None:
            raise DaemonError("the copy of the volume was interrupted")
        if found.get("error"):
            raise DaemonError(f"the copy of the volume failed: {found['error']}")
        return None if found["status"] == "concluded" else int(found["current-progress"])

    async def stop_copy(self, job: str) -> None:
        """Stop the copy of any volume with this name. A missing or completed copy is ignored."""
        if not self._daemon.was_used:
            return
        async with self._daemon.session(start=False) as session:
            for running in await session.execute("query-jobs") if session is not None else ():
                if session is not None and running["id"].endswith(f".{_digest(job, 8)}"):
                    await self._stop_copy(session, running["id"])

    async def _end_copy(self, ident: str) -> None:
        async with self._daemon.session(start=False) as session:
            if session is not None:
                await self._stop_copy(session, ident)

    async def _stop_copy(self, session: Session, ident: str) -> None:
        while found := await _find_job(session, ident):
            with suppress(Refusal):  # the job has just ended
                await session.execute("job-dismiss" if found["status"] == "concluded" else "job-cancel", id=ident)
            await asyncio.sleep(0.01)
        with suppress(Refusal):
            await session.execute("blockdev-del", node_name=_target_node(ident))


async def _find_job(session: Session, ident: str) -> dict[str, Any] | None:
    return next((job for job in await session.execute("query-jobs") if job["id"] == ident), None)


async def _jobs(session: Session, volume_id: str) -> list[str]:
    """The running copies of the volume."""
    jobs = [job for job in await session.execute("query-jobs") if job["status"] != "concluded"]
    return [job["id"] for job in jobs if job["id"].startswith(_job_prefix(volume_id))]


def _job_prefix(volume_id: str) -> str:
    return f"c{_prefix(volume_id)}"


def _target_node(ident: str) -> str:
    return f"t{_digest(ident, 15)}"


def _digest(text: str, size: int) -> str:
    return blake2s(text.encode(), digest_size=size).hexdigest()
