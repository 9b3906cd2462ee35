"""Console tokens: anyone with the URL may use it until it expires. Only hashes of tokens are stored."""

from __future__ import annotations

import hashlib
from urllib.parse import quote, urlsplit

from kilonova.http import Context
from kilonova.ids import new_id
from kilonova.store import Reader, Row

# First segment of the console's paths, then noVNC's page and the proxy's websocket.
MOUNT = "console"
PAGE, WEBSOCKET = "vnc_auto.html", "websocket"
NOVNC, SERIAL = "novnc", "serial"
# The console types that the proxy serves, and the guest's display for each.
DISPLAY_BY_TYPE = {NOVNC: "vnc", SERIAL: "serial"}


async def create_url(ctx: Context, row: Row, type: str) -> str:
    """Create a token for the server's console, and return its URL."""
    token = new_id()
    async with ctx.db.transaction() as tx:
        await tx.execute("DELETE FROM console_tokens WHERE expires_at < $1", ctx.now)
        await tx.execute(
            "INSERT INTO console_tokens (hash, server_id, user_id, type, created_at, expires_at)"
            " VALUES ($1, $2, $3, $4, $5, $6)",
            hash_of(token),
            row["id"],
            ctx.token.user_id,
            type,
            ctx.now,
            ctx.now + ctx.services.config.console.token_seconds,
        )
    return _url(ctx, type, token)


async def find_server(reader: Reader, token: str, now: float) -> Row | None:
    """The server of a valid token, with the `type` of the console."""
    return await reader.fetch_one(_SERVER, hash_of(token), now)


_SERVER = """
SELECT s.*, t.type FROM console_tokens t JOIN servers s ON s.id = t.server_id
WHERE t.hash = $1 AND t.expires_at >= $2 AND NOT s.deleted
"""


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _url(ctx: Context, type: str, token: str) -> str:
    """noVNC opens the websocket at the query parameter `path`, relative to the root of the page's host."""
    base = ctx.services.config.console.url.rstrip("/") or ctx.base_url().removesuffix(ctx.mount)
    at = urlsplit(base)
    path = f"{at.path}/{MOUNT}/{WEBSOCKET}?token={token}"
    if type == SERIAL:
        return f"{'wss' if at.scheme == 'https' else 'ws'}://{at.netloc}{path}"
    return f"{base}/{MOUNT}/{PAGE}?path={quote(path.lstrip('/'), safe='')}&autoconnect=true"
