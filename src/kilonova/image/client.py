"""Client of the image service, built in or a real Glance. It uses only the public API."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, urlencode

import orjson
from msgspec import Struct, convert
from msgspec.structs import asdict

from kilonova import image_hash
from kilonova.http.client import Refused, Unreachable, valid_response

if TYPE_CHECKING:
    from kilonova.http.client import Caller

PATCH_TYPE = "application/openstack-images-v2.1-json-patch"
# Names of properties that Glance itself writes, and that no client may write.
RESERVED_PREFIX = "os_glance"
# Every other key of an image is a custom property, unless it is reserved.
ATTRIBUTES = frozenset(
    {
        *("id", "name", "status", "visibility", "tags", "owner", "file", "schema", "self", "checksum", "size"),
        *("virtual_size", "created_at", "updated_at", "protected", "os_hidden", "os_hash_algo", "os_hash_value"),
        *("direct_url", "locations", "stores", "members", "disk_format", "container_format", "min_disk", "min_ram"),
    }
)


class ImageError(Refused):
    """The image service refused a request."""


class Auth(Protocol):
    @property
    def token(self) -> str: ...


class Identity(Protocol):
    async def auth(self, project_id: str | None = None) -> Auth: ...


class Image(Struct, frozen=True, kw_only=True):
    """`properties` are the custom properties. Sizes are in bytes, `min_disk` is in GB and `min_ram` in MB."""

    id: str
    status: str
    name: str | None = None
    owner: str | None = None
    visibility: str = "shared"
    protected: bool = False
    disk_format: str | None = None
    container_format: str | None = None
    min_disk: int = 0
    min_ram: int = 0
    size: int | None = None
    virtual_size: int | None = None
    checksum: str | None = None
    os_hash_algo: str | None = None
    os_hash_value: str | None = None
    created_at: str = ""
    updated_at: str = ""
    properties: dict[str, str] = {}

    @property
    def disk_bytes(self) -> int:
        """The size of the data, or that of the disk in it if it is larger."""
        return max(self.size or 0, self.virtual_size or 0)

    @property
    def hash(self) -> str:
        """The hash of the data, as in `image_hash`."""
        return image_hash.of_image(asdict(self))

    def properties_with(self, *attributes: str) -> dict[str, str]:
        """The properties, and these attributes as text unless they are null."""
        values = {name: getattr(self, name) for name in attributes}
        return {**self.properties, **{name: str(value) for name, value in values.items() if value is not None}}


class ImageClient:
    """The caller's base URL has no version. Every method may raise ImageError or Unreachable."""

    def __init__(self, caller: Caller, *, is_glance: bool = False) -> None:
        self._caller = caller
        self._is_glance = is_glance

    async def owner_token(self, identity: Identity, project_id: str | None) -> str:
        """The service user's token for creating an image of the project and uploading its data.

        A real Glance counts both for the quota of the token's project, the built-in service for that of the owner.
        Raises IdentityError.
        """
        return (await identity.auth(project_id if self._is_glance else None)).token

    async def show(self, image_id: str, token: str) -> Image | None:
        """The image, or None if it is missing or hidden from the token."""
        try:
            return _decode(await self._call("GET", _path(image_id), token))
        except ImageError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, token: str, filters: Mapping[str, str] | None = None, limit: int | None = None) -> list[Image]:
        """All images that match the filters, or the first `limit` of them."""
        query = dict(filters or {})
        if limit is not None:
            query["limit"] = str(limit)
        path: str | None = f"/v2/images?{urlencode(query)}"
        found: list[Image] = []
        while path is not None and (limit is None or len(found) < limit):
            page = _decode_page(await self._call("GET", path, token))
            found += map(_decode, page.images)
            # Glance links below its own root, which may be a path below the service's base URL.
            path = page.next and page.next[max(page.next.find("/v2/"), 0) :]
        return found if limit is None else found[:limit]

    async def create(self, image: Mapping[str, object], token: str) -> Image:
        return _decode(await self._call("POST", "/v2/images", token, json=image))

    async def patch(self, image_id: str, operations: Sequence[Mapping[str, object]], token: str) -> Image:
        content = orjson.dumps(list(operations))
        return _decode(await self._call("PATCH", _path(image_id), token, content=content, content_type=PATCH_TYPE))

    async def upload(self, image_id: str, content: bytes | AsyncIterator[bytes], token: str) -> None:
        await self._call("PUT", _file_path(image_id), token, content=content, content_type="application/octet-stream")

    @asynccontextmanager
    async def download(self, image_id: str, token: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """`async with client.download(…) as chunks`. An image without data has no chunks."""
        headers = {"X-Auth-Token": token}
        async with self._caller.stream("GET", _file_path(image_id), headers=headers) as response:
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
        json: Mapping[str, object] | None = None,
        content: bytes | AsyncIterator[bytes] | None = None,
        content_type: str | None = None,
    ) -> dict[str, object]:
        headers = {"X-Auth-Token": token, "Accept": "application/json"}
        if content_type is not None:
            headers["Content-Type"] = content_type
        response = await self._caller.request(method, path, headers=headers, json=json, content=content)
        if response.status >= 400:
            raise _error(response.status, response.body)
        found: dict[str, object] = response.json() if response.body else {}
        return found


class _Page(Struct):
    images: list[dict[str, object]]
    next: str | None = None


@valid_response("image")
def _decode_page(document: Mapping[str, object]) -> _Page:
    return convert(document, _Page)


@valid_response("image")
def _decode(item: Mapping[str, object]) -> Image:
    attributes = {name: value for name, value in item.items() if name in ATTRIBUTES}
    properties = {name: _text(value) for name, value in item.items() if is_property(name) and value is not None}
    return convert({**attributes, "properties": properties}, Image)


def is_property(name: str) -> bool:
    """Whether it is the name of a custom property, which clients may write."""
    return name not in ATTRIBUTES and not name.startswith(RESERVED_PREFIX)


def _text(value: object) -> str:
    """The text of a property. Glance's administrators may define properties of other types."""
    return orjson.dumps(value).decode() if isinstance(value, dict | list) else str(value)


def _file_path(image_id: str) -> str:
    """The path of the image's data below the service's base URL."""
    return f"{_path(image_id)}/file"


def _path(image_id: str) -> str:
    return f"/v2/images/{quote(image_id, safe='')}"


def _error(status: int, body: bytes) -> Exception:
    if status >= 500 or status == 429:
        return Unreachable(f"the image service answered {status}")
    return ImageError(status, _message(body) or f"the image service answered {status}")


def _message(body: bytes) -> str:
    """The message of an error, which Glance sends as JSON or as HTML, or as HTML in JSON."""
    try:
        text = str(orjson.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")
    text = re.sub(r"<title>.*?</title>|<h1>.*?</h1>|<[^>]+>", " ", text, flags=re.DOTALL)
    return " ".join(text.split())[:500]
