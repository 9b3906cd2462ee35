"""The listening socket and the HTTP server on it."""

from __future__ import annotations

import asyncio
import errno
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from kilonova.http.connections import ConnectionLimits

if TYPE_CHECKING:
    import ssl

    import uvicorn

SHUTDOWN_GRACE_SECONDS = 2
KEEP_ALIVE_SECONDS = 65


class CannotListen(Exception):
    pass


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """Bind a socket and listen, so that clients wait until the process is ready instead of being refused.

    `option` is the setting that chooses another port.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}: {error.strerror}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(
                f"port {port} on {host} is in use; choose another with {option}, or 0 for any free one"
            ) from None
        raise CannotListen(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return bound


def socket_url(bound: socket.socket, scheme: str = "http") -> str:
    """The URL of a listening socket for clients on this machine."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Server:
    """Serves one ASGI application on a bound socket, from `start` until `stop`; with `tls` by HTTPS only."""

    def __init__(
        self, app: Any, bound: socket.socket, tls: ssl.SSLContext | None = None, limits: ConnectionLimits | None = None
    ) -> None:
        self._app = app
        self._bound = bound
        self._tls = tls
        self._limits = limits or ConnectionLimits()
        self._server: uvicorn.Server
        self._running: asyncio.Task[None]

    async def start(self) -> None:
        """Start serving; requests are answered when it returns."""
        import uvicorn

        from kilonova.http.protocol import Protocol

        config = uvicorn.Config(
            self._app,
            http=partial(Protocol, limits=self._limits),  # type: ignore[arg-type]
            # `Protocol` handles websockets itself. Console pictures are compressed already.
            ws="none",
            ws_per_message_deflate=False,
            lifespan="off",
            interface="asgi3",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            # `request_origin` reads the forwarded headers.
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_GRACE_SECONDS,
        )
        server = self._server = uvicorn.Server(config)
        config.load()
        config.ssl = self._tls
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[self._bound])
        self._running = asyncio.create_task(server.main_loop())

    async def stop(self) -> None:
        """Accept no more requests, and let running ones finish for SHUTDOWN_GRACE_SECONDS."""
        self._server.should_exit = True
        await self._running
        await self._server.shutdown(sockets=[self._bound])
