"""Who may call the routes of the Placement API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.placement.build import build
from kilonova.policy.placement import RULES
from tests.authorization.support import Comparison, caller_of, check_readers_write_nothing, check_rules
from tests.fuzz.resources import ApiCaller
from tests.support import run
from tests.support.cloud import ADMIN, DEMO, OTHER
from tests.support.full_cloud import FullCloud, full_cloud

CONSUMER = "33333333-3333-4333-8333-333333333333"
VERSION = "1.39"


def bodies(names: Mapping[str, Any]) -> dict[str, Any]:
    seen, inventory = {"resource_provider_generation": 0}, {"total": 8}
    claim = {
        "allocations": {names["uuid"]: {"resources": {"VCPU": 1}}},
        "consumer_generation": 1,
        "consumer_type": "INSTANCE",
        "project_id": ADMIN,
        "user_id": "u",
    }
    provider = "/resource_providers/{uuid}/"
    return {
        "GET /usages": {"project_id": names["project_id"]},
        "GET /allocation_candidates": {"resources": "VCPU:1"},
        "PUT /allocations/{consumer_uuid}": claim,
        "POST /allocations": {CONSUMER: claim},
        "POST /resource_classes": {"name": "CUSTOM_B"},
        "PUT /traits/{name}": None,
        "PUT /resource_classes/{name}": None,
        f"PUT {provider}inventories": {"inventories": {"VCPU": inventory}, **seen},
        f"POST {provider}inventories": {"resource_class": "CUSTOM_A", **inventory, **seen},
        f"PUT {provider}inventories/{{resource_class}}": {**inventory, **seen},
        f"PUT {provider}traits": {"traits": ["CUSTOM_A"], **seen},
        f"PUT {provider}aggregates": {"aggregates": [names["uuid"]], **seen},
    }


async def create_objects(c: FullCloud) -> dict[str, Any]:
    call = ApiCaller(c, build())

    async def put(path: str, body: Any = None, method: str = "PUT") -> Any:
        answer = await call(method, path, VERSION, body)
        assert answer.status < 300, answer.body
        return answer.json() if answer.body else None

    for path in ("/traits/CUSTOM_A", "/resource_classes/CUSTOM_A"):
        await put(path)
    provider = (await put("/resource_providers", {"name": "a"}, "POST"))["uuid"]
    inventories = {"VCPU": {"total": 8}, "CUSTOM_A": {"total": 8}}
    await put(
        f"/resource_providers/{provider}/inventories", {"inventories": inventories, "resource_provider_generation": 0}
    )
    server = await c.boot_active(as_="admin")  # a consumer
    return {
        "uuid": provider,
        "resource_class": "CUSTOM_A",
        "name": "CUSTOM_A",
        "consumer_uuid": server["id"],
        "in_tree": provider,
        "member_of": provider,
        "required": "CUSTOM_A",
        "resources": "VCPU:1",
    }


def test_answers_match_the_page(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            names = await create_objects(c)
            own, other = {**names, "project_id": DEMO}, {**names, "project_id": OTHER}
            compared = Comparison(build(), c.services, caller_of(c, build()), own, other, bodies)
            await compared.run()
            assert not compared.wrong, "\n".join(compared.wrong)
            check_rules(compared, RULES, {})

    run(scenario())


def test_readers_write_nothing() -> None:
    check_readers_write_nothing(build(), {})
