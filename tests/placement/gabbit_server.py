"""The Placement API at the root of a port, with headers instead of real tokens.

python -m tests.placement.gabbit_server DATABASE_URL

It prints its port, and runs until its input ends. `GET /restart/PROFILE` empties the database and loads the policy of a
run-gabbits profile, so a restart is one request.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson

from kilonova.config import Config, load
from kilonova.http import App
from kilonova.http.cors import allow_origins
from kilonova.http.server import Server, listen
from kilonova.placement.build import build
from kilonova.policy import Policy
from kilonova.policy.credentials import Credentials
from kilonova.policy.placement import RULES
from kilonova.services import Services
from kilonova.store import Database, open_database

ADMIN = "role:admin and not system_scope:all"
# Policy rules and settings of each profile.
RULE_OF = {"legacy": ADMIN, "open": "@"}
SETTINGS = {"cors": {"cors.allowed_origin": "http://valid.example.com", "cors.allow_headers": "openstack-api-version"}}
EMPTY = (
    "allocations",
    "consumers",
    "inventories",
    "provider_traits",
    "provider_aggregates",
    "resource_providers",
    "traits",
    "resource_classes",
)


class TrustingTokens:
    """Accepts the tokens that `HeaderTokens` makes."""

    async def validate(self, token: str) -> Credentials | None:
        return Credentials(user_domain_id="default", user_domain_name="Default", **orjson.loads(token))


class HeaderTokens:
    """ASGI middleware: turns x-auth-token, x-roles, x-project-id and openstack-system-scope into a token."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name: value.decode() for name, value in scope["headers"]}
        given = headers.get(b"x-auth-token")
        if given is not None:
            user, _, project = given.partition(":")
            roles = headers.get(b"x-roles", "admin,service" if user == "admin" else "")
            system = headers.get(b"openstack-system-scope") == "all"
            persona = {
                "user_id": user,
                "user_name": user,
                "project_id": None if system else headers.get(b"x-project-id") or project or user,
                "system": system,
                "roles": frozenset(role for role in roles.split(",") if role),
            }
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"x-auth-token"]
            scope["headers"].append((b"x-auth-token", orjson.dumps({**persona, "roles": list(persona["roles"])})))
        await self._app(scope, receive, send)


class RestartableApp:
    def __init__(self, db: Database, directory: Path) -> None:
        self._db = db
        self._directory = directory
        self._app = self._make_app("plain")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not scope["path"].startswith("/restart/"):
            await self._app(scope, receive, send)
            return
        async with self._db.transaction() as tx:
            for table in EMPTY:
                await tx.execute(f"DELETE FROM {table}")
        self._app = self._make_app(scope["path"].rpartition("/")[2])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def _make_app(self, profile: str) -> Any:
        services = Services()
        services.db = self._db
        services.config = config = _config(profile)
        services.tokens = TrustingTokens()
        services.policy = Policy(self._policy_file(profile))
        return HeaderTokens(allow_origins(App.at_root(services, build()), config.cors))

    def _policy_file(self, profile: str) -> Path | None:
        if profile not in RULE_OF:
            return None
        file = self._directory / f"{profile}.yaml"
        file.write_text("".join(f'"{rule.name}": "{RULE_OF[profile]}"\n' for rule in RULES))
        return file


def _config(profile: str) -> Config:
    return load(environ={}, flags=SETTINGS.get(profile))


async def _serve(url: str, directory: Path) -> None:
    db = await open_database(url)
    bound = listen("127.0.0.1", 0)
    server = Server(RestartableApp(db, directory), bound)
    await server.start()
    print(bound.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()
    await db.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_serve(sys.argv[1], Path(directory)))


if __name__ == "__main__":
    main()
