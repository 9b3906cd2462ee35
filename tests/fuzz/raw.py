"""Raw HTTP: sends bytes to a socket, and parses the responses."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.support.cloud_process import CloudProcess


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class RawConnection:
    """One connection. `with RawConnection(cloud) as connection: connection.send(b"…"); connection.reply()`"""

    def __init__(self, cloud: CloudProcess, seconds: float = 60.0) -> None:
        address = cloud.endpoints["compute"].split("/")[2].rsplit(":", 1)
        self.socket = socket.create_connection((address[0], int(address[1])), timeout=seconds)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        """Send bytes. If the server closes the connection meanwhile, its response can still be read."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                self.socket.sendall(part)

    def end(self) -> None:
        """Close the sending side."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def reply(self, method: str = "GET") -> Reply | None:
        """The next response; None if the server has closed the connection. Raises TimeoutError."""
        try:
            line = self.file.readline()
            if not line:
                return None
            version, status = line.split(None, 2)[:2]
            assert version == b"HTTP/1.1", line
            headers: dict[str, str] = {}
            while (line := self.file.readline()) not in (b"\r\n", b""):
                name, _, value = line.decode("latin-1").partition(":")
                headers[name] = value.strip()
            return Reply(int(status), headers, self._body(method, headers))
        except ConnectionResetError:
            return None

    def _body(self, method: str, headers: dict[str, str]) -> bytes:
        if method == "HEAD":
            return b""
        if headers.get("transfer-encoding") == "chunked":
            chunks = []
            while size := int(self.file.readline(), 16):
                chunks.append(self.file.read(size))
                self.file.readline()
            self.file.readline()
            return b"".join(chunks)
        return self.file.read(int(headers.get("content-length", "0")))

    def is_closed(self) -> bool:
        """Whether the server closes the connection without sending anything more."""
        try:
            return self.file.read(1) == b""
        except ConnectionResetError:
            return True


def request(method: str, path: str, *headers: str, body: bytes | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def chunked(parts: Iterable[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def assert_fault(path: str, reply: Reply) -> None:
    """Check that an error has the format of the path's API."""
    assert 400 <= reply.status < 500, reply
    assert reply.headers["content-type"] == "application/json", reply
    fault = reply.json()
    service = path.split("/")[1]
    if service in ("compute", "volume", "share"):
        ((_, error),) = fault.items()
        assert error["code"] == reply.status, reply
    elif service == "network":
        error = fault["NeutronError"]
        assert set(error) == {"type", "message", "detail"}, reply
    elif service == "image":
        error = fault
        assert error["code"].startswith(f"{reply.status} "), reply
    elif service == "placement":
        (error,) = fault["errors"]
        assert error["status"] == reply.status, reply
        error = {"message": error["detail"]}
    else:
        error = fault["error"]
        assert error["code"] == reply.status, reply
    assert error["message"], reply
    assert len(error["message"]) < 1500, reply
