"""The Compute API: where it is mounted, its range of versions, and how it writes errors."""

from __future__ import annotations

from typing import Any

from kilonova.http import Api
from kilonova.http.errors import HttpError

LOW, HIGH = 1, 106

FAULTS = {
    400: "badRequest",
    401: "unauthorized",
    403: "forbidden",
    404: "itemNotFound",
    405: "badMethod",
    409: "conflictingRequest",
    413: "overLimit",
    415: "badMediaType",
    429: "overLimit",
    501: "notImplemented",
    503: "serviceUnavailable",
}


def fault(error: HttpError, request_id: str) -> dict[str, Any]:
    return {FAULTS.get(error.status, "computeFault"): {"code": error.status, "message": error.message}}


api = Api(
    "compute",
    prefix="/compute",
    errors=fault,
    major=2,
    low=LOW,
    high=HIGH,
    roots=("v2.1",),
    frozen_roots=("v2",),
    legacy_header="X-OpenStack-Nova-API-Version",
    request_id_header="X-Compute-Request-Id",
    project_in_path=True,
    trailing_slash=False,
)
