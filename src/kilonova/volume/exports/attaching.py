"""Attachments of hosts that want volumes by NBD: what routes do around their transactions."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from kilonova.http import Context
from kilonova.http.errors import Unavailable
from kilonova.store import Row
from kilonova.volume.exports.daemon import DaemonError
from kilonova.volume.exports.keeper import DRIVER, TLS, WISH, Keeper, Unlike, is_export, new_name

log = logging.getLogger(__name__)

__all__ = ["address_for", "bring", "cut", "is_export", "keeper_of", "settle", "way"]

_UNAVAILABLE = "The volume cannot be exported for the moment; try again."

Way = dict[str, Any]


def keeper_of(ctx: Context) -> Keeper:
    return Keeper(ctx.services.config, ctx.services.db)


async def address_for(ctx: Context, connector: Way) -> Way | None:
    """Where the host shall find the volume; None if it wants no NBD. For before the transaction."""
    if connector.get(WISH) is not True:
        return None
    try:
        host, port = await keeper_of(ctx).address()
        secure = await keeper_of(ctx).is_secure()
    except Unlike as error:
        raise Unavailable(f"The volume cannot be exported: {error}.") from error
    except DaemonError as error:
        raise _unavailable(error) from error
    return {"host": host, "port": port, **({TLS: True} if secure else {})}


def way(address: Way, attachment_id: str) -> Way:
    """What a connection says of it, beside what all connections say."""
    return {"driver_volume_type": DRIVER, **address, "export": new_name(attachment_id)}


async def bring(ctx: Context, volume_id: str) -> None:
    """Have the volume exported as its attachments say by now. Refused (503) if that cannot be."""
    try:
        await keeper_of(ctx).sync(volume_id)
    except DaemonError as error:
        raise _unavailable(error) from error


async def settle(ctx: Context, volume_id: str) -> None:
    """The same where nothing is new: what cannot be done now is done soon, by those who watch."""
    try:
        await keeper_of(ctx).sync(volume_id)
    except DaemonError as error:
        log.warning("exports of volume %s: %s", volume_id, error)


async def cut(ctx: Context, rows: Iterable[Row]) -> None:
    """Have nobody write by these attachments any more; for before they go. Refused (503) if that is not certain."""
    found = [row for row in rows if is_export(row)]
    if not found:
        return
    async with ctx.db.transaction() as tx:
        await tx.execute(
            "UPDATE volume_attachments SET connection = NULL, connector = NULL WHERE id = ANY($1)",
            [row["id"] for row in found],
        )
    for volume_id in {row["volume_id"] for row in found}:
        await bring(ctx, volume_id)


def _unavailable(error: DaemonError) -> Unavailable:
    log.error("volumes cannot be exported: %s", error)
    return Unavailable(_UNAVAILABLE)
