"""The format of errors, which depends on what the client accepts."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.image.support import images

MESSAGE = "No image found with ID &lt;none&gt;"


def test_error_is_html_for_clients_that_do_not_name_json(sqlite_url: str, tmp_path: Path) -> None:
    """python-glanceclient accepts everything. It removes the tags of each line, and cannot read Glance's JSON."""

    async def scenario() -> None:
        async with images(sqlite_url, tmp_path) as cloud:
            for accept in ("*/*", "text/html", "text/html, */*;q=0.8"):
                refused = await cloud.call("GET", "/images/%3Cnone%3E", headers={"Accept": accept})
                assert (refused.status, refused.headers["content-type"]) == (404, "text/html; charset=UTF-8"), accept
                lines = [re.sub("<.+?>", "", line.strip()) for line in refused.body.decode().splitlines()]
                assert [line for line in lines if line] == ["404 Not Found", "404 Not Found", MESSAGE], refused.body

    asyncio.run(scenario())


def test_error_is_json_for_clients_that_name_it(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(sqlite_url, tmp_path) as cloud:
            for headers in ({}, {"Accept": "application/json"}, {"Accept": "application/json, */*"}):
                refused = await cloud.call("GET", "/images/none", headers=headers)
                assert refused.status == 404
                assert refused.json() == {
                    "code": "404 Not Found",
                    "title": "Not Found",
                    "message": "No image found with ID none",
                }, headers

    asyncio.run(scenario())
