"""A client of the public API of the cloud that runs in a data directory."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click
import orjson

from kilonova import datadir
from kilonova.certificates import UnusableCertificate, client_context
from kilonova.cli.options import Failure

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
    """A client for the cloud `name` of clouds.yaml. All errors are raised as Failure."""

    def __init__(self, directory: Path, name: str) -> None:
        from kilonova.api_servers import CLOUDS

        if name not in CLOUDS:
            raise Failure(f"--cloud: {name!r} is not one of {', '.join(CLOUDS)}")
        try:
            self._endpoints = _endpoints(directory)
        except FileNotFoundError:
            raise Failure(f"--data: no cloud is running in {directory}; start it with `kilonova up`") from None
        except (OSError, ValueError) as error:
            raise Failure(f"{directory / datadir.ENDPOINTS}: {error}") from None
        self._tls = _context(self._endpoints)
        self._directory = directory
        self._auth = CLOUDS[name]
        self._token: str | None = None

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
        url = "/".join([self._endpoints[service], *(quote(part, safe="") for part in path)])
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
            response, response_headers = _send(request, self._tls)
        except CloudUnreachable:
            with suppress(OSError, ValueError):
                self._endpoints = _endpoints(self._directory)  # a restart may have changed the port
                self._tls = _context(self._endpoints)
            raise
        except ApiError as error:
            if error.status != 401:
                raise
            if self._token == token:
                self._token = None
            request.add_header("X-Auth-Token", self._get_token())
            response, response_headers = _send(request, self._tls)
        return orjson.loads(response) if response else None, response_headers

    def _get_token(self) -> str:
        if self._token is None:
            auth = self._auth
            user = {
                "name": auth["username"],
                "domain": {"name": auth["user_domain_name"]},
                "password": self._password(auth["username"]),
            }
            scope: dict[str, object] = {"system": {"all": True}}
            if "project_name" in auth:
                scope = {"project": {"name": auth["project_name"], "domain": {"name": auth["project_domain_name"]}}}
            identity = {"methods": ["password"], "password": {"user": user}}
            body = orjson.dumps({"auth": {"identity": identity, "scope": scope}})
            request = urllib.request.Request(self._endpoints["auth_url"] + "/auth/tokens", data=body)
            request.add_header("Content-Type", "application/json")
            self._token = str(self._log_in(request))
        return self._token

    def _log_in(self, request: urllib.request.Request) -> str | None:
        try:
            return _send(request, self._tls)[1]["X-Subject-Token"]
        except ApiError as error:
            if error.status != 401:
                raise
            user, file = self._auth["username"], self._directory / datadir.SECRETS
            hint = f"the login of {user} was refused; if the password was changed, write the new one into {file}"
            raise ApiError(401, hint) from None

    def _password(self, user: str) -> str:
        if not datadir.has_passwords(self._directory):
            raise Failure(f"--data: {self._directory} holds no passwords")
        try:
            return datadir.load_passwords(self._directory, [user])[user]
        except (OSError, ValueError) as error:
            raise Failure(f"{self._directory / datadir.SECRETS}: {error}") from None


def _endpoints(directory: Path) -> dict[str, str]:
    endpoints: dict[str, str] = orjson.loads((directory / datadir.ENDPOINTS).read_bytes())
    return endpoints


def _context(endpoints: Mapping[str, str]) -> ssl.SSLContext | None:
    """How to verify the cloud; None if it uses plain HTTP. Raises Failure."""
    if not endpoints["auth_url"].startswith("https:"):
        return None
    try:
        return client_context(endpoints.get(datadir.CACERT), f"{datadir.ENDPOINTS}: {datadir.CACERT}")
    except UnusableCertificate as error:
        raise Failure(str(error)) from None


def _send(request: urllib.request.Request, tls: ssl.SSLContext | None) -> tuple[bytes, Message]:
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_SECONDS, context=tls) as response:
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
