"""A proxy between a cloud and its volume service, for the setting `volume.url`.

with VolumeProxy() as proxy, CloudProcess(data, environ={"KILONOVA_VOLUME__URL": proxy.url}) as cloud:
    proxy.cloud = cloud
    proxy.announced_version = "3.60"           # as the newest version of the service
    proxy.after_request = lambda name: …       # called with e.g. "POST os-reimage" before the response is sent
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit

from tests.support.cloud_process import CloudProcess

_FORWARDED_HEADERS = ("x-auth-token", "openstack-api-version", "content-type", "accept")


class VolumeProxy:
    """An HTTP server that forwards requests to the volume service of `cloud`."""

    def __init__(self) -> None:
        self.cloud: CloudProcess | None = None
        self.announced_version: str | None = None
        self.after_request: Callable[[str], None] | None = None
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

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        assert self.cloud is not None
        target = urlsplit(self.cloud.endpoints["volume"].removesuffix("/v3"))
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=120)
        try:
            connection.request(method, target.path + path, body or None, headers)
            answer = connection.getresponse()
            status, content = answer.status, answer.read()
        finally:
            connection.close()
        if self.announced_version is not None and path == "/v3/":
            document = json.loads(content)
            for entry in document["versions"]:
                entry["version"] = self.announced_version
            content = json.dumps(document).encode()
        if self.after_request is not None and method != "GET":
            self.after_request(f"{method} {next(iter(json.loads(body)))}" if method == "POST" else method)
        return status, content


def _handler(proxy: VolumeProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name: value for name in _FORWARDED_HEADERS if (value := self.headers.get(name))}
            try:
                status, content = proxy.forward(self.command, self.path, headers, body)
            except (OSError, http.client.HTTPException):
                status, content = 503, b"{}"
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                pass  # the client was killed

        do_GET = do_POST = do_PUT = do_DELETE = _do

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
