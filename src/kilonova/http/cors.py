"""CORS: lets browsers call the APIs from the origins that the configuration allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kilonova.config import Cors as Settings

ALLOWED_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
EXPOSED_HEADERS = "X-OpenStack-Request-Id, OpenStack-API-Version, X-Subject-Token, Location"
MAX_AGE_SECONDS = "3600"
_Headers = list[tuple[bytes, bytes]]


def allow_origins(app: Any, settings: Settings) -> Any:
    """Wrap the application, unless the configuration allows no origin."""
    return Cors(app, settings) if settings.allowed_origin else app


class Cors:
    """ASGI middleware: answers preflight requests, and adds CORS headers to responses."""

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
            requested = headers.get(b"access-control-request-headers", "")
            sent = [*self._preflight_headers(origin, requested), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 200, "headers": sent})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._app(scope, receive, self._with_headers(origin, send))

    def _preflight_headers(self, origin: str, requested: str) -> _Headers:
        names = [name.strip() for name in requested.split(",") if name.strip()]
        if not self._is_allowed(origin) or not all(name.lower() in self._headers for name in names):
            return []
        sent = [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-allow-methods", ALLOWED_METHODS.encode()),
            (b"access-control-max-age", MAX_AGE_SECONDS.encode()),
            (b"vary", b"Origin"),
        ]
        if names:
            sent.append((b"access-control-allow-headers", ",".join(names).encode("latin-1")))
        return sent

    def _with_headers(self, origin: str, send: Any) -> Any:
        if not self._is_allowed(origin):
            return send

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (b"access-control-allow-origin", origin.encode("latin-1")),
                    (b"access-control-expose-headers", EXPOSED_HEADERS.encode()),
                    (b"vary", b"Origin"),
                ]
            await send(message)

        return send_with_headers

    def _is_allowed(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins
