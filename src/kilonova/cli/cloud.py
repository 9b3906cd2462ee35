"""The running cloud of a data directory, spoken to by its public API."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click
import orjson

from kilonova import datadir
from kilonova.cli.options import Failure

VERSION = "2.96"
SECONDS = 60.0
DRY_RUN = "X-Kilonova-Dry-Run"

cloud = click.option(
    "--cloud",
    default="kilonova",
    show_default=True,
    metavar="NAME",
    help="Ask as this cloud of clouds.yaml: who you are decides which hosts you see.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


class Silent(Failure):
    """The cloud did not answer; nobody knows whether it did what it was asked for."""


class Refused(Failure):
    """The cloud answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Cloud:
    """`name` is one of clouds.yaml; its token is got when first needed. Everything that fails is a Failure."""

    def __init__(self, directory: Path, name: str) -> None:
        from kilonova.process import CLOUDS

        if name not in CLOUDS:
            raise Failure(f"--cloud: {name!r} is none of {', '.join(CLOUDS)}")
        try:
            self._endpoints = _endpoints(directory)
        except FileNotFoundError:
            raise Failure(f"--data: no cloud is running in {directory}; start it with `kilonova up`") from None
        except (OSError, ValueError) as error:
            raise Failure(f"{directory / datadir.ENDPOINTS}: {error}") from None
        self._directory = directory
        self._auth = CLOUDS[name]
        self._token: str | None = None

    def get(self, service: str, *path: str, **query: Any) -> Any:
        """The answer's body. Raises Refused."""
        return self._ask("GET", service, path, query)[0]

    def put(self, service: str, *path: str, body: Any) -> Any:
        """The same."""
        return self._ask("PUT", service, path, {}, body)[0]

    def post(self, service: str, *path: str, body: Any) -> Any:
        """The same."""
        return self._ask("POST", service, path, {}, body)[0]

    def upload(self, image_id: str, data: bytes) -> None:
        """Give an image its data. Raises Refused."""
        self._ask("PUT", "image", ("images", image_id, "file"), {}, data)

    def act(self, server_id: str, action: str, body: Any, *, version: str = VERSION, dry_run: bool = False) -> Any:
        """Ask for an action on a server: the request's id, or what would be done. Raises Refused."""
        path = ("servers", server_id, "action")
        headers = {"OpenStack-API-Version": f"compute {version}", **({DRY_RUN: "1"} if dry_run else {})}
        answer, told = self._ask("POST", "compute", path, {}, {action: body}, headers)
        return answer["plan"] if dry_run else told["X-OpenStack-Request-Id"]

    def _ask(
        self,
        method: str,
        service: str,
        path: tuple[str, ...],
        query: Mapping[str, Any],
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, Any]:
        """The answer's body and headers. A token that is no longer good is replaced once."""
        address = "/".join([self._endpoints[service], *(quote(part, safe="") for part in path)])
        given = {key: value for key, value in query.items() if value is not None}
        request = urllib.request.Request(f"{address}?{urlencode(given)}" if given else address, method=method)
        if isinstance(body, bytes):
            request.data = body
            request.add_header("Content-Type", "application/octet-stream")
        elif body is not None:
            request.data = orjson.dumps(body)
            request.add_header("Content-Type", "application/json")
        for name, value in {"OpenStack-API-Version": f"{service} {VERSION}", **(headers or {})}.items():
            request.add_header(name, value)
        token = self._logged_in()
        request.add_header("X-Auth-Token", token)
        try:
            answer, told = _answer(request)
        except Silent:
            with suppress(OSError, ValueError):
                self._endpoints = _endpoints(self._directory)  # it may be back at another port
            raise
        except Refused as error:
            if error.status != 401:
                raise
            if self._token == token:
                self._token = None
            request.add_header("X-Auth-Token", self._logged_in())
            answer, told = _answer(request)
        return orjson.loads(answer) if answer else None, told

    def _logged_in(self) -> str:
        if self._token is None:
            auth = self._auth
            user = {
                "name": auth["username"],
                "domain": {"name": auth["user_domain_name"]},
                "password": self._password(auth["username"]),
            }
            scope: Any = {"system": {"all": True}}
            if "project_name" in auth:
                scope = {"project": {"name": auth["project_name"], "domain": {"name": auth["project_domain_name"]}}}
            identity = {"methods": ["password"], "password": {"user": user}}
            body = orjson.dumps({"auth": {"identity": identity, "scope": scope}})
            request = urllib.request.Request(self._endpoints["auth_url"] + "/auth/tokens", data=body)
            request.add_header("Content-Type", "application/json")
            self._token = str(_answer(request)[1]["X-Subject-Token"])
        return self._token

    def _password(self, user: str) -> str:
        if not datadir.has_passwords(self._directory):
            raise Failure(f"--data: {self._directory} holds no passwords")
        try:
            return datadir.passwords(self._directory, [user])[user]
        except (OSError, ValueError) as error:
            raise Failure(f"{self._directory / datadir.SECRETS}: {error}") from None


def _endpoints(directory: Path) -> Any:
    return orjson.loads((directory / datadir.ENDPOINTS).read_bytes())


def _answer(request: urllib.request.Request) -> tuple[bytes, Any]:
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        raise Refused(error.code, _message(error)) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Silent(f"the cloud does not answer at {request.host}: {reason}") from None


def _message(error: urllib.error.HTTPError) -> str:
    """Errors of all services are one key, and the message below it."""
    try:
        (fault,) = orjson.loads(error.read()).values()
        return str(fault["message"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"{error.code} {error.reason}"
