"""Image data for drivers, read and written with tickets at the image service's routes for hosts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import orjson

from kilonova.hosts.drivers.base import DriverError, ImageBusy, ImageTooLarge
from kilonova.http.client import Unreachable
from kilonova.tickets import HEADER

if TYPE_CHECKING:
    from kilonova.hosts.messages import Transfer
    from kilonova.http.client import Caller

_FILE_SUFFIX = "/file"
_REASON_LENGTH = 500


class ImageService:
    """`caller` addresses the image service, without a version. Tickets of commands are sent to no other service."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def write(self, transfer: Transfer, data: bytes | AsyncIterator[bytes]) -> None:
        headers = _headers(transfer) | {"Content-Type": "application/octet-stream"}
        try:
            answer = await self._caller.request("PUT", transfer.url, headers=headers, content=data)
            if answer.status == 409:
                if await self._is_written(transfer):
                    return
                raise ImageBusy(f"the image service answered 409{_reason(answer.body)}")
        except Unreachable as error:
            raise _unreachable(error) from error
        _check(answer.status, answer.body)

    async def read(self, transfer: Transfer) -> AsyncIterator[bytes]:
        try:
            async with self._caller.stream("GET", transfer.url, headers=_headers(transfer)) as answer:
                if answer.status >= 400:
                    _check(answer.status, b"".join([chunk async for chunk in answer.chunks]))
                async for chunk in answer.chunks:
                    yield chunk
        except Unreachable as error:
            raise _unreachable(error) from error

    async def show(self, transfer: Transfer) -> dict[str, Any]:
        try:
            answer = await self._caller.request(
                "GET", transfer.url.removesuffix(_FILE_SUFFIX), headers=_headers(transfer)
            )
        except Unreachable as error:
            raise _unreachable(error) from error
        _check(answer.status, answer.body)
        image: dict[str, Any] = answer.json()
        return image

    async def _is_written(self, transfer: Transfer) -> bool:
        try:
            return bool((await self.show(transfer))["status"] == "active")
        except DriverError:
            return False


def _headers(transfer: Transfer) -> dict[str, str]:
    return {HEADER: transfer.ticket}


def _unreachable(error: Unreachable) -> DriverError:
    return DriverError(f"the image service at {error}", passing=True)


def _check(status: int, body: bytes) -> None:
    if status == 413:
        raise ImageTooLarge("the image service does not store the data: it exceeds a quota or limit")
    if status >= 400:
        # 401: the ticket has expired. The control plane repeats the command with a new one.
        passing = status >= 500 or status in (401, 429)
        raise DriverError(f"the image service answered {status}{_reason(body)}", passing=passing)


def _reason(body: bytes) -> str:
    try:
        return f": {str(orjson.loads(body)['message'])[:_REASON_LENGTH]}"
    except (ValueError, KeyError, TypeError):
        return ""
