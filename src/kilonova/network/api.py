"""The built-in network service (Networking API v2.0): its Api object and how it words errors."""

from __future__ import annotations

from typing import Any

from kilonova.http import Api
from kilonova.http.errors import HttpError

# What callers know as the type of an error that has none of its own.
_TYPES = {
    400: "HTTPBadRequest",
    401: "HTTPUnauthorized",
    403: "PolicyNotAuthorized",
    404: "HTTPNotFound",
    405: "HTTPMethodNotAllowed",
    409: "Conflict",
    413: "HTTPRequestEntityTooLarge",
    415: "HTTPUnsupportedMediaType",
    503: "ServiceUnavailable",
}
BODY_LIMIT = 4 * 2**20  # ports are created by the hundred


def fault(error: HttpError, request_id: str) -> Any:
    kind = error.code or _TYPES.get(error.status, "HTTPInternalServerError")
    return {"NeutronError": {"type": kind, "message": error.message, "detail": ""}}


api = Api("network", prefix="/network", errors=fault, body_limit=BODY_LIMIT)
