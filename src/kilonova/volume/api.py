"""The Block Storage API: where it is mounted, its range of versions, and how it writes errors."""

from __future__ import annotations

from typing import Any

from kilonova.http import Api
from kilonova.http.errors import HttpError

LOW, HIGH = 0, 71

VOLUME_ACTION = "/volumes/{volume_id}/action"
SNAPSHOT_ACTION = "/snapshots/{snapshot_id}/action"

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


def fault(error: HttpError, request_id: str) -> dict[str, Any]:
    return {FAULTS.get(error.status, "computeFault"): {"code": error.status, "message": error.message}}


api = Api(
    "volume",
    prefix="/volume",
    errors=fault,
    major=3,
    low=LOW,
    high=HIGH,
    roots=("v3",),
    project_in_path=True,
    trailing_slash=False,
)
