"""Client of an administrator for a Keystone: reads and writes users, roles and the catalogue."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from kilonova.http.client import Caller, ClientResponse, Unreachable, valid_response

Json = dict[str, Any]


class RegistrationError(Exception):
    """Kilonova cannot be registered; the message says why, and what to do."""


class Administrator:
    """The caller's base URL has no version. Every method may raise RegistrationError or Unreachable."""

    def __init__(self, caller: Caller, auth: Json, name: str) -> None:
        """`auth` is the body of the request for a token, `name` the user in messages."""
        self._caller = caller
        self._auth = auth
        self._name = name
        self._token = ""

    async def log_in(self) -> None:
        response = await self._caller.request("POST", "/v3/auth/tokens?nocatalog", json={"auth": self._auth})
        if response.status == 401:
            raise RegistrationError(f"Keystone refused the login of {self._name}: wrong user, password, or project")
        self._check(response, "log in")
        self._token = response.headers["x-subject-token"]

    async def is_password(self, user_id: str, password: str) -> bool:
        """Whether it is the user's password."""
        user = {"id": user_id, "password": password}
        auth = {"identity": {"methods": ["password"], "password": {"user": user}}, "scope": "unscoped"}
        response = await self._caller.request("POST", "/v3/auth/tokens?nocatalog", json={"auth": auth})
        if response.status == 401:
            return False
        self._check(response, "log in")
        return True

    async def list(self, kind: str, **query: str) -> list[Json]:
        body = await self._call("GET", f"/{kind}s?{urlencode(query)}", f"list {kind}s")
        if body.get("truncated"):
            raise RegistrationError(f"Keystone does not list all {kind}s (its list_limit): name those you want")
        with valid_response("identity"):
            found: list[Json] = body[f"{kind}s"]
        return found

    async def find(self, kind: str, **query: str) -> Json | None:
        return next(iter(await self.list(kind, **query)), None)

    async def get_domain(self, name: str) -> Json:
        """The domain with this name or id."""
        found = await self.find("domain", name=name)
        if found is not None:
            return found
        path, verb = f"/domains/{quote(name, safe='')}", f"show the domain {name}"
        response = await self._send("GET", path)
        if response.status == 404:
            raise RegistrationError(f"there is no domain {name!r}")
        self._check(response, verb)
        domain: Json = response.json()["domain"]
        return domain

    async def has_region(self, region: str) -> bool:
        response = await self._send("GET", f"/regions/{quote(region, safe='')}")
        if response.status != 404:
            self._check(response, f"show the region {region}")
        return response.status == 200

    async def has_grant(self, path: str) -> bool:
        response = await self._send("HEAD", path)
        if response.status != 404:
            self._check(response, "check the assignment of a role")
        return response.status != 404

    async def grant(self, path: str) -> None:
        await self._call("PUT", path, "assign a role")

    async def create(self, kind: str, fields: Json) -> Json:
        body = await self._call("POST", f"/{kind}s", f"create a {kind}", {kind: fields})
        created: Json = body[kind]
        return created

    async def register_limit(self, fields: Json) -> None:
        await self._call("POST", "/registered_limits", "register a limit", {"registered_limits": [fields]})

    async def update(self, kind: str, item_id: str, fields: Json) -> None:
        await self._call("PATCH", f"/{kind}s/{item_id}", f"change a {kind}", {kind: fields})

    async def _send(self, method: str, path: str, body: Json | None = None) -> ClientResponse:
        headers = {"X-Auth-Token": self._token, "Accept": "application/json"}
        return await self._caller.request(method, f"/v3{path}", headers=headers, json=body)

    async def _call(self, method: str, path: str, verb: str, body: Json | None = None) -> Json:
        response = await self._send(method, path, body)
        self._check(response, verb)
        with valid_response("identity"):
            found: Json = response.json() if response.body else {}
        return found

    def _check(self, response: ClientResponse, verb: str) -> None:
        if response.status < 300:
            return
        if response.status >= 500 or response.status == 429:
            raise Unreachable(f"Keystone answered {response.status} to: {verb}")
        message = _message(response)
        if response.status == 403:
            raise RegistrationError(f"{self._name} may not {verb}; that needs the role admin in Keystone: {message}")
        raise RegistrationError(f"Keystone refused to {verb} ({response.status}): {message}")


def _message(response: ClientResponse) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no reason given"
