"""One HTTP connection: uvicorn's protocol with limits on a request's head, on slow clients, and with errors as JSON.

An idle connection is closed after the server's keep-alive time, whatever a client sends that is no request. A client
that does not read its response for STALL_TIMEOUT_SECONDS loses the connection.

Except for websockets, an `Upgrade` header is ignored: some clients send one with every first request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from kilonova.http.errors import BadRequest, HttpError, RequestTimeout, Unavailable

if TYPE_CHECKING:
    from kilonova.http.connections import ConnectionLimits

log = logging.getLogger(__name__)

# Only paths below this may be websockets. The websocket code is loaded when the first one is opened.
WEBSOCKET_PREFIX = b"/console/"
MAX_HEAD_BYTES = 65536
HEAD_TIMEOUT_SECONDS = 30.0
STALL_TIMEOUT_SECONDS = 60.0


class HeadTooLarge(HttpError):
    status, title = 431, "Request Header Fields Too Large"


_TOO_MANY = Unavailable("There are too many connections; try again.", headers={"Retry-After": "1"})
_TOO_LARGE = HeadTooLarge(f"The request line and headers are larger than {MAX_HEAD_BYTES} bytes.")


class Protocol(HttpToolsProtocol):
    def __init__(self, *args: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = limits
        # The address that the limits count; None if the connection is not counted.
        self._counted: str | None = None
        # Since when there is no request with a complete head. The time of the loop has milliseconds only: two
        # connections could be equal.
        self.idle_since: float | None = None
        self._in_head = False
        # Bytes received after the first part of an incomplete head; None if no head is incomplete.
        self._head_bytes: int | None = None
        self._is_upgrade = False
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if not self._limits.admit(address, self.connections):  # type: ignore[arg-type]
            self._send_error(_TOO_MANY)
            return
        self._counted = address
        self.idle_since = time.monotonic()
        self._deadline = self.loop.call_later(self.timeout_keep_alive, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._cancel_stall()
        self.release()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close an idle connection at once. A TLS connection would wait for the client's reply, and delay the stop."""
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and not self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().shutdown()

    def release(self) -> None:
        """Count the connection no more."""
        if self._counted is not None:
            self._limits.release(self._counted)
            self._counted = None

    def close_idle(self) -> None:
        self.idle_since = None
        self.transport.close()

    # Clients that do not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self._cancel_stall()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_if_unread()
        elif self.cycle.response_complete:
            self.idle_since = time.monotonic()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_if_unread()

    def _abort_if_unread(self) -> None:
        """Limit how long a closed connection waits for the client to read the rest of the response."""
        if self.transport.get_write_buffer_size():
            self._expect_reading()

    def _expect_reading(self) -> None:
        if self._stalled is None:
            self._stalled = self.loop.call_later(STALL_TIMEOUT_SECONDS, self.transport.abort)

    def _cancel_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # Data

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            refusal = error.__context__
            self._refuse(refusal if isinstance(refusal, HttpError) else BadRequest("The request is not valid HTTP."))
            return
        if self._in_head:
            self._await_rest_of_head(len(data))

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self._is_websocket():
                    self._switch_to_websocket(data[upgrade.args[0] :])
                    return
                data = self._without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            else:
                return

    def _without_upgrade(self) -> bytes:
        """The current head without its upgrade headers."""
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
        """Whether the request opens a websocket at a valid path, with no earlier request unanswered."""
        if not self.url.startswith(WEBSOCKET_PREFIX) or not (self.cycle is None or self.cycle.response_complete):
            return False
        return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in self.headers)

    def _switch_to_websocket(self, rest: bytes) -> None:
        """Continue the connection as a websocket, starting with the head of this request."""
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

        self._cancel_deadline()
        self.connections.discard(self)
        release = self.release

        class Websocket(WebSocketsSansIOProtocol):
            def connection_lost(self, exc: Exception | None) -> None:
                release()
                super().connection_lost(exc)

        socket = Websocket(self.config, self.server_state, self.app_state)
        socket.connection_made(self.transport)
        self.transport.set_protocol(socket)
        socket.data_received(self._head(self.headers) + rest)

    # Head of a request

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._in_head = True
        self._head_bytes = None
        self._is_upgrade = False

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._cancel_deadline()
        self._unset_keepalive_if_required()
        self.idle_since = None
        if len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers]) > MAX_HEAD_BYTES:
            raise _TOO_LARGE
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._is_upgrade = True
        else:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_upgrade:
            super().on_message_complete()

    def _await_rest_of_head(self, size: int) -> None:
        """Limit the time and size of an incomplete head."""
        if self._head_bytes is None:
            self._head_bytes = 0
            self._cancel_deadline()
            self._deadline = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self._refuse_slow_head)
        else:
            self._head_bytes += size
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(_TOO_LARGE)

    def _refuse_slow_head(self) -> None:
        self._refuse(RequestTimeout(f"The request's headers were not complete after {HEAD_TIMEOUT_SECONDS:g} seconds."))

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # Errors

    def _refuse(self, error: HttpError) -> None:
        """Send the error and close the connection, after earlier complete requests are answered."""
        log.info("malformed request: %s", error.message)
        self._cancel_deadline()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False
            self.flow.pause_reading()
            return
        self._send_error(error)

    def _send_error(self, error: HttpError) -> None:
        cycle = self.cycle
        body = orjson.dumps({"error": {"code": error.status, "title": error.title, "message": error.message}})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        for name, value in error.headers.items():
            head += b"%s: %s\r\n" % (name.lower().encode(), value.encode())
        if not self.pipeline and (cycle is None or cycle.response_complete or not cycle.response_started):
            self.transport.write(STATUS_LINE[error.status] + head + b"\r\n" + body)
        self.transport.close()
        self._abort_if_unread()
