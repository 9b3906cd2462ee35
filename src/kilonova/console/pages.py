"""noVNC's own pages and scripts, from where the distribution has put them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova.http import Answer
from kilonova.http.errors import NotFound

if TYPE_CHECKING:
    from kilonova.config import Console

HEADERS = {
    # The address of a page holds the token of its console.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
TYPES = {
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
_ABSENT = """<!DOCTYPE html>
<html lang="en"><title>No console pages</title><body><h1>noVNC is not installed here</h1>
<p>The screens of servers are shown by noVNC, which is not in the directory that <code>console.novnc</code> of the
configuration names. On Debian and Ubuntu: <code>apt install novnc</code></p></body></html>
"""


def pages(settings: Console) -> Callable[[Sequence[str]], Awaitable[Answer]]:
    root = Path(settings.novnc)

    async def page(parts: Sequence[str]) -> Answer:
        """The file of this path below the directory."""
        if not parts or any(part in (".", "..") or "/" in part or "\0" in part for part in parts):
            raise NotFound("The resource could not be found.")
        file = root.joinpath(*parts)
        try:
            data = await asyncio.to_thread(file.read_bytes)
        except OSError:
            if await asyncio.to_thread(root.is_dir):
                raise NotFound("The resource could not be found.") from None
            return Answer(_ABSENT.encode(), 503, {**HEADERS, "Content-Type": TYPES[".html"]})
        kind = TYPES.get(file.suffix, "application/octet-stream")
        return Answer(data, headers={**HEADERS, "Content-Type": kind, "Cache-Control": "max-age=3600"})

    return page
