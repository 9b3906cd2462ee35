"""Calls other services on behalf of users."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kilonova.http.access_rules import is_restricted
from kilonova.http.client import Unreachable
from kilonova.identity.client import IdentityClient, IdentityError

if TYPE_CHECKING:
    from kilonova.http.client import Caller, ClientResponse, StreamResponse


class ServiceCaller:
    """Sends the token of the service beside a user's token that access rules restrict.

    The rules allow the request of the user, and need not name the requests by which services serve it.
    """

    def __init__(self, caller: Caller, identity: IdentityClient) -> None:
        self._caller = caller
        self._identity = identity

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: object = None,
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> ClientResponse:
        sent = await self._with_service_token(headers)
        return await self._caller.request(method, path, headers=sent, json=json, content=content)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[StreamResponse]:
        sent = await self._with_service_token(headers)
        async with self._caller.stream(method, path, headers=sent) as response:
            yield response

    async def _with_service_token(self, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        if headers is None or "X-Auth-Token" not in headers or not is_restricted.get():
            return headers
        try:
            return {"X-Service-Token": await self._identity.token(), **headers}
        except IdentityError as error:
            raise Unreachable(str(error)) from None
