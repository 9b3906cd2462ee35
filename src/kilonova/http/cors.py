"""Lets pages of other origins call the APIs from a browser, where the configuration names those origins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kilonova.config import Cors as Settings

METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
EXPOSED = "X-OpenStack-Request-Id, OpenStack-API-Version, X-Subject-Token, Location"
MAX_AGE = "3600"
_Headers = list[tuple[bytes, bytes]]


def with_cors(app: Any, settings: Settings) -> Any:
    """The application itself where nothing is allowed."""
    return Cors(app, settings) if settings.allowed_origin else app


class Cors:
    """Around an ASGI application: answers browsers' questions, and adds to its answers what browsers look for."""

    def __init__(self, app: Any, settings: Settings) -> None:
        self._app = app
        self._origins = frozenset(settings.allowed_origin)
        self._headers = frozenset(name.lower() for name in settings.allow_headers)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope.get("headers", ())}
        origin = headers.get(b"origin")
        if scope["type"] != "http" or origin is None:
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            asked = headers.get(b"access-control-request-headers", "")
            sent = [*self._allowed(origin, asked), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 200, "headers": sent})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._app(scope, receive, self._marked(origin, send))

    def _allowed(self, origin: str, asked: str) -> _Headers:
        wanted = [name.strip() for name in asked.split(",") if name.strip()]
        if not self._knows(origin) or not all(name.lower() in self._headers for name in wanted):
            return []
        sent = [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-allow-methods", METHODS.encode()),
            (b"access-control-max-age", MAX_AGE.encode()),
            (b"vary", b"Origin"),
        ]
        if wanted:
            sent.append((b"access-control-allow-headers", ",".join(wanted).encode("latin-1")))
        return sent

    def _marked(self, origin: str, send: Any) -> Any:
        if not self._knows(origin):
            return send

        async def marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (b"access-control-allow-origin", origin.encode("latin-1")),
                    (b"access-control-expose-headers", EXPOSED.encode()),
                    (b"vary", b"Origin"),
                ]
            await send(message)

        return marked

    def _knows(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins
