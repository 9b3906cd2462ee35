"""Client of the image service, built in or a real Glance. It uses only the public API."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import orjson

from kilonova.http.client import Refused, Unreachable

if TYPE_CHECKING:
    from kilonova.http.client import Caller

Item = dict[str, Any]
PATCH_TYPE = "application/openstack-images-v2.1-json-patch"


class ImageError(Refused):
    """The image service refused a request."""


class ImageClient:
    """The caller's base URL has no version. Every method may raise ImageError or Unreachable."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def show(self, image_id: str, token: str) -> Item | None:
        """The image, or None if it is missing or hidden from the token."""
        try:
            found: Item = await self._call("GET", _path(image_id), token)
        except ImageError as error:
            if error.status == 404:
                return None
            raise
        return found

    async def list(self, token: str, filters: Mapping[str, str] | None = None, limit: int | None = None) -> list[Item]:
        """All images that match the filters, or the first `limit` of them."""
        query = dict(filters or {})
        if limit is not None:
            query["limit"] = str(limit)
        path: str | None = f"/v2/images?{urlencode(query)}"
        found: list[Item] = []
        while path is not None and (limit is None or len(found) < limit):
            response = await self._call("GET", path, token)
            found += response["images"]
            path = response.get("next")
        return found if limit is None else found[:limit]

    async def create(self, image: Item, token: str) -> Item:
        created: Item = await self._call("POST", "/v2/images", token, json=image)
        return created

    async def patch(self, image_id: str, operations: Sequence[Item], token: str) -> Item:
        changed: Item = await self._call(
            "PATCH", _path(image_id), token, content=orjson.dumps(list(operations)), content_type=PATCH_TYPE
        )
        return changed

    async def upload(self, image_id: str, content: bytes | AsyncIterator[bytes], token: str) -> None:
        await self._call("PUT", file_path(image_id), token, content=content, content_type="application/octet-stream")

    @asynccontextmanager
    async def download(self, image_id: str, token: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """`async with client.download(…) as chunks`. An image without data has no chunks."""
        headers = {"X-Auth-Token": token}
        async with self._caller.stream("GET", file_path(image_id), headers=headers) as response:
            if response.status >= 400:
                body = b"".join([chunk async for chunk in response.chunks])
                raise _error(response.status, body)
            yield response.chunks

    async def delete(self, image_id: str, token: str) -> None:
        """Delete an image. A missing image is no error."""
        try:
            await self._call("DELETE", _path(image_id), token)
        except ImageError as error:
            if error.status != 404:
                raise

    async def _call(
        self,
        method: str,
        path: str,
        token: str,
        *,
        json: Any = None,
        content: bytes | AsyncIterator[bytes] | None = None,
        content_type: str | None = None,
    ) -> Any:
        headers = {"X-Auth-Token": token, "Accept": "application/json"}
        if content_type is not None:
            headers["Content-Type"] = content_type
        response = await self._caller.request(method, path, headers=headers, json=json, content=content)
        if response.status >= 400:
            raise _error(response.status, response.body)
        return response.json() if response.body else None


def file_path(image_id: str) -> str:
    """The path of the image's data below the service's base URL."""
    return f"{_path(image_id)}/file"


def _path(image_id: str) -> str:
    return f"/v2/images/{quote(image_id, safe='')}"


def _error(status: int, body: bytes) -> Exception:
    if status >= 500 or status == 429:
        return Unreachable(f"the image service answered {status}")
    return ImageError(status, _message(body) or f"the image service answered {status}")


def _message(body: bytes) -> str:
    """The message of an error, which Glance sends as JSON or as HTML."""
    try:
        return str(orjson.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        pass
    text = re.sub(r"<title>.*?</title>|<h1>.*?</h1>|<[^>]+>", " ", body.decode("utf-8", "replace"), flags=re.DOTALL)
    return " ".join(text.split())[:500]
