"""Shares for tests of servers."""

from __future__ import annotations

from typing import Any

from kilonova.compute.server_shares import model
from kilonova.compute.server_shares.model import ServerShare
from kilonova.hosts.messages import Share
from kilonova.http.client import ClientResponse
from kilonova.ids import new_id
from kilonova.store import Transaction
from tests.compute.servers.support import guest_on
from tests.support.full_cloud import FullCloud

ROOT, VERSION = "/share/v2", "2.97"


async def make_share(c: FullCloud, as_: str = "member", **values: Any) -> str:
    """Create a share and wait until it is available; return its id."""
    body = {"share": {"share_proto": "NFS", "size": 1, **values}}
    made = await c.post("/shares", body, root=ROOT, as_=as_)
    assert made.status == 200, made.body
    share_id = str(made.json()["share"]["id"])
    await c.until(f"/shares/{share_id}", lambda shown: shown["status"] == "available", root=ROOT, as_=as_)
    return share_id


async def insert_server_share(tx: Transaction, server_id: str, share_id: str, status: str) -> str:
    """Insert the row of an attached share, without an operation. Returns its id."""
    share = ServerShare(
        id=new_id(),
        server_id=server_id,
        share_id=share_id,
        tag="data",
        share_proto="NFS",
        export_location="machine:/path",
        built_in=True,
        access_to="127.0.0.1",
        status=status,
        created_at=1.0,
        updated_at=1.0,
    )
    await model.insert(tx, share)
    return share.id


async def boot_stopped(c: FullCloud, **keys: Any) -> str:
    """Boot a server and stop it; return its id."""
    server_id = str((await c.boot_active(**keys))["id"])
    await act(c, server_id, "os-stop")
    return server_id


async def act(c: FullCloud, server_id: str, action: str, body: Any = None) -> dict[str, Any]:
    """Perform an action and wait until it has ended; return the server."""
    answer = await c.post(f"/servers/{server_id}/action", {action: body}, as_="project-admin", version=VERSION)
    assert answer.status < 300, answer.body
    return await c.wait_until_settled(server_id)


async def attach(c: FullCloud, server_id: str, share_id: str, *, as_: str = "member", **keys: Any) -> ClientResponse:
    body = {"share": {"share_id": share_id, **keys}}
    return await c.post(f"/servers/{server_id}/shares", body, as_=as_, version=VERSION)


async def detach(c: FullCloud, server_id: str, share_id: str, *, as_: str = "member") -> ClientResponse:
    return await c.delete(f"/servers/{server_id}/shares/{share_id}", as_=as_, version=VERSION)


async def until_status(c: FullCloud, server_id: str, share_id: str, status: str) -> None:
    path = f"/servers/{server_id}/shares/{share_id}"
    await c.until(path, lambda shown: shown["status"] == status, version=VERSION)


async def attach_settled(c: FullCloud, server_id: str, share_id: str, **keys: Any) -> None:
    answer = await attach(c, server_id, share_id, **keys)
    assert answer.status == 201, answer.body
    await until_status(c, server_id, share_id, "inactive")


async def rules_of(c: FullCloud, share_id: str) -> list[str]:
    """The addresses that have access to the share."""
    found = await c.db.fetch("SELECT access_to FROM share_access_rules WHERE share_id = $1 ORDER BY 1", share_id)
    return [row["access_to"] for row in found]


async def locks_of(c: FullCloud, share_id: str) -> list[str]:
    found = await c.db.fetch("SELECT reason FROM share_locks WHERE resource_id = $1 ORDER BY 1", share_id)
    return [row["reason"] for row in found]


async def guest_shares(c: FullCloud, server_id: str) -> list[Share]:
    """The shares of the guest on its host."""
    host = await c.db.fetch_value("SELECT host FROM servers WHERE id = $1", server_id)
    return guest_on(c, host, server_id).shares
