"""Compute's client of the image service, built in or a real Glance: its public API and nothing else."""

from __future__ import annotations

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
    """The image service refused."""


class ImageClient:
    """The caller's base is the service's, without a version. Every method may raise ImageError or Unreachable."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def show(self, image_id: str, token: str) -> Item | None:
        """The image with its properties beside its attributes, or None if the token may not see one of this id."""
        try:
            found: Item = await self._call("GET", _path(image_id), token)
        except ImageError as error:
            if error.status == 404:
                return None
            raise
        return found

    async def list(self, token: str, filters: Mapping[str, str] | None = None, limit: int | None = None) -> list[Item]:
        """All images that the filters let through, or the first `limit` of them."""
        query = dict(filters or {})
        if limit is not None:
            query["limit"] = str(limit)
        path: str | None = f"/v2/images?{urlencode(query)}"
        found: list[Item] = []
        while path is not None and (limit is None or len(found) < limit):
            answer = await self._call("GET", path, token)
            found += answer["images"]
            path = answer.get("next")
        return found if limit is None else found[:limit]

    async def create(self, image: Item, token: str) -> Item:
        made: Item = await self._call("POST", "/v2/images", token, json=image)
        return made

    async def patch(self, image_id: str, operations: Sequence[Item], token: str) -> Item:
        changed: Item = await self._call(
            "PATCH", _path(image_id), token, content=orjson.dumps(list(operations)), kind=PATCH_TYPE
        )
        return changed

    async def upload(self, image_id: str, content: bytes | AsyncIterator[bytes], token: str) -> None:
        await self._call("PUT", data_path(image_id), token, content=content, kind="application/octet-stream")

    @asynccontextmanager
    async def download(self, image_id: str, token: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """`async with client.download(…) as chunks`; an image without data gives none."""
        headers = {"X-Auth-Token": token}
        async with self._caller.stream("GET", data_path(image_id), headers=headers) as answer:
            if answer.status >= 400:
                body = b"".join([chunk async for chunk in answer.chunks])
                raise _error(answer.status, body)
            yield answer.chunks

    async def delete(self, image_id: str, token: str) -> None:
        """An image that is gone already is fine."""
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
        kind: str | None = None,
    ) -> Any:
        headers = {"X-Auth-Token": token, "Accept": "application/json"}
        if kind is not None:
            headers["Content-Type"] = kind
        answer = await self._caller.request(method, path, headers=headers, json=json, content=content)
        if answer.status >= 400:
            raise _error(answer.status, answer.body)
        return answer.json() if answer.body else None


def data_path(image_id: str) -> str:
    """Where the image's data is, below the service's base."""
    return f"{_path(image_id)}/file"


def _path(image_id: str) -> str:
    return f"/v2/images/{quote(image_id, safe='')}"


def _error(status: int, body: bytes) -> Exception:
    if status >= 500 or status == 429:
        return Unreachable(f"the image service answered {status}")
    return ImageError(status, _message(body) or f"the image service answered {status}")


def _message(body: bytes) -> str:
    """A real Glance answers in HTML as often as in JSON."""
    try:
        return str(orjson.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        pass
    import re

    text = re.sub(r"<title>.*?</title>|<h1>.*?</h1>|<[^>]+>", " ", body.decode("utf-8", "replace"), flags=re.DOTALL)
    return " ".join(text.split())[:500]
