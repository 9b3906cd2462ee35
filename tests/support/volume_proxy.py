"""A volume endpoint between a cloud and its own volume service, for the setting `volume.url`.

with VolumeProxy() as proxy, Cloud(data, environ={"KILONOVA_VOLUME__URL": proxy.url}) as cloud:
    proxy.cloud = cloud
    proxy.newest = "3.60"            # what it announces
    proxy.after = lambda asked: …    # called with "POST os-reimage" and such, before the answer goes back
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit

from tests.support.process import Cloud

_KEPT = ("x-auth-token", "openstack-api-version", "content-type", "accept")


class VolumeProxy:
    def __init__(self) -> None:
        self.cloud: Cloud | None = None
        self.newest: str | None = None
        self.after: Callable[[str], None] | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> VolumeProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def pass_on(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        assert self.cloud is not None
        target = urlsplit(self.cloud.endpoints["volume"].removesuffix("/v3"))
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=120)
        try:
            connection.request(method, target.path + path, body or None, headers)
            answer = connection.getresponse()
            status, content = answer.status, answer.read()
        finally:
            connection.close()
        if self.newest is not None and path == "/v3/":
            document = json.loads(content)
            for one in document["versions"]:
                one["version"] = self.newest
            content = json.dumps(document).encode()
        if self.after is not None and method != "GET":
            self.after(f"{method} {next(iter(json.loads(body)))}" if method == "POST" else method)
        return status, content


def _handler(proxy: VolumeProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name: value for name in _KEPT if (value := self.headers.get(name))}
            try:
                status, content = proxy.pass_on(self.command, self.path, headers, body)
            except (OSError, http.client.HTTPException):
                status, content = 503, b"{}"
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                pass  # whoever asked was killed

        do_GET = do_POST = do_PUT = do_DELETE = _do

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
