"""Inventories, and the generations that guard them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.ids import new_id
from tests.placement.rest.support import Place, claim, error, on_both, refused
from tests.placement.support import marks
from tests.support.proves import proves

ALL = "/placement/resource_providers/{uuid}/inventories"
ONE = ALL + "/{resource_class}"
WHOLE = {"total": 8, "reserved": 0, "min_unit": 1, "max_unit": 2**31 - 1, "step_size": 1, "allocation_ratio": 1.0}


def at(uuid: str, name: str = "") -> str:
    return f"/resource_providers/{uuid}/inventories" + (f"/{name}" if name else "")


@proves(
    "POST /placement/resource_providers/{uuid}/inventories",
    "GET /placement/resource_providers/{uuid}/inventories",
    "GET /placement/resource_providers/{uuid}/inventories/{resource_class}",
)
@on_both
async def test_one_class_is_added(place: Place) -> None:
    uuid = await place.provider()
    assert await place.told(at(uuid)) == {"resource_provider_generation": 0, "inventories": {}}
    answer = await place.post(at(uuid), {"resource_class": "VCPU", "total": 8})
    assert answer.status == 201
    assert answer.headers["location"].endswith(f"/placement{at(uuid, 'VCPU')}")
    assert answer.json() == {"resource_provider_generation": 1, **WHOLE}
    assert await place.told(at(uuid, "VCPU")) == answer.json()
    assert await place.told(at(uuid)) == {"resource_provider_generation": 1, "inventories": {"VCPU": WHOLE}}
    refused(await place.post(at(uuid), {"resource_class": "VCPU", "total": 8}), 409, "Update conflict")
    body = {"resource_class": "DISK_GB", "total": 8, "resource_provider_generation": 7}
    refused(await place.post(at(uuid), body), 409, "actual: 1, given: 7", "placement.concurrent_update")


@proves("PUT /placement/resource_providers/{uuid}/inventories")
@on_both
async def test_all_are_replaced(place: Place) -> None:
    uuid = await place.provider(VCPU=8, MEMORY_MB=100)
    before = await marks(place.db, uuid)
    body = {
        "resource_provider_generation": 1,
        "inventories": {"VCPU": {"total": 4, "allocation_ratio": 16.0}, "DISK_GB": {"total": 5, "reserved": 1}},
    }
    told = (await place.put(at(uuid), body)).json()
    assert told["resource_provider_generation"] == 2
    assert set(told["inventories"]) == {"VCPU", "DISK_GB"}
    assert told["inventories"]["VCPU"] == {**WHOLE, "total": 4, "allocation_ratio": 16.0}
    assert (await marks(place.db, uuid))[2] > before[2]
    refused(await place.put(at(uuid), body), 409, "generation conflict", "placement.concurrent_update")
    assert (await place.put(at(uuid), {"resource_provider_generation": 2, "inventories": {}})).json() == {
        "resource_provider_generation": 3,
        "inventories": {},
    }
    # What was shown can be sent back.
    await place.stock(uuid, VCPU=1)
    shown = await place.told(at(uuid))
    assert (await place.put(at(uuid), shown)).status == 200


@proves("PUT /placement/resource_providers/{uuid}/inventories/{resource_class}")
@on_both
async def test_one_class_is_changed(place: Place) -> None:
    uuid = await place.provider(VCPU=8)
    body = {"resource_provider_generation": 1, "total": 9, "reserved": 2}
    answer = await place.put(at(uuid, "VCPU"), body)
    assert answer.json() == {**WHOLE, "resource_provider_generation": 2, "total": 9, "reserved": 2}
    refused(await place.put(at(uuid, "VCPU"), body), 409, "actual: 2, given: 1", "placement.concurrent_update")
    body["resource_provider_generation"] = 2
    refused(await place.put(at(uuid, "DISK_GB"), body), 400, "No inventory record with resource class")
    refused(await place.put(at(uuid, "VCPU"), {"total": 1}), 400, "'resource_provider_generation' is a required")


@proves(
    "DELETE /placement/resource_providers/{uuid}/inventories/{resource_class}",
    "DELETE /placement/resource_providers/{uuid}/inventories",
)
@on_both
async def test_what_is_used_stays(place: Place) -> None:
    uuid = await place.provider(VCPU=8, DISK_GB=9, MEMORY_MB=9)
    consumer = new_id()
    assert (await place.put(f"/allocations/{consumer}", claim({uuid: {"DISK_GB": 1, "VCPU": 1}}))).status == 204
    used = f"Inventory for 'VCPU, DISK_GB' on resource provider '{uuid}' in use"
    refused(await place.delete(at(uuid)), 409, used, "placement.inventory.inuse")
    body = {"resource_provider_generation": 2, "inventories": {"MEMORY_MB": {"total": 1}}}
    refused(await place.put(at(uuid), body), 409, used, "placement.inventory.inuse")
    refused(await place.delete(at(uuid, "VCPU")), 409, "Inventory for 'VCPU' on", "placement.inventory.inuse")
    assert len((await place.told(at(uuid)))["inventories"]) == 3
    assert (await place.delete(at(uuid, "MEMORY_MB"))).status == 204
    refused(await place.delete(at(uuid, "MEMORY_MB")), 404, "No inventory of class MEMORY_MB found for delete")
    await place.delete(f"/allocations/{consumer}")
    assert (await place.delete(at(uuid))).status == 204
    assert (await place.delete(at(uuid))).status == 204
    assert await place.generation(uuid) == 5
    refused(await place.get(at(uuid, "VCPU")), 404, f"No inventory of class VCPU for {uuid}")


@on_both
async def test_less_than_is_used_may_be_said(place: Place) -> None:
    uuid = await place.provider(VCPU=8)
    assert (await place.put(f"/allocations/{new_id()}", claim({uuid: {"VCPU": 8}}))).status == 204
    body = {"resource_provider_generation": 2, "inventories": {"VCPU": {"total": 4}}}
    assert (await place.put(at(uuid), body)).status == 200
    assert await place.used(uuid) == {"VCPU": 8}


@on_both
async def test_reserving_all_needs_1_26(place: Place) -> None:
    uuid = await place.provider()
    one = {"resource_class": "VCPU", "total": 4, "reserved": 4}
    answer = await place.post(at(uuid), one, version="1.25")
    assert "Unable to create inventory for resource provider" in error(answer)["detail"]
    assert "greater than or equal to total" in error(answer)["detail"]
    assert (await place.post(at(uuid), one, version="1.26")).status == 201
    for path, body in (
        (at(uuid), {"inventories": {"VCPU": {"total": 4, "reserved": 5}}}),
        (at(uuid, "VCPU"), {"total": 4, "reserved": 5}),
    ):
        body = {**body, "resource_provider_generation": 1}
        refused(await place.put(path, body), 400, f"Unable to update inventory for resource provider {uuid}")
        refused(await place.put(path, body), 400, "The reserved value is greater than total.")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "'total' is a required property"),
    *(({key: 0}, "0 is less than the minimum of 1") for key in ("total", "min_unit", "max_unit", "step_size")),
    ({"total": -1}, "-1 is less than the minimum of 1"),
    *(
        ({key: 2**31}, f"Failed validating 'maximum' in schema['properties']['{key}']")
        for key in ("total", "reserved", "min_unit", "max_unit", "step_size")
    ),
    ({"allocation_ratio": 3.40282e39}, "Failed validating 'maximum'"),
    ({"allocation_ratio": -1}, "Failed validating 'minimum'"),
    ({"resource_class": "bad_class"}, "does not match"),
    ({"resource_class": "NO_CLASS"}, "No such resource class NO_CLASS"),
    ({"colour": "red"}, "Additional properties are not allowed"),
    ({"total": 1.5}, "1.5 is not of type 'integer'"),
]


@pytest.mark.parametrize("body, words", WRONG)
@on_both
async def test_wrong_inventories(place: Place, body: dict[str, Any], words: str) -> None:
    uuid = await place.provider()
    given = {"resource_class": "VCPU", **({"total": 10} if body else {}), **body}
    refused(await place.post(at(uuid), given), 400, words)
    assert await place.told(at(uuid)) == {"resource_provider_generation": 0, "inventories": {}}


@on_both
async def test_an_unknown_class_in_many(place: Place) -> None:
    uuid = await place.provider()
    body = {"resource_provider_generation": 0, "inventories": {"HOUSE": {"total": 1}}}
    refused(await place.put(at(uuid), body), 400, "Unknown resource class in inventory")


@on_both
async def test_no_provider(place: Place) -> None:
    uuid = new_id()
    for method, path, body in (
        ("GET", at(uuid), None),
        ("DELETE", at(uuid), None),
        ("GET", at(uuid, "VCPU"), None),
        ("DELETE", at(uuid, "VCPU"), None),
        ("POST", at(uuid), {"resource_class": "VCPU", "total": 1}),
        ("PUT", at(uuid), {"resource_provider_generation": 0, "inventories": {}}),
        ("PUT", at(uuid, "VCPU"), {"resource_provider_generation": 0, "total": 1}),
    ):
        refused(await place.request(method, path, body), 404, f"No resource provider with uuid {uuid} found")


@on_both
async def test_of_many_that_saw_the_same_generation_one_writes(place: Place) -> None:
    uuid = await place.provider()
    bodies = [
        {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": number}}} for number in range(1, 21)
    ]
    answers = await asyncio.gather(*(place.put(at(uuid), body) for body in bodies))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 19
    (winner,) = (body for body, answer in zip(bodies, answers, strict=True) if answer.status == 200)
    told = await place.told(at(uuid))
    assert told["resource_provider_generation"] == 1
    assert told["inventories"]["VCPU"]["total"] == winner["inventories"]["VCPU"]["total"]  # type: ignore[index]


@on_both
async def test_a_capacity_beyond_all_measure_is_shown_as_a_number_that_readers_can_take(place: Place) -> None:
    uuid = await place.provider(VCPU={"total": 2**31 - 1, "allocation_ratio": 3.4e38})
    told = await place.told("/allocation_candidates?resources=VCPU:1")
    assert told["provider_summaries"][uuid]["resources"] == {"VCPU": {"capacity": 2**53 - 1, "used": 0}}
    assert (await place.allocate(new_id(), on={uuid: {"VCPU": 2**31 - 1}})).status == 204
