"""What the daemon exports is kept as the database says: every attachment whose connection is by NBD, and nothing else.

Whoever changes an attachment has the volume's exports brought in line after the transaction, and answers only then.
What a crash has left in between, and a daemon that died, are found by `watch`.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import blake2s
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from kilonova.volume.exports.daemon import Address, Daemon, DaemonError, Refusal, Session
from kilonova.volume.files import VolumeFiles

if TYPE_CHECKING:
    from kilonova.config import Config
    from kilonova.store import Database, Row

log = logging.getLogger(__name__)

DRIVER = "nbd"
# What a host says of itself that wants volumes by NBD.
WISH = "kilonova_nbd"
_WATCH_SECONDS = 1.0
# After so many looks at the daemon everything is compared.
_LOOKS = 15
_COPY_LOOK_SECONDS = 0.2
_CLOSE_SECONDS = 5.0
# Of copies, in bytes a second; as fast as it goes.
_SPEED = 0

_WANTED = """
SELECT a.mode, a.connection, v.id, v.data_id FROM volume_attachments a JOIN volumes v ON v.id = a.volume_id
WHERE a.connection LIKE '%"driver_volume_type":"nbd"%' AND v.data_id IS NOT NULL AND v.status <> 'deleting'
"""
# What the connection of a client says that has to speak TLS.
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
    """One attachment's way to the content of a volume."""

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
        """All that it is, so that one that is there is the right one."""
        text = f"{self.node} {self.name} {self.writable}"
        return f"x{_digest(text, 16)}"


def _export_of(row: Row, way: dict[str, Any]) -> Export:
    return Export(row["id"], row["data_id"], way["export"], row["mode"] != "ro", bool(way.get(TLS)))


def new_name(attachment_id: str) -> str:
    """The attachment's id for people, and a part that nobody guesses."""
    return f"{attachment_id}-{secrets.token_urlsafe(24)}"


def is_export(row: Row) -> bool:
    """Whether the attachment is one by NBD."""
    return bool(row["connection"]) and orjson.loads(row["connection"]).get("driver_volume_type") == DRIVER


def node_of(volume_id: str, data_id: str) -> str:
    """QEMU's names are short: the volume's id in fewer letters, and enough of the content's."""
    return f"{_prefix(volume_id)}{_digest(data_id, 3)}"


def _prefix(volume_id: str) -> str:
    return "v" + base64.urlsafe_b64encode(uuid.UUID(volume_id).bytes).decode().rstrip("=") + "."


class Busy(DaemonError):
    """Not as long as the volume is copied."""


class Unlike(DaemonError):
    """Not as long as there are attachments of before TLS was switched on or off: the daemon speaks one way alone."""

    def __init__(self, number: int, secure: bool) -> None:
        how, then = ("with", "off") if secure else ("without", "on")
        super().__init__(
            f"volumes are exported {how} TLS to {number} attachments of before that was switched {then}, and to no"
            " others until these are gone"
        )


class Keeper:
    def __init__(self, config: Config, db: Database) -> None:
        self._db = db
        self._daemon = Daemon.of(config)
        self._files = VolumeFiles.of(config)

    @property
    def was_used(self) -> bool:
        """Whether anything was ever exported here."""
        return self._daemon.was_used

    async def address(self) -> Address:
        """Where hosts find exports. Raises DaemonError."""
        idle = not self._daemon.is_alive() and not await self._wanted()
        return self._daemon.address(unless_taken=idle)

    async def is_secure(self) -> bool:
        """Whether who gets an export now has to speak TLS. Raises Unlike."""
        secure = self._daemon.is_secure
        if others := await self._unlike():
            raise Unlike(others, not secure)
        return secure

    async def _unlike(self) -> int:
        """How many attachments are there of the way that is not configured."""
        return int(await self._db.fetch_value(_WITHOUT_TLS if self._daemon.is_secure else _WITH_TLS))

    # Keeping in line

    async def sync(self, volume_id: str) -> None:
        """Have the volume exported as the database says when this returns. Raises DaemonError."""
        if not self._daemon.was_used and not await self._wanted(volume_id):
            return
        async with self._session(volume_id) as (session, wanted):
            if session is not None:
                await self._settle(session, wanted, _prefix(volume_id))

    async def sync_all(self, *, renew: bool = False) -> None:
        """The same for all volumes. A daemon that has nothing to do ends.

        With `renew` one with other certificates than those of now is replaced.
        """
        if not self._daemon.was_used and not await self._wanted():
            return
        async with self._session(None, renew) as (session, wanted):
            if session is None:
                return
            await self._settle(session, wanted, "")
            await self._drop_nodes(session, keep={export.node for export in wanted})
            if not wanted and not await session.nodes():
                await session.quit()

    async def recover(self) -> None:
        """For a start: `watch` tries what cannot be done now."""
        try:
            if others := await self._unlike():
                log.error("%s", Unlike(others, not self._daemon.is_secure))
            await self.sync_all(renew=True)
            await self._daemon.check()
        except DaemonError as error:
            log.error("volumes cannot be exported: %s", error)

    async def watch(self) -> None:
        """Has the daemon run and export what it should, until cancelled."""
        look, silent = 0, False
        while True:
            try:
                if self._daemon.was_used and (look % _LOOKS == 0 or not self._daemon.is_alive()):
                    await self.sync_all()
                silent = False
            except Exception as error:  # nothing else would try again
                if not silent:
                    log.error("volumes cannot be exported: %s", error, exc_info=not isinstance(error, DaemonError))
                silent = True
            look += 1
            await asyncio.sleep(_WATCH_SECONDS)

    async def close(self) -> None:
        """A daemon that exports something goes on without us."""
        with suppress(DaemonError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.sync_all()

    @asynccontextmanager
    async def suspended(self, volume_id: str) -> AsyncIterator[None]:
        """The volume's file is nobody's in the block. Clients wait, and come back to what it is then.

        Raises Busy while a copy is made of it, or DaemonError.
        """
        async with self._daemon.session(start=False) as session:
            if session is None:
                yield
                return
            if await _jobs(session, volume_id):
                raise Busy("the volume is being copied")
            try:
                await self._close(session, volume_id)
                yield
            finally:
                await self._settle(session, await self._wanted(volume_id), _prefix(volume_id))

    async def _close(self, session: Session, volume_id: str) -> None:
        there = {
            ident: node for ident, node in (await session.exports()).items() if node.startswith(_prefix(volume_id))
        }
        await session.remove_exports(set(there))
        for node in await session.nodes():
            if node.startswith(_prefix(volume_id)):
                await session.do("blockdev-del", node_name=node)

    @asynccontextmanager
    async def _session(
        self, volume_id: str | None, renew: bool = False
    ) -> AsyncIterator[tuple[Session | None, list[Export]]]:
        """What is wanted is read in one's turn: whoever comes later has read something newer."""
        wanted = await self._wanted(volume_id)
        # Those who have exports say how they speak. If that differs, it is as configured.
        configured = self._daemon.is_secure
        secure = configured if any(one.secure is configured for one in wanted) else not configured
        async with self._daemon.session(start=bool(wanted), secure=secure, renew=renew) as session:
            yield session, await self._wanted(volume_id)

    async def _settle(self, session: Session, wanted: list[Export], prefix: str) -> None:
        """All that can be done is done, whatever cannot."""
        there = {ident: node for ident, node in (await session.exports()).items() if node.startswith(prefix)}
        missing = {export.ident: export for export in wanted}
        gone = there.keys() - missing.keys()
        if gone:
            await session.remove_exports(gone)
        troubles: list[Refusal] = []
        for ident, export in missing.items():
            if ident not in there:
                try:
                    await self._add(session, export)
                except Refusal as error:
                    troubles.append(error)
        for node in {there[ident] for ident in gone} - {export.node for export in wanted}:
            with suppress(Refusal):  # a copy is being made of it
                await session.do("blockdev-del", node_name=node)
        if troubles:
            raise troubles[0]

    async def _add(self, session: Session, export: Export) -> None:
        path = self._files.volume(export.volume_id, export.data_id)
        if not path.exists():
            log.error("volume %s cannot be exported: its content is missing", export.volume_id)
            return
        await self._open(session, export.node, path)
        await session.do(
            "block-export-add",
            type=DRIVER,
            id=export.ident,
            node_name=export.node,
            name=export.name,
            writable=export.writable,
        )

    async def _open(self, session: Session, node: str, path: Path) -> None:
        """What clients have flushed is on the disk; what they have not may be in the machine's memory."""
        try:
            await session.do("blockdev-add", driver="file", node_name=node, filename=str(path), discard="unmap")
        except Refusal:
            if node not in await session.nodes():
                raise

    async def _drop_nodes(self, session: Session, keep: set[str]) -> None:
        for node in await session.nodes() - keep:
            if node.startswith("v"):
                with suppress(Refusal):
                    await session.do("blockdev-del", node_name=node)

    async def _wanted(self, volume_id: str | None = None) -> list[Export]:
        if volume_id is None:
            rows = await self._db.fetch(_WANTED)
        else:
            rows = await self._db.fetch(f"{_WANTED} AND v.id = $1", volume_id)
        return [_export_of(row, orjson.loads(row["connection"])) for row in rows if is_export(row)]

    # Copies of volumes that are written to meanwhile

    async def copy(
        self, job: str, volume_id: str, data_id: str, target: Path, size: int, moved: Callable[[int], Awaitable[None]]
    ) -> bool:
        """Write to the file, which has `size` bytes, what the volume has at one moment: the one when all is written.

        False: no host reaches the volume. A file that cannot be written is no trouble for those who do.

        `job` names the copy, and one that an earlier run has left under the same name is stopped first.
        """
        ident = f"{_jobs_of(volume_id)}{_digest(job, 8)}"
        while (begun := await self._begin_copy(ident, volume_id, data_id, target, size)) is None:
            await asyncio.sleep(_COPY_LOOK_SECONDS)  # another one is being made
        if not begun:
            return False
        try:
            while (done := await self._copied(ident)) is not None:
                await moved(done)
                await asyncio.sleep(_COPY_LOOK_SECONDS)
        finally:
            await asyncio.shield(self._end_copy(ident))
        return True

    async def _begin_copy(self, ident: str, volume_id: str, data_id: str, target: Path, size: int) -> bool | None:
        node, prefix = node_of(volume_id, data_id), _prefix(volume_id)
        async with self._daemon.session(start=False) as session:
            if session is None or not any(one.startswith(prefix) for one in (await session.exports()).values()):
                return False
            await self._stop_copy(session, ident)
            if await _jobs(session, volume_id):
                return None
            known = {one["node-name"]: one for one in await session.do("query-named-block-nodes", flat=True)}
            length = int(known[node]["image"]["virtual-size"])
            if length > size:
                return False
            lower = {"driver": "file", "filename": str(target), "discard": "unmap"}
            await session.do("blockdev-add", driver="raw", node_name=_target(ident), size=length, file=lower)
            await session.do(
                "blockdev-mirror",
                job_id=ident,
                device=node,
                target=_target(ident),
                sync="full",
                # However much is written meanwhile, it comes to an end.
                copy_mode="write-blocking",
                speed=_SPEED,
                # Exports sit on it meanwhile, and are to be known as the volume's.
                filter_node_name=f"{prefix}{_digest(ident, 3)}f",
                auto_dismiss=False,
            )
        return True

    async def _copied(self, ident: str) -> int | None:
        """How many bytes; None when all are. Raises DaemonError where it broke off."""
        async with self._daemon.session(start=False) as session:
            found = await _find_job(session, ident) if session is not None else None
            if session is not None and found is not None and found["status"] == "ready":
                # Both are the same, and part here.
                await session.do("block-job-cancel", device=ident)
        if found is None:
            raise DaemonError("the copy of the volume was broken off")
        if found.get("error"):
            raise DaemonError(f"the copy of the volume failed: {found['error']}")
        return None if found["status"] == "concluded" else int(found["current-progress"])

    async def stop_copy(self, job: str) -> None:
        """Of whichever volume. None is fine, and so is one that is done."""
        if not self._daemon.was_used:
            return
        async with self._daemon.session(start=False) as session:
            for one in await session.do("query-jobs") if session is not None else ():
                if session is not None and one["id"].endswith(f".{_digest(job, 8)}"):
                    await self._stop_copy(session, one["id"])

    async def _end_copy(self, ident: str) -> None:
        async with self._daemon.session(start=False) as session:
            if session is not None:
                await self._stop_copy(session, ident)

    async def _stop_copy(self, session: Session, ident: str) -> None:
        while found := await _find_job(session, ident):
            with suppress(Refusal):  # it has just ended
                await session.do("job-dismiss" if found["status"] == "concluded" else "job-cancel", id=ident)
            await asyncio.sleep(0.01)
        with suppress(Refusal):
            await session.do("blockdev-del", node_name=_target(ident))


async def _find_job(session: Session, ident: str) -> dict[str, Any] | None:
    return next((one for one in await session.do("query-jobs") if one["id"] == ident), None)


async def _jobs(session: Session, volume_id: str) -> list[str]:
    """The copies that are being made of the volume."""
    jobs = [one for one in await session.do("query-jobs") if one["status"] != "concluded"]
    return [one["id"] for one in jobs if one["id"].startswith(_jobs_of(volume_id))]


def _jobs_of(volume_id: str) -> str:
    return f"c{_prefix(volume_id)}"


def _target(ident: str) -> str:
    return f"t{_digest(ident, 15)}"


def _digest(text: str, size: int) -> str:
    return blake2s(text.encode(), digest_size=size).hexdigest()
