"""Console tokens: anyone with the URL may use it until it expires. Only hashes of tokens are stored."""

from __future__ import annotations

import hashlib
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from kilonova.compute.servers.server import Server
from kilonova.http import Context
from kilonova.ids import new_id
from kilonova.store import Reader

# First segment of the console's paths, then noVNC's page and the proxy's websocket.
MOUNT = "console"
PAGE, WEBSOCKET = "vnc_auto.html", "websocket"
NOVNC, SERIAL = "novnc", "serial"
# The console types that the proxy serves, and the guest's display for each.
DISPLAY_BY_TYPE = {NOVNC: "vnc", SERIAL: "serial"}


class Console(NamedTuple):
    """`user_id` is the user for whom the token was made."""

    server: Server
    type: str
    user_id: str


async def create_url(ctx: Context, server: Server, type: str) -> str:
    """Create a token for the server's console, and return its URL."""
    token = new_id()
    async with ctx.db.transaction() as tx:
        await tx.execute("DELETE FROM console_tokens WHERE expires_at < $1", ctx.now)
        await tx.execute(
            "INSERT INTO console_tokens (hash, server_id, user_id, type, created_at, expires_at)"
            " VALUES ($1, $2, $3, $4, $5, $6)",
            hash_of(token),
            server.id,
            ctx.token.user_id,
            type,
            ctx.now,
            ctx.now + ctx.services.config.console.token_seconds,
        )
    return _url(ctx, type, token)


async def find_console(reader: Reader, token: str, now: float) -> Console | None:
    """The console of a valid token."""
    row = await reader.fetch_one(_CONSOLE, hash_of(token), now)
    return None if row is None else Console(Server.decode(row), row["type"], row["token_user_id"])


_CONSOLE = """
SELECT s.*, t.type, t.user_id AS token_user_id FROM console_tokens t JOIN servers s ON s.id = t.server_id
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
