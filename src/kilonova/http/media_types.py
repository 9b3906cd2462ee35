"""Media types of requests, and errors for clients that do not accept JSON."""

from __future__ import annotations

from html import escape

from kilonova.http.context import Response
from kilonova.http.errors import HttpError

JSON, HTML = "application/json", "text/html"


def accepts_media_type(accept: str | None, kind: str) -> bool:
    """Whether an Accept header accepts a media type; without the header all are accepted."""
    if not accept:
        return True
    family = kind.partition("/")[0]
    return any(entry.partition(";")[0].strip().lower() in (kind, f"{family}/*", "*/*") for entry in accept.split(","))


def error_page(error: HttpError, kind: str) -> Response:
    """An error for a client that does not accept JSON."""
    text = f"{error.status} {error.title}\n\n{error.message}\n"
    if kind == HTML:
        text = f"<html><title>{error.status} {error.title}</title><body><p>{escape(error.message)}</p></body></html>"
    return Response(text.encode(), error.status, {**error.headers, "Content-Type": f"{kind}; charset=UTF-8"})
