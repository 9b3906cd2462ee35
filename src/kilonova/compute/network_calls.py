"""Requests to the network service with the caller's token. Its errors become the ones of the old compute API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kilonova.http.errors import BadRequest, Forbidden, HttpError, NotFound
from kilonova.network.client import NetworkError

# Compute's errors for conflicts at the network service, by its error type and else by status.
_ERROR_BY_KIND: dict[str, type[HttpError]] = {
    "OverQuota": Forbidden,
    "IpAddressGenerationFailure": NotFound,
    "ExternalIpAddressExhausted": NotFound,
}
_ERROR_BY_STATUS: dict[int, type[HttpError]] = {403: Forbidden, 404: NotFound, 409: BadRequest}


@contextmanager
def network_errors() -> Iterator[None]:
    try:
        yield
    except NetworkError as error:
        kind = _ERROR_BY_KIND.get(error.kind) or _ERROR_BY_STATUS.get(error.status)
        if kind is None:
            raise
        raise kind(str(error)) from None
