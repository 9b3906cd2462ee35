"""Requests of clients at chosen addresses, in this process."""

from __future__ import annotations

from typing import Any

from kilonova.http.client import InProcess


def caller_at(address: str, app: Any, prefix: str = "") -> InProcess:
    async def from_address(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "client": (address, 4711)}, receive, send)

    return InProcess(from_address, prefix)
