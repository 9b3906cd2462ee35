"""The error format of compute and volume: one key that names the kind of error, with code and message below it."""

from __future__ import annotations

from kilonova.http.errors import HttpError

FAULTS = {
    400: "badRequest",
    401: "unauthorized",
    403: "forbidden",
    404: "itemNotFound",
    405: "badMethod",
    409: "conflictingRequest",
    412: "preconditionFailed",
    413: "overLimit",
    415: "badMediaType",
    429: "overLimit",
    501: "notImplemented",
    503: "serviceUnavailable",
}


def format_fault(error: HttpError, request_id: str) -> dict[str, object]:
    return {FAULTS.get(error.status, "computeFault"): {"code": error.status, "message": error.message}}
