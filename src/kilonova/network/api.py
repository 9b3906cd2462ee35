"""The Networking API: where it is mounted, and how it writes errors."""

from __future__ import annotations

from kilonova.http import Api
from kilonova.http.errors import HttpError

# The `type` of errors that have no type of their own, by HTTP status.
_ERROR_TYPES = {
    400: "HTTPBadRequest",
    401: "HTTPUnauthorized",
    403: "PolicyNotAuthorized",
    404: "HTTPNotFound",
    405: "HTTPMethodNotAllowed",
    409: "Conflict",
    413: "HTTPRequestEntityTooLarge",
    415: "HTTPUnsupportedMediaType",
    429: "HTTPTooManyRequests",
    503: "ServiceUnavailable",
}
BODY_LIMIT = 2**20  # clients create hundreds of ports in one request


def fault(error: HttpError, request_id: str) -> dict[str, object]:
    kind = error.code or _ERROR_TYPES.get(error.status, "HTTPInternalServerError")
    return {"NeutronError": {"type": kind, "message": error.message, "detail": ""}}


api = Api("network", prefix="/network", errors=fault, body_limit=BODY_LIMIT)
