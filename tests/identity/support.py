"""The identity service alone on a real database, reached over HTTP inside the process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kilonova.config import Config
from kilonova.http import App
from kilonova.http.client import ClientResponse, InProcess
from kilonova.identity import build
from kilonova.identity.seed import seed, user_names
from kilonova.identity.token_keys import KeyFile, KeyRing
from kilonova.identity.token_provider import TokenProvider
from kilonova.policy import Policy
from kilonova.services import Services
from tests.support.databases import opened

PASSWORDS = {name: f"secret of {name}" for name in user_names()}
HOME = {
    "admin": "admin",
    "demo": "demo",
    "demo-admin": "demo",
    "demo-manager": "demo",
    "demo-reader": "demo",
    "kilonova": "service",
}
# Services that the catalogue names, though this process does not serve them.
MOUNTS = frozenset({"identity", "compute", "placement", "image", "network"})
REFUSED = {
    "error": {
        "code": 401,
        "message": "The request you have made requires authentication.",
        "title": "Unauthorized",
    }
}


def password_auth(name: str, password: str | None = None, scope: Any = None, **user: Any) -> dict[str, Any]:
    who = {"name": name, "domain": {"id": "default"}, **user}
    who["password"] = password if password is not None else PASSWORDS.get(name, "none")
    auth: dict[str, Any] = {"identity": {"methods": ["password"], "password": {"user": who}}}
    if scope is not None:
        auth["scope"] = scope
    return {"auth": auth}


def token_auth(token: str, scope: Any = None) -> dict[str, Any]:
    auth: dict[str, Any] = {"identity": {"methods": ["token"], "token": {"id": token}}}
    if scope is not None:
        auth["scope"] = scope
    return {"auth": auth}


def project_scope(name: str) -> dict[str, Any]:
    return {"project": {"name": name, "domain": {"id": "default"}}}


SYSTEM = {"system": {"all": True}}


class Cloud:
    def __init__(self, services: Services, tokens: TokenProvider) -> None:
        self.services = services
        self.tokens = tokens
        self.app = App(services, [build()])
        services.mounts = MOUNTS
        self.caller = InProcess(self.app, "/identity", "cloud.test:1234")

    async def call(
        self, method: str, path: str, token: str | None = None, json: Any = None, **headers: str
    ) -> ClientResponse:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["X-Auth-Token"] = token
        return await self.caller.request(method, path, headers=sent, json=json)

    async def ok(self, method: str, path: str, token: str, json: Any = None, status: int | None = None) -> Any:
        response = await self.call(method, path, token, json)
        expected = status or {"POST": 201, "DELETE": 204}.get(method, 200)
        assert response.status == expected, response.body
        return response.json() if response.body else None

    async def authenticate(self, body: dict[str, Any], query: str = "") -> ClientResponse:
        return await self.call("POST", f"/v3/auth/tokens{query}", json=body)

    async def login(self, name: str, scope: Any = None, password: str | None = None) -> str:
        """A token of the user, by default for the user's home project."""
        scope = scope or project_scope(HOME[name])
        response = await self.authenticate(password_auth(name, password, scope))
        assert response.status == 201, response.body
        return response.headers["x-subject-token"]

    async def works(self, token: str) -> bool:
        return (await self.call("GET", "/v3/auth/projects", token)).status == 200

    async def ident(self, noun: str, name: str) -> str:
        found: str = await self.services.db.fetch_value(f"SELECT id FROM {noun}s WHERE name = $1", name)
        return found

    async def new_user(self, admin: str, name: str, project: str | None = None, role: str = "member") -> str:
        body = {"user": {"name": name, "password": f"secret of {name}"}}
        user_id: str = (await self.ok("POST", "/v3/users", admin, body))["user"]["id"]
        if project:
            await self.grant(admin, user_id, project, role)
        return user_id

    async def grant(self, admin: str, user_id: str, project: str, role: str, method: str = "PUT") -> None:
        project_id, role_id = await self.ident("project", project), await self.ident("role", role)
        await self.ok(method, f"/v3/projects/{project_id}/users/{user_id}/roles/{role_id}", admin, status=204)


@asynccontextmanager
async def cloud(database_url: str, data: Path, policy: Path | None = None) -> AsyncIterator[Cloud]:
    async with opened(database_url) as db:
        await seed(db, PASSWORDS)
        services = Services()
        services.config = Config(data=str(data))
        services.db = db
        services.policy = Policy(policy)
        services.credential_keys = KeyRing(KeyFile(data / "credential-keys"), "credentials")
        tokens = TokenProvider(db, KeyRing(KeyFile(data / "token-keys")))
        services.tokens = tokens
        yield Cloud(services, tokens)
