"""The network service alone on a real database, reached over HTTP inside the process by chosen callers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from kilonova.config import Config
from kilonova.http.client import Response
from kilonova.network.routes import api
from kilonova.policy import Policy
from kilonova.services import Services
from tests.support.cloud import Cloud, Tokens
from tests.support.databases import opened

PLURALS = {
    "network": "networks",
    "subnet": "subnets",
    "port": "ports",
    "router": "routers",
    "floatingip": "floatingips",
    "security_group": "security-groups",
    "security_group_rule": "security-group-rules",
}
EXPECTED = {"POST": 201, "DELETE": 204}


class Net(Cloud):
    async def call(self, method: str, path: str, json: Any = None, as_: str | None = "member") -> Response:
        return await self.request(method, path, root="/network/v2.0", json=json, as_=as_)

    async def ok(self, method: str, path: str, json: Any = None, as_: str = "member") -> Any:
        answer = await self.call(method, path, json, as_)
        assert answer.status == EXPECTED.get(method, 200), answer.body
        return answer.json() if answer.body else None

    async def refused(self, method: str, path: str, json: Any = None, as_: str | None = "member") -> tuple[int, str]:
        """Status and type of an error."""
        answer = await self.call(method, path, json, as_)
        error = answer.json()["NeutronError"]
        assert error["message"]
        return answer.status, error["type"]

    async def make(self, kind: str, as_: str = "member", **attributes: Any) -> dict[str, Any]:
        made: dict[str, Any] = (await self.ok("POST", f"/{PLURALS[kind]}", {kind: attributes}, as_))[kind]
        return made

    async def change(self, kind: str, item: dict[str, Any], as_: str = "member", **attributes: Any) -> dict[str, Any]:
        path = f"/{PLURALS[kind]}/{item['id']}"
        changed: dict[str, Any] = (await self.ok("PUT", path, {kind: attributes}, as_))[kind]
        return changed

    async def show(self, kind: str, item_id: str, as_: str = "member") -> dict[str, Any]:
        shown: dict[str, Any] = (await self.ok("GET", f"/{PLURALS[kind]}/{item_id}", as_=as_))[kind]
        return shown

    async def listed(self, kind: str, query: Any = (), as_: str = "member") -> list[dict[str, Any]]:
        plural = PLURALS[kind]
        found: list[dict[str, Any]] = (await self.ok("GET", f"/{plural}?{urlencode(query)}", as_=as_))[
            plural.replace("-", "_")
        ]
        return found

    async def names(self, kind: str, query: Any = (), as_: str = "member") -> list[str]:
        return [item["name"] for item in await self.listed(kind, query, as_)]

    async def network_with_subnet(
        self, cidr: str = "10.1.0.0/24", as_: str = "member", **subnet: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        network = await self.make("network", as_, name="n")
        version = 6 if ":" in cidr else 4
        return network, await self.make(
            "subnet", as_, network_id=network["id"], cidr=cidr, ip_version=version, **subnet
        )


@asynccontextmanager
async def net(database_url: str) -> AsyncIterator[Net]:
    services = Services()
    services.config = Config()
    services.policy = Policy()
    services.tokens = Tokens()
    async with opened(database_url) as db:
        services.db = db
        yield Net(services, [api])
