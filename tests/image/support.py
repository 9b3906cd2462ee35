"""The image service alone on a real database and disk, reached over HTTP inside the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson

from kilonova.config import Config
from kilonova.http.client import ClientResponse
from kilonova.image import build
from kilonova.image.client import PATCH_TYPE
from kilonova.image.files import ImageFiles
from kilonova.policy import Policy
from kilonova.services import Services
from tests.support.cloud import Cloud, Tokens
from tests.support.databases import opened

RAW = {"disk_format": "raw", "container_format": "bare"}
EXPECTED = {"POST": 201, "DELETE": 204}


class Images(Cloud):
    @property
    def files(self) -> ImageFiles:
        return ImageFiles.of(self.services.config)

    def on_disk(self) -> list[str]:
        """The files of the data directory, including running uploads."""
        return sorted(str(path.relative_to(self.files.root)) for path in self.files.root.rglob("*.*"))

    async def call(
        self,
        method: str,
        path: str,
        json: Any = None,
        as_: str | None = "member",
        *,
        content: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> ClientResponse:
        sent = dict(headers or {})
        if as_ is not None:
            sent["X-Auth-Token"] = as_
        return await self.caller.request(method, f"/image/v2{path}", headers=sent, json=json, content=content)

    async def ok(self, method: str, path: str, json: Any = None, as_: str = "member") -> Any:
        response = await self.call(method, path, json, as_)
        assert response.status == EXPECTED.get(method, 200), response.body
        return response.json() if response.body else None

    async def status(self, method: str, path: str, json: Any = None, as_: str | None = "member") -> int:
        response = await self.call(method, path, json, as_)
        if response.status >= 400:
            assert response.json()["message"]
        return response.status

    async def make(self, as_: str = "member", **attributes: Any) -> dict[str, Any]:
        created: dict[str, Any] = await self.ok("POST", "/images", {**RAW, **attributes}, as_)
        return created

    async def show(self, image_id: str, as_: str = "member") -> dict[str, Any]:
        shown: dict[str, Any] = await self.ok("GET", f"/images/{image_id}", as_=as_)
        return shown

    async def names(self, query: Any = (), as_: str = "member") -> list[str]:
        found = (await self.ok("GET", f"/images?{urlencode(query)}", as_=as_))["images"]
        return [image["name"] for image in found]

    async def patch(
        self, image_id: str, *operations: Any, as_: str = "member", kind: str = PATCH_TYPE
    ) -> ClientResponse:
        return await self.call(
            "PATCH",
            f"/images/{image_id}",
            as_=as_,
            content=orjson.dumps(list(operations)),
            headers={"Content-Type": kind},
        )

    async def upload(self, image_id: str, content: Any, as_: str = "member", **headers: str) -> ClientResponse:
        sent = {"Content-Type": "application/octet-stream", **headers}
        return await self.call("PUT", f"/images/{image_id}/file", as_=as_, content=content, headers=sent)


@asynccontextmanager
async def images(database_url: str, data: Path, **settings: Any) -> AsyncIterator[Images]:
    services = Services()
    services.config = Config(data=str(data))
    for name, value in settings.items():
        config = services.config
        (section,) = [part for part in (config.image, config.image_quota, config) if hasattr(part, name)]
        setattr(section, name, value)
    services.policy = Policy()
    services.tokens = Tokens()
    async with opened(database_url) as db:
        services.db = db
        yield Images(services, [build()])
