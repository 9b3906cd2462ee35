"""The Image API: where it is mounted, and how it writes errors."""

from __future__ import annotations

from typing import Any

from kilonova.http import Api
from kilonova.http.errors import HttpError

BODY_LIMIT = 2**20


def fault(error: HttpError, request_id: str) -> Any:
    return {"code": f"{error.status} {error.title}", "title": error.title, "message": error.message}


api = Api("image", prefix="/image", errors=fault, body_limit=BODY_LIMIT)
