"""A process of `kilonova up`, and a small client for it.

with CloudProcess(tmp_path / "data", "--hosts", "2") as cloud:
    cloud.client("kilonova-demo").get("compute", "/servers/detail").json()
    cloud.kill()                     # without cleanup; or cloud.stop()
    cloud.start()                    # continues with the same data
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from urllib.parse import SplitResult, urlsplit

import apsw
import yaml

from tests.support import data_template
from tests.support.forked_kilonova import ForkedKilonova

KILONOVA = str(Path(sys.executable).with_name("kilonova"))
START_TIMEOUT_SECONDS = 300.0
# Less than the server's keep-alive timeout, so that it does not close the connection during a request.
MAX_IDLE_SECONDS = 30.0
_PROCESS_NUMBERS = itertools.count()
# Short names of server fields, for `Client.wait`.
_SERVER_FIELDS = {"task_state": "OS-EXT-STS:task_state", "power_state": "OS-EXT-STS:power_state"}


class NotStarted(AssertionError):
    """The process ended, or did not respond in time. `code` is its exit code, None if it was still running."""

    def __init__(self, code: int | None, output: str) -> None:
        super().__init__(f"kilonova did not start (exit code {code}):\n{output}")
        self.code = code
        self.output = output


class Response:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Calls the services as the user of one cloud of clouds.yaml."""

    def __init__(self, endpoints: Mapping[str, str], cloud: Mapping[str, Any], version: str | None = None) -> None:
        self.endpoints = endpoints
        self.auth = cloud["auth"]
        self.authority: str | None = cloud.get("cacert")
        self.version = version
        self._token: str | None = None
        self._project_id: str | None = None
        self._connection: http.client.HTTPConnection | None = None
        self._last_used_at = 0.0

    def __del__(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def get(self, service: str, path: str, **options: Any) -> Response:
        return self.request("GET", service, path, **options)

    def post(self, service: str, path: str, body: Any, **options: Any) -> Response:
        return self.request("POST", service, path, json=body, **options)

    def put(self, service: str, path: str, body: Any, **options: Any) -> Response:
        return self.request("PUT", service, path, json=body, **options)

    def delete(self, service: str, path: str, **options: Any) -> Response:
        return self.request("DELETE", service, path, **options)

    def request(
        self,
        method: str,
        service: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        version: str | None = None,
    ) -> Response:
        all_headers = {"X-Auth-Token": self.token, **(headers or {})}
        version = version or self.version
        if version is not None:
            all_headers["OpenStack-API-Version"] = f"{service} {version}"
        return self.request_url(method, self.endpoints[service] + path, json=json, content=content, headers=all_headers)

    def boot(self, name: str = "web") -> str:
        """Create a small server; returns its id."""
        image = self.get("image", "/images").json()["images"][0]["id"]
        body = {"server": {"name": name, "flavorRef": "1", "imageRef": image, "networks": "auto"}}
        answer = self.post("compute", "/servers", body, version="2.37")
        assert answer.status == 202, answer.body
        server_id: str = answer.json()["server"]["id"]
        return server_id

    def wait(self, server_id: str, seconds: float = 60.0, **fields: str) -> dict[str, Any]:
        """Wait until the server's fields have these values."""
        until = time.monotonic() + seconds
        while True:
            server: dict[str, Any] = self.get("compute", f"/servers/{server_id}").json()["server"]
            if all(server[_SERVER_FIELDS.get(name, name)] == value for name, value in fields.items()):
                return server
            assert time.monotonic() < until, server
            time.sleep(0.02)

    @property
    def token(self) -> str:
        if self._token is None:
            self._log_in()
        assert self._token is not None
        return self._token

    @property
    def project_id(self) -> str:
        if self._project_id is None:
            self._log_in()
        assert self._project_id is not None
        return self._project_id

    def log_in(self) -> Response:
        """Request a token with the cloud's password, and return the response even if it is an error."""
        auth = self.auth
        user = {"name": auth["username"], "domain": {"name": auth["user_domain_name"]}, "password": auth["password"]}
        scope: Any = {"system": {"all": True}}
        if "project_name" in auth:
            scope = {"project": {"name": auth["project_name"], "domain": {"name": auth["project_domain_name"]}}}
        identity = {"methods": ["password"], "password": {"user": user}}
        body = {"auth": {"identity": identity, "scope": scope}}
        return self.request_url("POST", self.endpoints["auth_url"] + "/auth/tokens", json=body)

    def _log_in(self) -> None:
        answer = self.log_in()
        assert answer.status == 201, answer.body
        self._token = answer.headers["x-subject-token"]
        self._project_id = answer.json()["token"].get("project", {}).get("id")

    def request_url(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request without a token to any URL of the process."""
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        all_headers, body = dict(headers or {}), content
        if json is not None:
            all_headers["Content-Type"] = "application/json"
            body = _dumps(json)
        elif content is not None:
            all_headers.setdefault("Content-Type", "application/octet-stream")
        if self._connection is not None and time.monotonic() > self._last_used_at + MAX_IDLE_SECONDS:
            self._connection.close()
            self._connection = None
        self._last_used_at = time.monotonic()
        if self._connection is None or self._connection.port != parts.port:
            self._connection = self._connect(parts)
        try:
            self._connection.request(method, target, body, all_headers)
            answer = self._connection.getresponse()
            return Response(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        except BaseException:
            self._connection.close()
            self._connection = None
            raise

    def _connect(self, parts: SplitResult) -> http.client.HTTPConnection:
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=self.authority)
            return http.client.HTTPSConnection(host, parts.port, timeout=120, context=context)
        return http.client.HTTPConnection(host, parts.port, timeout=120)


class CloudProcess:
    """A context manager that starts the process, and ends it in any case."""

    def __init__(
        self,
        data: Path,
        *options: str,
        environ: Mapping[str, str] | None = None,
        command: Sequence[str] = ("up",),
        fresh: bool = False,
    ) -> None:
        """`fresh`: start a new interpreter on an empty data directory, as users do.

        Otherwise the process is forked from one that has loaded its modules, and the data directory is prepared. Both
        are faster.
        """
        self.data = data
        self.fresh = fresh
        self.options = options
        self.command = command
        self.environ = dict(environ or {})
        self.process: ForkedKilonova | subprocess.Popen[bytes] | None = None
        self.number = next(_PROCESS_NUMBERS)  # several processes may share a data directory

    def __enter__(self) -> CloudProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop()
        if self.running:
            self.kill()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def output(self) -> str:
        """The output of the process since its last start."""
        return self._output_file.read_text()

    @property
    def _output_file(self) -> Path:
        return self.data.with_name(f"{self.data.name}.{self.number}.output")

    @property
    def log(self) -> str:
        return (self.data / "kilonova.log").read_text()

    def start(self, *options: str, wait: bool = True) -> None:
        """Returns when the process responds. Raises NotStarted."""
        assert not self.running
        if self.command != ("worker",):
            (self.data / "endpoints.json").unlink(missing_ok=True)
        arguments = [*self.command, "--data", str(self.data), *self.options, *options]
        if "--port" not in arguments and self.command != ("worker",):
            arguments += ["--port", "0"]
        if not self.fresh and self._is_simulated:
            data_template.prepare_data_directory(self.data, self._database)
        with self._output_file.open("w") as output:
            self.process = _start_process(arguments, {**os.environ, **self.environ}, output, output, fresh=self.fresh)
        if wait:
            self._wait_until_ready(time.monotonic() + START_TIMEOUT_SECONDS)

    @property
    def _database(self) -> str | None:
        return self.options[self.options.index("--database") + 1] if "--database" in self.options else None

    @property
    def _is_simulated(self) -> bool:
        """Whether hosts are simulated. Clouds with real guests start with another image."""
        file = self.options[self.options.index("--config") + 1] if "--config" in self.options else None
        settings = tomllib.loads(Path(file).read_text()) if file else {}
        return not ("--driver" in self.options or "KILONOVA_DRIVER" in self.environ or settings.get("driver"))

    def _wait_until_ready(self, until: float) -> None:
        ready = "working" if self.command == ("worker",) else "clouds.yaml"
        while self.running and time.monotonic() < until:
            if ready in self.output:
                return
            time.sleep(0.01)
        code = self.process.poll() if self.process else None
        self.kill()
        raise NotStarted(code, self.output)

    def stop(self, timeout: float = 60.0) -> int:
        """Send SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def reload(self, expected: str) -> str:
        """Send SIGHUP, and return the log's new lines once they contain the text."""
        assert self.process is not None
        before, until = len(self.log), time.monotonic() + START_TIMEOUT_SECONDS
        self.process.send_signal(signal.SIGHUP)
        while expected not in (log := self.log[before:]):
            assert time.monotonic() < until, log
            time.sleep(0.01)
        return log

    def kill(self) -> None:
        """End the process without cleanup (SIGKILL)."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def set_last_report_back(self, host: str) -> None:
        """Set the host's last report back by an hour. For a cloud on SQLite."""
        connection = apsw.Connection(str(self.data / "kilonova.db"))
        connection.set_busy_timeout(60_000)
        connection.execute("UPDATE services SET last_seen_at = last_seen_at - 3600 WHERE host = ?", (host,))
        connection.close()

    @property
    def endpoints(self) -> dict[str, str]:
        endpoints: dict[str, str] = json.loads((self.data / "endpoints.json").read_text())
        return endpoints

    @property
    def clouds(self) -> dict[str, Any]:
        clouds: dict[str, Any] = yaml.load((self.data / "clouds.yaml").read_text(), yaml.CSafeLoader)["clouds"]
        return clouds

    def client(self, cloud: str = "kilonova-demo", version: str | None = None) -> Client:
        return Client(self.endpoints, self.clouds[cloud], version)


def kilonova(
    *arguments: str, environ: Mapping[str, str] | None = None, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command, and kill it after a timeout. `fresh`: in a new interpreter."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = _start_process(arguments, {**os.environ, **(environ or {})}, output, errors, fresh=fresh)
        try:
            process.wait(600)  # long enough to build an image
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, process.returncode or 0, output.read(), errors.read())


def _start_process(
    arguments: Sequence[str], environ: Mapping[str, str], output: IO[str], errors: IO[str], *, fresh: bool
) -> ForkedKilonova | subprocess.Popen[bytes]:
    with open(os.devnull) as stdin:
        if fresh or environ.get("PYTHONPATH") != os.environ.get(
            "PYTHONPATH"
        ):  # Python reads PYTHONPATH only at its start
            return subprocess.Popen(
                [KILONOVA, *arguments], stdin=stdin, stdout=output, stderr=errors, env=dict(environ)
            )
        return ForkedKilonova(list(arguments), environ, stdin.fileno(), output.fileno(), errors.fileno())


def _dumps(body: Any) -> bytes:
    return json.dumps(body).encode()
