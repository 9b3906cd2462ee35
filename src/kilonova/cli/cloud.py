"""A client of the public API of the cloud that runs in a data directory."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from email.message import Message
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import click
import orjson

from kilonova import datadir
from kilonova.certificates import UnusableCertificate, client_context
from kilonova.cli.login import Login, login_of, read_clouds
from kilonova.cli.options import Failure

if TYPE_CHECKING:
    from kilonova.config import Config

VERSION = "2.96"
REQUEST_TIMEOUT_SECONDS = 60.0
DRY_RUN = "X-Kilonova-Dry-Run"

cloud = click.option(
    "--cloud",
    default="kilonova",
    show_default=True,
    metavar="NAME",
    help="Use this cloud of clouds.yaml. The user decides which hosts you see.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


class CloudUnreachable(Failure):
    """The cloud did not respond. It may or may not have received the request."""


class ApiError(Failure):
    """The cloud responded with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Cloud:
    """A client for the cloud `name` of clouds.yaml in the data directory. All errors are raised as Failure."""

    def __init__(self, config: Config, name: str) -> None:
        self._config = config
        self._directory = config.data_dir
        self._name = name
        self._token: str | None = None
        # The catalogue of the token: a list of services.
        self._catalog: list[dict[str, Any]] = []
        try:
            self._read_files()
        except FileNotFoundError:
            raise Failure(f"--data: no cloud is running in {self._directory}; start it with `kilonova up`") from None
        except (OSError, ValueError) as error:
            raise Failure(f"{self._directory / datadir.ENDPOINTS}: {error}") from None

    def _read_files(self) -> None:
        """Read the addresses of the cloud, which may change when it restarts. Raises OSError, ValueError or Failure."""
        self._endpoints: dict[str, str] = orjson.loads((self._directory / datadir.ENDPOINTS).read_bytes())
        clouds = read_clouds(self._directory / datadir.CLOUDS)
        if self._name not in clouds:
            raise Failure(f"--cloud: {self._name!r} is not one of {', '.join(clouds)}")
        self._cloud = clouds[self._name]

    def get(self, service: str, *path: str, **query: str | int | None) -> Any:
        """The response's body. Raises ApiError."""
        return self._send("GET", service, path, query)[0]

    def put(self, service: str, *path: str, body: object) -> Any:
        return self._send("PUT", service, path, {}, body)[0]

    def post(self, service: str, *path: str, body: object) -> Any:
        return self._send("POST", service, path, {}, body)[0]

    def upload(self, image_id: str, data: bytes) -> None:
        """Upload the data of an image. Raises ApiError."""
        self._send("PUT", "image", ("images", image_id, "file"), {}, data)

    def act(self, server_id: str, action: str, body: object, *, version: str = VERSION, dry_run: bool = False) -> Any:
        """Run a server action; returns the request id, or the plan of a dry run. Raises ApiError."""
        path = ("servers", server_id, "action")
        headers = {"OpenStack-API-Version": f"compute {version}", **({DRY_RUN: "1"} if dry_run else {})}
        result, response_headers = self._send("POST", "compute", path, {}, {action: body}, headers)
        return result["plan"] if dry_run else response_headers["X-OpenStack-Request-Id"]

    def _send(
        self,
        method: str,
        service: str,
        path: tuple[str, ...],
        query: Mapping[str, str | int | None],
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, Message]:
        """The response's body and headers. An expired token is replaced once."""
        base_url, tls = self._find_service(service)
        url = "/".join([base_url, *(quote(part, safe="") for part in path)])
        parameters = {key: value for key, value in query.items() if value is not None}
        request = urllib.request.Request(f"{url}?{urlencode(parameters)}" if parameters else url, method=method)
        if isinstance(body, bytes):
            request.data = body
            request.add_header("Content-Type", "application/octet-stream")
        elif body is not None:
            request.data = orjson.dumps(body)
            request.add_header("Content-Type", "application/json")
        for name, value in {"OpenStack-API-Version": f"{service} {VERSION}", **(headers or {})}.items():
            request.add_header(name, value)
        token = self._get_token()
        request.add_header("X-Auth-Token", token)
        try:
            response, response_headers = _send(request, tls)
        except CloudUnreachable:
            with suppress(OSError, ValueError, Failure):
                self._read_files()
            raise
        except ApiError as error:
            if error.status != 401:
                raise
            if self._token == token:
                self._token = None
            request.add_header("X-Auth-Token", self._get_token())
            response, response_headers = _send(request, tls)
        return orjson.loads(response) if response else None, response_headers

    def _find_service(self, service: str) -> tuple[str, ssl.SSLContext | None]:
        """The base URL with the version, and how to verify the service: of this cloud, or of a real one beside it."""
        if service in self._endpoints:
            authority = f"{datadir.ENDPOINTS}: {datadir.CACERT}"
            return self._endpoints[service], _context(
                self._endpoints[service], self._endpoints.get(datadir.CACERT), authority
            )
        from kilonova.api_servers import ENDPOINTS
        from kilonova.identity.catalog_caller import without_version

        settings = getattr(self._config, service)
        url = without_version(settings.url or self._catalog_url(service))
        version = ENDPOINTS[service].removeprefix(f"/{service}")
        return url + version, _context(url, settings.ca_file, f"{service}.ca_file")

    def _catalog_url(self, service: str) -> str:
        from kilonova.companions import SERVICE_TYPES
        from kilonova.identity.client import IdentityError, find_endpoint

        self._get_token()
        identity = self._config.identity
        try:
            return find_endpoint(self._catalog, SERVICE_TYPES[service], identity.interface, identity.region).url
        except IdentityError as error:
            raise Failure(str(error)) from None

    def _get_token(self) -> str:
        if self._token is None:
            self._token = self._log_in(login_of(self._cloud_with_password(), self._refuse_without_password))
        return self._token

    def _log_in(self, login: Login) -> str:
        from kilonova.identity.client import base_url

        url, body = f"{base_url(login.auth_url)}/v3/auth/tokens", orjson.dumps({"auth": login.auth})
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
        tls = _context(login.auth_url, login.ca_file, f"{datadir.CLOUDS}: {datadir.CACERT}")
        try:
            response, headers = _send(request, tls)
        except ApiError as error:
            if error.status != 401:
                raise
            hint = f"if the password was changed, {self._password_hint()}"
            raise ApiError(401, f"the login of {login.user} was refused; {hint}") from None
        self._catalog = orjson.loads(response)["token"].get("catalog", [])
        return str(headers["X-Subject-Token"])

    @property
    def _has_own_users(self) -> bool:
        return "identity" in self._endpoints

    def _cloud_with_password(self) -> dict[str, Any]:
        """The file of passwords is newer than clouds.yaml if an operator has changed it since the start."""
        if not self._has_own_users or not datadir.has_passwords(self._directory):
            return self._cloud
        auth = self._cloud["auth"]
        try:
            password = datadir.load_passwords(self._directory, [auth["username"]])[auth["username"]]
        except (OSError, ValueError) as error:
            raise Failure(f"{self._directory / datadir.SECRETS}: {error}") from None
        return {**self._cloud, "auth": {**auth, "password": password}}

    def _refuse_without_password(self, user: str) -> str:
        raise Failure(f"--data: {self._directory} has no password of {user}; {self._password_hint()}")

    def _password_hint(self) -> str:
        if self._has_own_users:
            return f"write the new one into {self._directory / datadir.SECRETS}"
        return "set identity.password and restart"


def _context(url: str, authority: str | None, setting: str) -> ssl.SSLContext | None:
    """How to verify a service; None if it uses plain HTTP. `setting` names the authority. Raises Failure."""
    if not url.startswith("https:"):
        return None
    try:
        return client_context(authority, setting)
    except UnusableCertificate as error:
        raise Failure(str(error)) from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another address must not get the token."""

    def redirect_request(self, *_: object) -> None:
        return None


def _send(request: urllib.request.Request, tls: ssl.SSLContext | None) -> tuple[bytes, Message]:
    try:
        opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=tls))
        with opener.open(request, timeout=REQUEST_TIMEOUT_SECONDS) as response:
            return response.read(), response.headers
    except urllib.error.HTTPError as error:
        raise ApiError(error.code, _error_message(error)) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise CloudUnreachable(f"the cloud does not respond at {request.host}: {reason}") from None


def _error_message(error: urllib.error.HTTPError) -> str:
    """The error's message. In all services the body has one key, with `message` below it."""
    try:
        (fault,) = orjson.loads(error.read()).values()
        return str(fault["message"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"{error.code} {error.reason}"
