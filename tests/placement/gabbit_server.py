"""The Placement API at the root of a port, with the headers of a no-authentication mode in place of real tokens.

python -m tests.placement.gabbit_server URL-OF-A-DATABASE

It prints its port, and runs until its input ends. `GET /restart/PROFILE` empties it and gives it the policy of one of
run-gabbits' profiles, so a restart is but a request.
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
from kilonova.http.cors import with_cors
from kilonova.http.server import Server, bind
from kilonova.identity.token import Token
from kilonova.placement.build import build
from kilonova.policy import Policy
from kilonova.policy.placement import RULES
from kilonova.services import Services
from kilonova.store import Database, open_database

ADMIN = "role:admin and not system_scope:all"
# What the profiles change: rules of a policy file, and settings.
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


class Believing:
    """The token is what `Personas` made of the headers."""

    async def validate(self, token: str) -> Token | None:
        return Token(user_domain_id="default", user_domain_name="Default", **orjson.loads(token))


class Personas:
    """Around the application: turns x-auth-token, x-roles, x-project-id and openstack-system-scope into a token."""

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


class Restarting:
    def __init__(self, db: Database, directory: Path) -> None:
        self._db = db
        self._directory = directory
        self._app = self._made("plain")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not scope["path"].startswith("/restart/"):
            await self._app(scope, receive, send)
            return
        async with self._db.transaction() as tx:
            for table in EMPTY:
                await tx.execute(f"DELETE FROM {table}")
        self._app = self._made(scope["path"].rpartition("/")[2])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def _made(self, profile: str) -> Any:
        services = Services()
        services.db = self._db
        services.config = config = _config(profile)
        services.tokens = Believing()
        services.policy = Policy(self._policy(profile))
        return Personas(with_cors(App.at_root(services, build()), config.cors))

    def _policy(self, profile: str) -> Path | None:
        if profile not in RULE_OF:
            return None
        file = self._directory / f"{profile}.yaml"
        file.write_text("".join(f'"{rule.name}": "{RULE_OF[profile]}"\n' for rule in RULES))
        return file


def _config(profile: str) -> Config:
    return load(environ={}, flags=SETTINGS.get(profile))


async def _serve(url: str, directory: Path) -> None:
    db = await open_database(url)
    bound = bind("127.0.0.1", 0)
    server = Server(Restarting(db, directory), bound)
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
