"""The Placement API on a real database, with fixed tokens instead of an identity service.

@on_both
async def test_something(place):                 # runs once on each database
    response = await place.put("/traits/CUSTOM_A", version="1.6")
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from kilonova.config import load
from kilonova.http import App
from kilonova.http.client import ClientResponse, InProcess
from kilonova.ids import new_id
from kilonova.placement.build import build
from kilonova.policy import Policy
from kilonova.services import Services
from kilonova.store import Database
from tests.support import run
from tests.support.cloud import Tokens
from tests.support.databases import opened
from tests.support.route_coverage import RecordingMetrics

PROJECT, USER = "p" * 32, "u" * 32


class Place:
    """A client of the API, by default as administrator at the newest microversion."""

    def __init__(self, services: Services, root: bool = False) -> None:
        self.services = services
        app = App(services, [build()])
        self.caller = InProcess(App.at_root(services, build())) if root else InProcess(app, "/placement")

    @property
    def db(self) -> Database:
        return self.services.db

    async def request(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        version: str | None = "1.39",
        as_: str | None = "admin",
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> ClientResponse:
        sent = dict(headers or {})
        if as_ is not None:
            sent["X-Auth-Token"] = as_
        if version is not None:
            sent["OpenStack-API-Version"] = f"placement {version}"
        return await self.caller.request(method, path, headers=sent, json=json, content=content)

    def __getattr__(self, method: str) -> Any:
        """`place.get(path, …)`, and the other methods."""
        if method not in ("get", "put", "post", "delete", "options", "patch"):
            raise AttributeError(method)
        return partial(self.request, method.upper())

    async def get_json(self, path: str, **options: Any) -> Any:
        response = await self.get(path, **options)
        assert response.status == 200, response.body
        return response.json()

    # Objects

    async def provider(self, name: str = "", parent: str | None = None, **inventory: int | dict[str, Any]) -> str:
        """The uuid of a new provider. Keywords are classes, with a total or a whole inventory."""
        body: dict[str, Any] = {"name": name or new_id(), "uuid": new_id()}
        if parent is not None:
            body["parent_provider_uuid"] = parent
        response = await self.post("/resource_providers", body)
        assert response.status == 200, response.body
        uuid: str = response.json()["uuid"]
        if inventory:
            await self.put_inventories(uuid, **inventory)
        return uuid

    async def put_inventories(self, uuid: str, **inventory: int | dict[str, Any]) -> None:
        rows = {name: {"total": one} if isinstance(one, int) else one for name, one in inventory.items()}
        body = {"inventories": rows, "resource_provider_generation": await self.generation(uuid)}
        response = await self.put(f"/resource_providers/{uuid}/inventories", body)
        assert response.status == 200, response.body

    async def generation(self, uuid: str) -> int:
        found: int = (await self.get_json(f"/resource_providers/{uuid}"))["generation"]
        return found

    async def usages(self, uuid: str) -> dict[str, int]:
        found: dict[str, int] = (await self.get_json(f"/resource_providers/{uuid}/usages"))["usages"]
        return found

    async def allocations(self, consumer: str) -> dict[str, dict[str, int]]:
        found = await self.get_json(f"/allocations/{consumer}")
        return {uuid: one["resources"] for uuid, one in found["allocations"].items()}

    async def allocate(self, consumer: str, generation: int | None = None, **options: Any) -> ClientResponse:
        """PUT allocations, given as `on={provider: {class: amount}}`."""
        on = options.pop("on")
        response: ClientResponse = await self.put(
            f"/allocations/{consumer}", allocations_body(on, generation, **options)
        )
        return response


def allocations_body(on: Mapping[str, Mapping[str, int]], generation: int | None = None, **more: Any) -> dict[str, Any]:
    """The body of PUT /allocations at the newest microversion."""
    return {
        "allocations": {uuid: {"resources": dict(resources)} for uuid, resources in on.items()},
        "project_id": PROJECT,
        "user_id": USER,
        "consumer_generation": generation,
        "consumer_type": "INSTANCE",
        **more,
    }


def without(body: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in keys}


@asynccontextmanager
async def placement(database_url: str, *, policy: Policy | None = None, root: bool = False) -> AsyncIterator[Place]:
    services = Services()
    services.config = load(environ={})
    services.policy = policy or Policy()
    services.tokens = Tokens()
    services.metrics = RecordingMetrics()
    async with opened(database_url) as db:
        services.db = db
        yield Place(services, root)


def on_both(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test of a `place` on SQLite and on PostgreSQL. The test may have further parameters."""

    def checked(database_url: str, **parameters: Any) -> None:
        async def scenario() -> None:
            async with placement(database_url) as place:
                await test(place, **parameters)

        run(scenario())

    own = list(inspect.signature(test).parameters.values())[1:]
    url = inspect.Parameter("database_url", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    checked.__signature__ = inspect.Signature([url, *own])  # type: ignore[attr-defined]
    checked.__name__, checked.__doc__, checked.__module__ = test.__name__, test.__doc__, test.__module__
    checked.pytestmark = getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
    return checked


def error(response: ClientResponse) -> dict[str, Any]:
    """The only error of a response, which repeats the status."""
    (found,) = response.json()["errors"]
    assert found["status"] == response.status
    shown: dict[str, Any] = found
    return shown


def assert_error(response: ClientResponse, status: int, words: str, code: str = "placement.undefined_code") -> None:
    found = error(response)
    assert (response.status, found["code"]) == (status, code), found
    assert words in found["detail"], found


def at(*versions: str) -> Any:
    return pytest.mark.parametrize("version", versions)


def spread(numbers: Iterable[int]) -> list[str]:
    return [f"1.{number}" for number in numbers]
