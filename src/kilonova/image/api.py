"""The Image API: where it is mounted, and how it writes errors."""

from __future__ import annotations

from kilonova.http import Api
from kilonova.http.errors import HttpError

BODY_LIMIT = 2**20


def fault(error: HttpError, request_id: str) -> dict[str, object]:
    return {"code": f"{error.status} {error.title}", "title": error.title, "message": error.message}


# python-glanceclient sends `Accept: */*` and expects errors as HTML: it cannot read the JSON of `fault`.
api = Api("image", prefix="/image", errors=fault, html_errors=True, body_limit=BODY_LIMIT)
