"""Calls a service at its address in the catalogue of a real Keystone."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kilonova.http.client import Remote, Unreachable
from kilonova.identity.client import IdentityClient, IdentityError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from kilonova.http.client import Caller, ClientResponse, StreamResponse

# A version and what follows it, such as the project.
_VERSION = re.compile(r"/v\d+(\.\d+)?(/.*)?$")


def without_version(url: str) -> str:
    """The base URL of a service, from its endpoint in the catalogue."""
    return _VERSION.sub("", url.rstrip("/"))


class CatalogCaller:
    """The base URL has no version. Each new token brings a new catalogue, so a moved service is found."""

    def __init__(
        self,
        identity: IdentityClient,
        service_types: tuple[str, ...],
        tls: ssl.SSLContext | None = None,
        connect: Callable[[str, ssl.SSLContext | None], Caller] = lambda url, tls: Remote(url, tls=tls),
    ) -> None:
        self._identity = identity
        self._types = service_types
        self._tls = tls
        self._connect = connect
        self._url = ""
        self._caller: Caller | None = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: object = None,
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> ClientResponse:
        caller = await self._find()
        return await caller.request(method, path, headers=headers, json=json, content=content)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[StreamResponse]:
        caller = await self._find()
        async with caller.stream(method, path, headers=headers) as response:
            yield response

    async def close(self) -> None:
        if isinstance(self._caller, Remote):
            await self._caller.close()

    async def _find(self) -> Caller:
        try:
            url = without_version(await self._identity.endpoint(*self._types))
        except IdentityError as error:
            raise Unreachable(str(error)) from None
        if self._caller is None or url != self._url:
            # Requests to the former address may be under way, so its connections are left to end by themselves.
            self._caller, self._url = self._connect(url, self._tls), url
        return self._caller
