"""Users attach volumes only to servers that they may see."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.http.client import Unreachable
from kilonova.ids import new_id
from kilonova.volume import build
from kilonova.volume.compute_client import ComputeClient
from tests.fuzz.resources import ApiCaller
from tests.support import run
from tests.support.cloud import OTHER, put_server
from tests.support.full_cloud import FullCloud, full_cloud
from tests.volume.support import put_volume


async def new_volume(c: FullCloud) -> str:
    return await put_volume(c.db, type_id=await c.db.fetch_value("SELECT id FROM volume_types"))


async def attach(c: FullCloud, volume_id: str, server_id: str, as_: str) -> tuple[int, int]:
    """The statuses of an attachment and of the old action, for the same server."""
    call = ApiCaller(c, build(), as_)
    body = {"attachment": {"volume_uuid": volume_id, "instance_uuid": server_id}}
    created = await call("POST", "/v3/attachments", "3.71", body)
    if created.status == 200:
        await call("DELETE", f"/v3/attachments/{created.json()['attachment']['id']}", "3.71", None)
    old = {"os-attach": {"instance_uuid": server_id, "mountpoint": "/dev/vdb"}}
    return created.status, (await call("POST", f"/v3/volumes/{volume_id}/action", "3.71", old)).status


def test_member_attaches_only_to_visible_servers(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            own, foreign = new_id(), new_id()
            await put_server(c.db, own)
            await put_server(c.db, foreign, project_id=OTHER)
            volume_id = await new_volume(c)
            assert await attach(c, volume_id, foreign, "member") == (404, 404)
            assert await attach(c, volume_id, new_id(), "member") == (404, 404)
            shown = await ApiCaller(c, build(), "member")("GET", f"/v3/volumes/{volume_id}", "3.71", None)
            assert shown.json()["volume"]["status"] == "available"
            assert await attach(c, volume_id, own, "member") == (200, 202)
            for as_ in ("admin", "service"):
                assert await attach(c, await new_volume(c), foreign, as_) == (200, 202 if as_ == "admin" else 404)

    run(scenario())


def test_attach_without_compute_is_503(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(*arguments: Any) -> bool:
        raise Unreachable("compute does not answer")

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            monkeypatch.setattr(ComputeClient, "has_server", unreachable)
            assert await attach(c, await new_volume(c), new_id(), "member") == (503, 503)

    run(scenario())
