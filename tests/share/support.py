"""The share service on a real database, with fixed tokens instead of an identity service.

async with share_cloud(database_url) as c:
    response = await c.get("/shares", as_="member", version="2.82")
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import kilonova.share.operations  # noqa: F401 - registers the operations
from kilonova import share
from kilonova.compute.status import ComputeStatus
from kilonova.config import load
from kilonova.http.client import ClientResponse, InProcess
from kilonova.policy import Policy
from kilonova.services import Services
from kilonova.share.client import ShareClient
from tests.support.cloud import Cloud, Identity, Tokens
from tests.support.databases import opened
from tests.support.full_cloud import running_worker
from tests.support.route_coverage import RecordingMetrics

NEWEST = "2.82"


class ShareCloud(Cloud):
    @property
    def directory(self) -> Path:
        """The directory with the directories of shares."""
        return self.services.config.data_dir / "shares"

    async def request(
        self, method: str, path: str, *, version: str | None = NEWEST, root: str = "/share/v2", **options: Any
    ) -> ClientResponse:
        headers = dict(options.pop("headers", None) or {})
        if version is not None:
            headers["X-OpenStack-Manila-API-Version"] = version
        return await super().request(method, path, root=root, headers=headers, **options)

    async def create(self, **values: Any) -> str:
        """Create a share and wait until it is available; return its id."""
        as_ = values.pop("as_", "member")
        response = await self.post("/shares", {"share": {"share_proto": "NFS", "size": 1, **values}}, as_=as_)
        assert response.status == 200, response.body
        share_id = str(response.json()["share"]["id"])
        await self.until(f"/shares/{share_id}", lambda shown: shown["status"] == "available", as_=as_)
        return share_id

    async def act(self, share_id: str, action: str, body: Any = None, **options: Any) -> ClientResponse:
        return await self.post(f"/shares/{share_id}/action", {action: body}, **options)

    async def allow(self, share_id: str, access_to: str, **options: Any) -> ClientResponse:
        as_ = options.pop("as_", "member")
        body = {"access_type": "ip", "access_to": access_to, **options}
        return await self.act(share_id, "allow_access", body, as_=as_)


@asynccontextmanager
async def share_cloud(database_url: str, *, worker: bool = True, **flags: Any) -> AsyncIterator[ShareCloud]:
    """`flags` are configuration keys with two underscores for the dot: `share_quota__shares=1`."""
    services = Services()
    services.config = load(environ={}, flags={name.replace("__", "."): value for name, value in flags.items()})
    async with AsyncExitStack() as stack:
        services.config.data = str(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        services.db = await stack.enter_async_context(opened(database_url))
        services.policy, services.tokens, services.metrics = Policy(), Tokens(), RecordingMetrics()
        services.identity = Identity()  # type: ignore[assignment]
        services.compute_status = ComputeStatus(services.db, services.config)
        cloud = ShareCloud(services, [share.build()])
        services.share = ShareClient(InProcess(cloud.app, "/share"))
        if worker:
            await stack.enter_async_context(running_worker(services.db, services))
        yield cloud
