"""One connection: uvicorn's HTTP protocol, with bounds on a request's head and errors in our own format.

Offers to speak another protocol (`Upgrade`, which some clients make with every first request) are not taken up, and
the request is served as if they had not been made; but for websockets, where they belong.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from kilonova.http.errors import BadRequest, HttpError, RequestTimeout

log = logging.getLogger(__name__)

# What stands below is for browsers, and may be a websocket. Nothing of that is loaded before one comes.
SOCKETS = b"/console/"
HEAD_BYTES = 65536
HEAD_SECONDS = 30.0


class HeadTooLarge(HttpError):
    status, title = 431, "Request Header Fields Too Large"


_TOO_LARGE = HeadTooLarge(f"The request line and headers are larger than {HEAD_BYTES} bytes.")


class Protocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = False
        # Bytes that came after the first of an unfinished head; none while no head is waited for.
        self._waited: int | None = None
        self._is_upgrade = False
        self._deadline: asyncio.TimerHandle | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.timeout_keep_alive, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            refusal = error.__context__
            self._refuse(refusal if isinstance(refusal, HttpError) else BadRequest("This is not valid HTTP."))
            return
        if self._in_head:
            self._go_on_waiting(len(data))

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self._is_websocket():
                    self._hand_over(data[upgrade.args[0] :])
                    return
                data = self._without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            else:
                return

    def _without_upgrade(self) -> bytes:
        """The head just read, as a client without wishes would have sent it."""
        headers = []
        for name, value in self.headers:
            if name == b"connection":
                value = b", ".join(word for word in value.split(b",") if word.strip().lower() != b"upgrade")
            if name not in (b"upgrade", b"http2-settings"):
                headers.append((name, value))
        return self._head(headers)

    def _head(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in headers]
        return b"\r\n".join([*lines, b"", b""])

    # Websockets

    def _is_websocket(self) -> bool:
        """Whether one is offered where there may be one, and no earlier request waits for its answer."""
        if not self.url.startswith(SOCKETS) or not (self.cycle is None or self.cycle.response_complete):
            return False
        return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in self.headers)

    def _hand_over(self, rest: bytes) -> None:
        """The connection goes on as a websocket, from the very head of this request."""
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

        self._disarm()
        self.connections.discard(self)
        socket = WebSocketsSansIOProtocol(self.config, self.server_state, self.app_state)
        socket.connection_made(self.transport)
        self.transport.set_protocol(socket)
        socket.data_received(self._head(self.headers) + rest)

    # The head of a request

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._waited = None
        self._is_upgrade = False

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._disarm()
        if len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers]) > HEAD_BYTES:
            raise _TOO_LARGE
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._is_upgrade = True
        else:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_upgrade:
            super().on_message_complete()

    def _go_on_waiting(self, size: int) -> None:
        """The rest of a head is missing: it has some time, and may not be endless."""
        if self._waited is None:
            self._waited = 0
            self._disarm()
            self._deadline = self.loop.call_later(HEAD_SECONDS, self._give_up)
        else:
            self._waited += size
            if self._waited > HEAD_BYTES:
                self._refuse(_TOO_LARGE)

    def _give_up(self) -> None:
        self._refuse(RequestTimeout(f"The request's headers were not complete after {HEAD_SECONDS:g} seconds."))

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # Refusing

    def _refuse(self, error: HttpError) -> None:
        """Say why and hang up; whole requests that came before are answered first."""
        log.info("malformed request: %s", error.message)
        self._disarm()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False
            self.flow.pause_reading()
            return
        body = orjson.dumps({"error": {"code": error.status, "title": error.title, "message": error.message}})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        if not self.pipeline and (cycle is None or cycle.response_complete or not cycle.response_started):
            self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()
