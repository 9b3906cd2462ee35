"""Media types of requests, and errors for clients that expect no JSON."""

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


def prefers_html(accept: str | None) -> bool:
    """Whether an Accept header accepts HTML and does not name JSON. Without the header JSON is preferred."""
    return bool(accept) and accepts_media_type(accept, HTML) and JSON not in str(accept).lower()


_PAGE = """<html>
 <head>
  <title>{title}</title>
 </head>
 <body>
  <h1>{title}</h1>
  <p>{message}</p>
 </body>
</html>
"""


def error_page(error: HttpError, kind: str) -> Response:
    """An error as HTML, in lines from which clients remove the tags, or as plain text."""
    title = f"{error.status} {error.title}"
    text = f"{title}\n\n{error.message}\n"
    if kind == HTML:
        text = _PAGE.format(title=title, message=escape(error.message))
    return Response(text.encode(), error.status, {**error.headers, "Content-Type": f"{kind}; charset=UTF-8"})
