"""Serves noVNC's pages and scripts from the directory that the distribution installs them in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova.http import Response
from kilonova.http.errors import NotFound

if TYPE_CHECKING:
    from kilonova.config import Console

HEADERS = {
    # The URL of a page contains the token of its console.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff": "font/woff",
    ".ttf": "font/ttf",
    ".oga": "audio/ogg",
    ".mp3": "audio/mpeg",
}
_NOVNC_MISSING = """<!DOCTYPE html>
<html lang="en"><title>noVNC is missing</title><body><h1>noVNC is not installed here</h1>
<p>Consoles of servers need noVNC, which is not in the directory that the setting <code>console.novnc_path</code>
names. On Debian and Ubuntu: <code>apt install novnc</code></p></body></html>
"""


def novnc_pages(settings: Console) -> Callable[[Sequence[str]], Awaitable[Response]]:
    root = Path(settings.novnc_path)

    async def page(parts: Sequence[str]) -> Response:
        if not parts or any(part in (".", "..") or "/" in part or "\0" in part for part in parts):
            raise NotFound("The resource could not be found.")
        file = root.joinpath(*parts)
        try:
            data = await asyncio.to_thread(file.read_bytes)
        except OSError:
            if await asyncio.to_thread(root.is_dir):
                raise NotFound("The resource could not be found.") from None
            return Response(_NOVNC_MISSING.encode(), 503, {**HEADERS, "Content-Type": CONTENT_TYPES[".html"]})
        kind = CONTENT_TYPES.get(file.suffix, "application/octet-stream")
        return Response(data, headers={**HEADERS, "Content-Type": kind, "Cache-Control": "max-age=3600"})

    return page
