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
    """Sends the token of the service beside tokens of users.

    Services in other processes then accept a token of a user that has expired since the request came, and requests
    that only services may send. Services in this process need the second token only beside a token that access rules
    restrict: the rules allow the request of the user, and need not name the requests by which services serve it.
    """

    def __init__(self, caller: Caller, identity: IdentityClient, *, always: bool = False) -> None:
        self._caller = caller
        self._identity = identity
        self._always = always

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
        response = await self._caller.request(method, path, headers=sent, json=json, content=content)
        self._check_own_token(response.status, sent)
        return response

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[StreamResponse]:
        sent = await self._with_service_token(headers)
        async with self._caller.stream(method, path, headers=sent) as response:
            self._check_own_token(response.status, sent)
            yield response

    async def _with_service_token(self, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        if headers is None or "X-Auth-Token" not in headers or not (self._always or is_restricted.get()):
            return headers
        try:
            return {"X-Service-Token": await self._identity.token(), **headers}
        except IdentityError as error:
            raise Unreachable(str(error)) from None

    def _check_own_token(self, status: int, headers: Mapping[str, str] | None) -> None:
        """Drop tokens of the service user that another service refuses. A repeated request sends a new one."""
        sent = headers.get("X-Auth-Token", "") if headers else ""
        if status == 401 and self._identity.is_own(sent):
            self._identity.forget(sent)
            raise Unreachable("another service refused the token of the service user")
