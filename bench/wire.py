"""A minimal keep-alive HTTP client, so that the load itself needs little CPU."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import orjson


class Wire:
    """One connection, one request at a time."""

    def __init__(self, url: str, token: str | None = None, version: str = "2.96") -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        head = f"Host: {parts.netloc}\r\nOpenStack-API-Version: compute {version}, placement 1.39\r\n"
        self.head = head + (f"X-Auth-Token: {token}\r\n" if token else "")
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter

    async def request(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], bytes]:
        if self.reader is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port, limit=2**24)
        content = b"" if body is None else orjson.dumps(body)
        kind = "Content-Type: application/json\r\n" if body is not None else ""
        head = f"{method} {path} HTTP/1.1\r\n{self.head}{kind}Content-Length: {len(content)}\r\n\r\n"
        self.writer.write(head.encode() + content)
        raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        answer = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split(" ", 2)[1]), headers, answer

    async def json(self, method: str, path: str, body: Any = None, *, expect: int = 200) -> Any:
        status, _, answer = await self.request(method, path, body)
        if status != expect:
            raise RuntimeError(f"{method} {path}: {status} {answer[:300].decode(errors='replace')}")
        return orjson.loads(answer) if answer else None

    def close(self) -> None:
        if self.reader is not None:
            self.writer.close()


async def log_in(auth_url: str, auth: dict[str, str]) -> str:
    """Get a token for one cloud of clouds.yaml."""
    user = {"name": auth["username"], "domain": {"name": auth["user_domain_name"]}, "password": auth["password"]}
    project = {"name": auth["project_name"], "domain": {"name": auth["project_domain_name"]}}
    body = {
        "auth": {
            "identity": {"methods": ["password"], "password": {"user": user}},
            "scope": {"project": project},
        }
    }
    wire = Wire(auth_url)
    status, headers, answer = await wire.request("POST", urlsplit(auth_url).path + "/auth/tokens", body)
    wire.close()
    if status != 201:
        raise RuntimeError(f"cannot log in: {status} {answer[:300].decode(errors='replace')}")
    return headers["x-subject-token"]
