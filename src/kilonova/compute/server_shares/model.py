"""Shares of servers in the database, and their form in messages to hosts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from kilonova import clock
from kilonova.hosts import messages
from kilonova.store import Reader, Transaction
from kilonova.store.insert import insert_row
from kilonova.store.records import Record

ATTACHING, ATTACHED, DETACHING, ERROR = "attaching", "attached", "detaching", "error"
# The API shows these instead of ATTACHED: active while the guest runs.
ACTIVE, INACTIVE = "active", "inactive"
# The only protocol that hosts can mount.
NFS = "NFS"


class ServerShare(Record, frozen=True):
    """`access_to` is the address of the server's host, which the share's access rule names.

    `built_in`: the export location is a directory of the built-in service.
    """

    table: ClassVar[str] = "server_shares"

    id: str
    server_id: str
    share_id: str
    tag: str
    share_proto: str
    export_location: str
    built_in: bool
    access_to: str
    status: str
    created_at: float
    updated_at: float


async def insert(tx: Transaction, share: ServerShare) -> None:
    await insert_row(tx, ServerShare.table, share.encode())


async def of_server(reader: Reader, server_id: str) -> list[ServerShare]:
    """All shares of the server, oldest first."""
    sql = "SELECT * FROM server_shares WHERE server_id = $1 ORDER BY created_at, id"
    return ServerShare.decode_all(await reader.fetch(sql, server_id))


async def find(reader: Reader, server_id: str, share_id: str) -> ServerShare | None:
    sql = "SELECT * FROM server_shares WHERE server_id = $1 AND share_id = $2"
    return ServerShare.decode_optional(await reader.fetch_one(sql, server_id, share_id))


async def get(reader: Reader, ident: str) -> ServerShare | None:
    return ServerShare.decode_optional(await reader.fetch_one("SELECT * FROM server_shares WHERE id = $1", ident))


async def has_shares(reader: Reader, server_id: str) -> bool:
    sql = "SELECT 1 FROM server_shares WHERE server_id = $1 LIMIT 1"
    return await reader.fetch_value(sql, server_id) is not None


async def needs_access(reader: Reader, share: ServerShare) -> bool:
    """Whether a server on a host with this address uses the share, or is about to."""
    sql = "SELECT 1 FROM server_shares WHERE share_id = $1 AND access_to = $2 AND status IN ($3, $4) LIMIT 1"
    found = await reader.fetch_value(sql, share.share_id, share.access_to, ATTACHING, ATTACHED)
    return found is not None


async def set_status(tx: Transaction, ident: str, status: str) -> None:
    sql = "UPDATE server_shares SET status = $2, updated_at = $3 WHERE id = $1"
    await tx.execute(sql, ident, status, clock.now())


async def remove(tx: Transaction, ident: str) -> None:
    await tx.execute("DELETE FROM server_shares WHERE id = $1", ident)


async def remove_all(tx: Transaction, server_id: str) -> None:
    await tx.execute("DELETE FROM server_shares WHERE server_id = $1", server_id)


def shown_status(share: ServerShare, *, running: bool) -> str:
    """The status as the API has it. `running`: whether the server's guest runs."""
    if share.status != ATTACHED:
        return share.status
    return ACTIVE if running else INACTIVE


def messages_of(shares: Iterable[ServerShare]) -> list[messages.Share]:
    """The shares as commands to hosts name them."""
    return [
        messages.Share(
            share_id=share.share_id,
            tag=share.tag,
            kind="directory" if share.built_in else "nfs",
            location=share.export_location,
        )
        for share in shares
    ]
