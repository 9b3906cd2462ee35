"""Inventories and their generation checks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.ids import new_id
from tests.placement.rest.support import Place, allocations_body, assert_error, error, on_both
from tests.placement.support import counters
from tests.support.route_coverage import proves

ALL = "/placement/resource_providers/{uuid}/inventories"
WHOLE = {"total": 8, "reserved": 0, "min_unit": 1, "max_unit": 2**31 - 1, "step_size": 1, "allocation_ratio": 1.0}


def inventory_path(uuid: str, name: str = "") -> str:
    return f"/resource_providers/{uuid}/inventories" + (f"/{name}" if name else "")


@proves(
    "POST /placement/resource_providers/{uuid}/inventories",
    "GET /placement/resource_providers/{uuid}/inventories",
    "GET /placement/resource_providers/{uuid}/inventories/{resource_class}",
)
@on_both
async def test_post_adds_inventory(place: Place) -> None:
    uuid = await place.provider()
    assert await place.get_json(inventory_path(uuid)) == {"resource_provider_generation": 0, "inventories": {}}
    response = await place.post(inventory_path(uuid), {"resource_class": "VCPU", "total": 8})
    assert response.status == 201
    assert response.headers["location"].endswith(f"/placement{inventory_path(uuid, 'VCPU')}")
    assert response.json() == {"resource_provider_generation": 1, **WHOLE}
    assert await place.get_json(inventory_path(uuid, "VCPU")) == response.json()
    assert await place.get_json(inventory_path(uuid)) == {
        "resource_provider_generation": 1,
        "inventories": {"VCPU": WHOLE},
    }
    assert_error(await place.post(inventory_path(uuid), {"resource_class": "VCPU", "total": 8}), 409, "Update conflict")
    body = {"resource_class": "DISK_GB", "total": 8, "resource_provider_generation": 7}
    assert_error(
        await place.post(inventory_path(uuid), body), 409, "actual: 1, given: 7", "placement.concurrent_update"
    )


@proves("PUT /placement/resource_providers/{uuid}/inventories")
@on_both
async def test_put_replaces_all_inventories(place: Place) -> None:
    uuid = await place.provider(VCPU=8, MEMORY_MB=100)
    before = await counters(place.db, uuid)
    body = {
        "resource_provider_generation": 1,
        "inventories": {"VCPU": {"total": 4, "allocation_ratio": 16.0}, "DISK_GB": {"total": 5, "reserved": 1}},
    }
    result = (await place.put(inventory_path(uuid), body)).json()
    assert result["resource_provider_generation"] == 2
    assert set(result["inventories"]) == {"VCPU", "DISK_GB"}
    assert result["inventories"]["VCPU"] == {**WHOLE, "total": 4, "allocation_ratio": 16.0}
    assert (await counters(place.db, uuid))[2] > before[2]
    assert_error(await place.put(inventory_path(uuid), body), 409, "generation conflict", "placement.concurrent_update")
    assert (await place.put(inventory_path(uuid), {"resource_provider_generation": 2, "inventories": {}})).json() == {
        "resource_provider_generation": 3,
        "inventories": {},
    }
    # A shown inventory can be sent back.
    await place.put_inventories(uuid, VCPU=1)
    shown = await place.get_json(inventory_path(uuid))
    assert (await place.put(inventory_path(uuid), shown)).status == 200


@proves("PUT /placement/resource_providers/{uuid}/inventories/{resource_class}")
@on_both
async def test_put_updates_inventory_of_class(place: Place) -> None:
    uuid = await place.provider(VCPU=8)
    body = {"resource_provider_generation": 1, "total": 9, "reserved": 2}
    response = await place.put(inventory_path(uuid, "VCPU"), body)
    assert response.json() == {**WHOLE, "resource_provider_generation": 2, "total": 9, "reserved": 2}
    assert_error(
        await place.put(inventory_path(uuid, "VCPU"), body), 409, "actual: 2, given: 1", "placement.concurrent_update"
    )
    body["resource_provider_generation"] = 2
    assert_error(await place.put(inventory_path(uuid, "DISK_GB"), body), 400, "No inventory record with resource class")
    assert_error(
        await place.put(inventory_path(uuid, "VCPU"), {"total": 1}), 400, "'resource_provider_generation' is a required"
    )


@proves(
    "DELETE /placement/resource_providers/{uuid}/inventories/{resource_class}",
    "DELETE /placement/resource_providers/{uuid}/inventories",
)
@on_both
async def test_inventory_in_use_cannot_be_removed(place: Place) -> None:
    uuid = await place.provider(VCPU=8, DISK_GB=9, MEMORY_MB=9)
    consumer = new_id()
    assert (
        await place.put(f"/allocations/{consumer}", allocations_body({uuid: {"DISK_GB": 1, "VCPU": 1}}))
    ).status == 204
    used = f"Inventory for 'VCPU, DISK_GB' on resource provider '{uuid}' in use"
    assert_error(await place.delete(inventory_path(uuid)), 409, used, "placement.inventory.inuse")
    body = {"resource_provider_generation": 2, "inventories": {"MEMORY_MB": {"total": 1}}}
    assert_error(await place.put(inventory_path(uuid), body), 409, used, "placement.inventory.inuse")
    assert_error(
        await place.delete(inventory_path(uuid, "VCPU")), 409, "Inventory for 'VCPU' on", "placement.inventory.inuse"
    )
    assert len((await place.get_json(inventory_path(uuid)))["inventories"]) == 3
    assert (await place.delete(inventory_path(uuid, "MEMORY_MB"))).status == 204
    assert_error(
        await place.delete(inventory_path(uuid, "MEMORY_MB")), 404, "No inventory of class MEMORY_MB found for delete"
    )
    await place.delete(f"/allocations/{consumer}")
    assert (await place.delete(inventory_path(uuid))).status == 204
    assert (await place.delete(inventory_path(uuid))).status == 204
    assert await place.generation(uuid) == 5
    assert_error(await place.get(inventory_path(uuid, "VCPU")), 404, f"No inventory of class VCPU for {uuid}")


@on_both
async def test_total_may_be_less_than_usage(place: Place) -> None:
    uuid = await place.provider(VCPU=8)
    assert (await place.put(f"/allocations/{new_id()}", allocations_body({uuid: {"VCPU": 8}}))).status == 204
    body = {"resource_provider_generation": 2, "inventories": {"VCPU": {"total": 4}}}
    assert (await place.put(inventory_path(uuid), body)).status == 200
    assert await place.usages(uuid) == {"VCPU": 8}


@on_both
async def test_full_reservation_needs_1_26(place: Place) -> None:
    uuid = await place.provider()
    one = {"resource_class": "VCPU", "total": 4, "reserved": 4}
    response = await place.post(inventory_path(uuid), one, version="1.25")
    assert "Unable to create inventory for resource provider" in error(response)["detail"]
    assert "greater than or equal to total" in error(response)["detail"]
    assert (await place.post(inventory_path(uuid), one, version="1.26")).status == 201
    for path, body in (
        (inventory_path(uuid), {"inventories": {"VCPU": {"total": 4, "reserved": 5}}}),
        (inventory_path(uuid, "VCPU"), {"total": 4, "reserved": 5}),
    ):
        body = {**body, "resource_provider_generation": 1}
        assert_error(await place.put(path, body), 400, f"Unable to update inventory for resource provider {uuid}")
        assert_error(await place.put(path, body), 400, "The reserved value is greater than total.")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "'total' is a required property"),
    *(({key: 0}, "0 is less than the minimum of 1") for key in ("total", "min_unit", "max_unit", "step_size")),
    ({"total": -1}, "-1 is less than the minimum of 1"),
    *(
        ({key: 2**31}, f"Failed validating 'maximum' in schema['properties']['{key}']")
        for key in ("total", "reserved", "min_unit", "max_unit", "step_size")
    ),
    ({"allocation_ratio": 3.40282e39}, "Failed validating 'maximum'"),
    ({"allocation_ratio": -1}, "Failed validating 'exclusiveMinimum'"),
    ({"allocation_ratio": 0}, "Failed validating 'exclusiveMinimum'"),
    ({"allocation_ratio": 0.0}, "Failed validating 'exclusiveMinimum'"),
    ({"resource_class": "bad_class"}, "does not match"),
    ({"resource_class": "NO_CLASS"}, "No such resource class NO_CLASS"),
    ({"colour": "red"}, "Additional properties are not allowed"),
    ({"total": 1.5}, "1.5 is not of type 'integer'"),
]


@pytest.mark.parametrize("body, words", WRONG)
@on_both
async def test_invalid_inventories(place: Place, body: dict[str, Any], words: str) -> None:
    uuid = await place.provider()
    given = {"resource_class": "VCPU", **({"total": 10} if body else {}), **body}
    assert_error(await place.post(inventory_path(uuid), given), 400, words)
    assert await place.get_json(inventory_path(uuid)) == {"resource_provider_generation": 0, "inventories": {}}


@on_both
async def test_unknown_class_in_put_of_all(place: Place) -> None:
    uuid = await place.provider()
    body = {"resource_provider_generation": 0, "inventories": {"HOUSE": {"total": 1}}}
    assert_error(await place.put(inventory_path(uuid), body), 400, "Unknown resource class in inventory")


@on_both
async def test_unknown_provider(place: Place) -> None:
    uuid = new_id()
    for method, path, body in (
        ("GET", inventory_path(uuid), None),
        ("DELETE", inventory_path(uuid), None),
        ("GET", inventory_path(uuid, "VCPU"), None),
        ("DELETE", inventory_path(uuid, "VCPU"), None),
        ("POST", inventory_path(uuid), {"resource_class": "VCPU", "total": 1}),
        ("PUT", inventory_path(uuid), {"resource_provider_generation": 0, "inventories": {}}),
        ("PUT", inventory_path(uuid, "VCPU"), {"resource_provider_generation": 0, "total": 1}),
    ):
        assert_error(await place.request(method, path, body), 404, f"No resource provider with uuid {uuid} found")


@on_both
async def test_concurrent_puts_with_same_generation_write_once(place: Place) -> None:
    uuid = await place.provider()
    bodies = [
        {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": number}}} for number in range(1, 21)
    ]
    responses = await asyncio.gather(*(place.put(inventory_path(uuid), body) for body in bodies))
    assert sorted(response.status for response in responses) == [200] + [409] * 19
    (winner,) = (body for body, response in zip(bodies, responses, strict=True) if response.status == 200)
    shown = await place.get_json(inventory_path(uuid))
    assert shown["resource_provider_generation"] == 1
    assert shown["inventories"]["VCPU"]["total"] == winner["inventories"]["VCPU"]["total"]  # type: ignore[index]


@on_both
async def test_huge_capacity_is_capped_in_json(place: Place) -> None:
    uuid = await place.provider(VCPU={"total": 2**31 - 1, "allocation_ratio": 3.4e38})
    body = await place.get_json("/allocation_candidates?resources=VCPU:1")
    assert body["provider_summaries"][uuid]["resources"] == {"VCPU": {"capacity": 2**53 - 1, "used": 0}}
    assert (await place.allocate(new_id(), on={uuid: {"VCPU": 2**31 - 1}})).status == 204
