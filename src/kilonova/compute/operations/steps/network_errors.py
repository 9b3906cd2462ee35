"""Errors of the network service in steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from kilonova.network.client import NetworkError
from kilonova.operations import Failed, TransientError


def refusal(status: int, kind: str, words: str) -> str:
    """Text of a refusal with its kind, for administrators and for routes that wait for the operation."""
    return f"the network service answered {status} {kind}: {words}"


@asynccontextmanager
async def network_errors() -> AsyncIterator[None]:
    """Turn errors of the network service into Failed, or TransientError after a concurrent change."""
    try:
        yield
    except NetworkError as error:
        if error.status == 412:
            raise TransientError(str(error)) from error
        raise Failed(str(error), fault=refusal(error.status, error.kind, str(error))) from error


@contextmanager
def ignored_if_deleted() -> Iterator[None]:
    """Ignore that the port, or another object, has been deleted meanwhile."""
    try:
        yield
    except NetworkError as error:
        if error.status != 404:
            raise
