"""Version documents, schemas and other discovery routes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.image.support import images

ID = "6a52b9b0-4b9d-4d0c-8f0b-2f5e0a3e5a53"


def test_discovery_documents(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(sqlite_url, tmp_path) as cloud:
            root = await cloud.request("GET", "", root="/image", as_=None)
            assert root.status == 300
            assert root.json()["versions"][0] == {
                "id": "v2.9",
                "status": "CURRENT",
                "links": [{"rel": "self", "href": "http://localhost/image/v2/"}],
            }
            assert (await cloud.request("GET", "/versions", root="/image", as_=None)).json() == root.json()
            assert (await cloud.call("GET", "", as_=None)).status == 200
            assert "os_hidden" in (await cloud.ok("GET", "/schemas/image"))["properties"]
            assert (await cloud.ok("GET", "/schemas/images"))["properties"]["images"]["type"] == "array"
            assert (await cloud.ok("GET", "/schemas/member"))["name"] == "member"
            assert (await cloud.ok("GET", "/schemas/members"))["name"] == "members"
            assert await cloud.status("GET", "/schemas/tasks") == 404
            assert (await cloud.ok("GET", "/info/import"))["import-methods"]["value"] == []
            assert await cloud.status("GET", "/info/stores") == 404
            assert await cloud.status("POST", f"/images/{ID}/import", {}) == 405

    asyncio.run(scenario())
