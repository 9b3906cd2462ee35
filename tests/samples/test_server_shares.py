"""File shares of servers, compared with the published samples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.compute.server_shares.support import ROOT, VERSION, boot_stopped, detach, make_share, until_status
from tests.samples.shape import differences
from tests.samples.test_samples import SAMPLES
from tests.support import run
from tests.support.full_cloud import full_cloud

pytestmark = pytest.mark.skipif(not SAMPLES.exists(), reason="needs the published samples in ../shared")

DIRECTORY = SAMPLES / "os-server-shares/v2.97"


def sample(name: str) -> Any:
    return json.loads((DIRECTORY / f"server-shares-{name}.json").read_text())


def test_server_shares(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = await boot_stopped(c)
            path = f"/servers/{server_id}/shares"
            for request, answer, as_ in (
                ("create-req", "create-resp", "member"),
                ("create-tag-req", "admin-create-resp", "admin"),
            ):
                share_id = await make_share(c)
                body = {"share": {**sample(request)["share"], "share_id": share_id}}
                created = await c.post(path, body, as_=as_, version=VERSION)
                assert created.status == 201, created.body
                assert not list(differences(sample(answer), created.json())), answer
                await until_status(c, server_id, share_id, "inactive")
            for name, shown in (
                ("list-resp", await c.get(path, version=VERSION)),
                ("show-resp", await c.get(f"{path}/{share_id}", version=VERSION)),
                ("admin-show-resp", await c.get(f"{path}/{share_id}", version=VERSION, as_="admin")),
            ):
                assert not list(differences(sample(name), shown.json())), name
            assert (await detach(c, server_id, share_id)).status == 200
            await c.gone(f"{path}/{share_id}", version=VERSION)
            assert (await c.get(f"/shares/{share_id}", root=ROOT)).status == 200

    run(scenario())
