"""NBD exports for attachment routes. The functions run outside the routes' transactions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from kilonova.http import Context
from kilonova.http.errors import Unavailable
from kilonova.volume.attachments.model import Attachment
from kilonova.volume.exports.daemon import DaemonError
from kilonova.volume.exports.manager import CONNECTOR_KEY, DRIVER, TLS, ExportManager, TlsMismatch, is_export, new_name

log = logging.getLogger(__name__)

__all__ = ["_manager", "address_for", "connection_data", "is_export", "revoke", "sync", "try_sync"]

_UNAVAILABLE = "The volume cannot be exported at the moment; try again."

ConnectionData = dict[str, object]


def _manager(ctx: Context) -> ExportManager:
    return ExportManager(ctx.services.config, ctx.services.db)


async def address_for(ctx: Context, connector: Mapping[str, object]) -> ConnectionData | None:
    """The address of the NBD server, or None if the host does not use NBD."""
    if connector.get(CONNECTOR_KEY) is not True:
        return None
    try:
        host, port = await _manager(ctx).address()
        secure = await _manager(ctx).is_secure()
    except TlsMismatch as error:
        raise Unavailable(f"The volume cannot be exported: {error}.") from error
    except DaemonError as error:
        raise _unavailable(error) from error
    return {"host": host, "port": port, **({TLS: True} if secure else {})}


def connection_data(address: ConnectionData, attachment_id: str) -> ConnectionData:
    """The NBD part of the connection info."""
    return {"driver_volume_type": DRIVER, **address, "export": new_name(attachment_id)}


async def sync(ctx: Context, volume_id: str) -> None:
    """Update the exports of the volume to match its attachments. Raises 503 on failure."""
    try:
        await _manager(ctx).sync(volume_id)
    except DaemonError as error:
        raise _unavailable(error) from error


async def try_sync(ctx: Context, volume_id: str) -> None:
    """Like `sync`, but only logs a failure: `ExportManager.watch` tries again."""
    try:
        await _manager(ctx).sync(volume_id)
    except DaemonError as error:
        log.warning("exports of volume %s: %s", volume_id, error)


async def revoke(ctx: Context, attachments: Iterable[Attachment]) -> None:
    """Remove the exports of these attachments, before the attachments are deleted. Raises 503 on failure."""
    found = [attachment for attachment in attachments if is_export(attachment.connection)]
    if not found:
        return
    async with ctx.db.transaction() as tx:
        await tx.execute(
            "UPDATE volume_attachments SET connection = NULL, connector = NULL WHERE id = ANY($1)",
            [attachment.id for attachment in found],
        )
    for volume_id in {attachment.volume_id for attachment in found}:
        await sync(ctx, volume_id)


def _unavailable(error: DaemonError) -> Unavailable:
    log.error("volumes cannot be exported: %s", error)
    return Unavailable(_UNAVAILABLE)
