"""Allocations of one and of several consumers, at all microversions."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.ids import new_id
from tests.placement.rest.support import (
    PROJECT,
    USER,
    Place,
    allocations_body,
    assert_error,
    error,
    on_both,
    spread,
    without,
)
from tests.placement.support import counters
from tests.support.route_coverage import proves

NOBODY = "00000000-0000-0000-0000-000000000000"
CONFLICT = "placement.concurrent_update"


def body_at(minor: int, on: dict[str, dict[str, int]], generation: int | None = None) -> dict[str, Any]:
    """The body in the form of a microversion."""
    body = allocations_body(on, generation)
    if minor < 38:
        del body["consumer_type"]
    if minor < 28:
        del body["consumer_generation"]
    if minor < 12:
        body["allocations"] = [
            {"resource_provider": {"uuid": uuid}, "resources": resources} for uuid, resources in on.items()
        ]
    return without(body, "project_id", "user_id") if minor < 8 else body


@proves(
    "PUT /placement/allocations/{consumer_uuid}",
    "GET /placement/allocations/{consumer_uuid}",
    "DELETE /placement/allocations/{consumer_uuid}",
    "GET /placement/resource_providers/{uuid}/allocations",
)
@on_both
async def test_put_show_and_delete_allocations(place: Place) -> None:
    one, two, consumer = await place.provider(VCPU=8, DISK_GB=9), await place.provider(DISK_GB=50), new_id()
    assert await place.get_json(f"/allocations/{consumer}") == {"allocations": {}}
    response = await place.allocate(consumer, on={one: {"VCPU": 2, "DISK_GB": 1}, two: {"DISK_GB": 5}})
    assert (response.status, response.body) == (204, b"")
    assert "last-modified" not in response.headers
    assert await place.get_json(f"/allocations/{consumer}") == {
        "allocations": {
            one: {"generation": 2, "resources": {"VCPU": 2, "DISK_GB": 1}},
            two: {"generation": 2, "resources": {"DISK_GB": 5}},
        },
        "project_id": PROJECT,
        "user_id": USER,
        "consumer_generation": 1,
        "consumer_type": "INSTANCE",
    }
    assert await place.get_json(f"/resource_providers/{one}/allocations") == {
        "allocations": {consumer: {"resources": {"VCPU": 2, "DISK_GB": 1}, "consumer_generation": 1}},
        "resource_provider_generation": 2,
    }
    assert (await place.delete(f"/allocations/{consumer}")).status == 204
    assert_error(await place.delete(f"/allocations/{consumer}"), 404, f"No allocations for consumer '{consumer}'")
    assert await place.db.fetch("SELECT * FROM consumers") == []
    assert await place.usages(one) == {"VCPU": 0, "DISK_GB": 0}


@on_both
async def test_fields_shown_by_old_versions(place: Place) -> None:
    uuid, consumer = await place.provider(VCPU=8), new_id()
    await place.allocate(consumer, on={uuid: {"VCPU": 2}})
    for version, keys in (("1.11", 1), ("1.12", 3), ("1.27", 3), ("1.28", 4), ("1.37", 4), ("1.38", 5)):
        assert len(await place.get_json(f"/allocations/{consumer}", version=version)) == keys
    path = f"/resource_providers/{uuid}/allocations"
    for version, keys in (("1.27", 1), ("1.28", 2)):
        assert len((await place.get_json(path, version=version))["allocations"][consumer]) == keys


@pytest.mark.parametrize("version", spread((0, 7, 8, 11, 12, 27, 28, 33, 34, 37, 38, 39)))
@on_both
async def test_put_body_at_each_version(place: Place, version: str) -> None:
    minor = int(version[2:])
    one, two, consumer = await place.provider(VCPU=8), await place.provider(VCPU=8), new_id()
    on = {one: {"VCPU": 2}, two: {"VCPU": 1}}
    path = f"/allocations/{consumer}"
    assert (await place.put(path, body_at(minor, on), version=version)).status == 204
    body = await place.get_json(path)
    assert await place.allocations(consumer) == on
    assert body["project_id"] == (PROJECT if minor >= 8 else NOBODY)
    assert body["consumer_type"] == ("INSTANCE" if minor >= 38 else "unknown")
    assert (await place.put(path, body_at(minor, {one: {"VCPU": 3}}, 1), version=version)).status == 204
    assert await place.allocations(consumer) == {one: {"VCPU": 3}}
    # The forms of other versions are refused.
    for edge in (8, 12, 28, 38):
        other = edge if minor < edge else edge - 1
        response = await place.put(path, body_at(other, on), version=version)
        assert (response.status, "JSON does not validate" in error(response)["detail"]) == (400, True)
    mapped = {**body_at(minor, on, 2), "mappings": {"": [one], "_A": [two]}}
    assert (await place.put(path, mapped, version=version)).status == (204 if minor >= 34 else 400)


@on_both
async def test_project_and_user_of_consumer_can_change(place: Place) -> None:
    uuid, consumer = await place.provider(VCPU=8), new_id()
    path = f"/allocations/{consumer}"
    await place.allocate(consumer, on={uuid: {"VCPU": 1}})
    await place.allocate(consumer, 1, on={uuid: {"VCPU": 1}}, project_id="other", consumer_type="PONY")
    body = await place.get_json(path)
    assert (body["project_id"], body["consumer_type"], body["consumer_generation"]) == ("other", "PONY", 2)
    # A request without project and type keeps them.
    assert (await place.put(path, body_at(0, {uuid: {"VCPU": 2}}), version="1.0")).status == 204
    body = await place.get_json(path)
    assert (body["project_id"], body["consumer_type"], body["consumer_generation"]) == ("other", "PONY", 3)


@on_both
async def test_consumer_generation_conflicts(place: Place) -> None:
    uuid, consumer = await place.provider(VCPU=8), new_id()
    on = {uuid: {"VCPU": 1}}
    words = "consumer generation conflict - expected {} but got {}"
    assert_error(await place.allocate(consumer, 5, on=on), 409, words.format("null", 5), CONFLICT)
    assert (await place.allocate(consumer, None, on=on)).status == 204
    assert_error(await place.allocate(consumer, None, on=on), 409, words.format(1, "null"), CONFLICT)
    assert_error(await place.allocate(consumer, 12, on=on), 409, words.format(1, 12), CONFLICT)
    assert (await place.allocate(consumer, 1, on=on)).status == 204
    # Requests of a new and an old version alternate.
    assert (await place.put(f"/allocations/{consumer}", body_at(27, on), version="1.27")).status == 204
    assert (await place.allocate(consumer, 3, on={})).status == 204
    assert await place.get_json(f"/allocations/{consumer}") == {"allocations": {}}
    assert (await place.allocate(consumer, None, on={})).status == 204
    assert_error(await place.allocate(consumer, 4, on={}), 409, words.format("null", 4), CONFLICT)


@on_both
async def test_refused_allocation_writes_nothing(place: Place) -> None:
    uuid, consumer = await place.provider(VCPU=4), new_id()
    before = await counters(place.db, uuid)
    assert_error(
        await place.allocate(consumer, on={uuid: {"VCPU": 5}}), 409, "The requested amount would exceed the capacity"
    )
    assert await place.db.fetch("SELECT * FROM consumers") == []
    assert await counters(place.db, uuid) == before
    assert (await place.allocate(consumer, on={uuid: {"VCPU": 4}})).status == 204
    assert_error(await place.allocate(consumer, 1, on={uuid: {"VCPU": 5}}), 409, "would exceed the capacity")
    assert await place.allocations(consumer) == {uuid: {"VCPU": 4}}


@on_both
async def test_allocation_beyond_inventory_is_refused(place: Place) -> None:
    units = {"total": 100, "reserved": 10, "min_unit": 4, "max_unit": 40, "step_size": 4, "allocation_ratio": 1.5}
    uuid = await place.provider(DISK_GB=units)
    for amount in (2, 44, 5):
        response = await place.allocate(new_id(), on={uuid: {"DISK_GB": amount}})
        assert_error(response, 409, "would violate inventory constraints")
    assert_error(
        await place.allocate(new_id(), on={uuid: {"VCPU": 1}}),
        409,
        f"Inventory for 'VCPU' on resource provider '{uuid}'",
    )
    statuses = [(await place.allocate(new_id(), on={uuid: {"DISK_GB": 40}})).status for _ in range(4)]
    assert statuses == [204, 204, 204, 409]  # (100 - 10) * 1.5 = 135
    assert (await place.allocate(new_id(), on={uuid: {"DISK_GB": 12}})).status == 204


@on_both
async def test_usage_above_capacity_may_shrink(place: Place) -> None:
    """If an inventory shrinks below its usage, consumers may still reduce or keep their allocations."""
    uuid, consumer = await place.provider(VCPU=10), new_id()
    await place.allocate(consumer, on={uuid: {"VCPU": 10}})
    await place.put_inventories(uuid, VCPU=4)
    assert (await place.allocate(consumer, 1, on={uuid: {"VCPU": 10}}, project_id="other")).status == 204
    assert (await place.allocate(consumer, 2, on={uuid: {"VCPU": 8}})).status == 204
    assert_error(await place.allocate(consumer, 3, on={uuid: {"VCPU": 9}}), 409, "would exceed the capacity")
    assert_error(await place.allocate(new_id(), on={uuid: {"VCPU": 1}}), 409, "would exceed the capacity")


@on_both
async def test_unknown_provider_or_class(place: Place) -> None:
    uuid, missing, consumer = await place.provider(VCPU=4), new_id(), new_id()
    assert_error(
        await place.allocate(consumer, on={missing: {"VCPU": 1}}),
        400,
        f"Allocation for resource provider '{missing}' that does not exist.",
    )
    response = await place.allocate(consumer, on={uuid: {"COWS": 1}})
    assert_error(response, 400, f"Unable to allocate inventory for consumer {consumer}: No such resource class COWS.")
    assert_error(
        await place.put("/allocations/not-a-uuid", allocations_body({uuid: {"VCPU": 1}})),
        400,
        "Malformed consumer_uuid",
    )
    assert_error(await place.get(f"/resource_providers/{missing}/allocations"), 404, "No resource provider with uuid")
    assert await place.get_json("/allocations/not-a-uuid") == {"allocations": {}}
    assert_error(await place.delete("/allocations/not-a-uuid"), 404, "No allocations for consumer 'not-a-uuid'")


@on_both
async def test_uuid_without_dashes_is_normalized(place: Place) -> None:
    uuid, consumer = await place.provider(VCPU=4), new_id()
    await place.allocate(consumer, on={uuid: {"VCPU": 1}})
    assert (await place.allocate(consumer.replace("-", "").upper(), 1, on={uuid: {"VCPU": 2}})).status == 204
    assert await place.allocations(consumer) == {uuid: {"VCPU": 2}}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"project_id": ""}, "Failed validating 'minLength'"),
    ({"project_id": "a" * 256}, "Failed validating 'maxLength'"),
    ({"user_id": ""}, "Failed validating 'minLength'"),
    ({"consumer_type": "instance"}, "'instance' does not match '^[A-Z0-9_]+$'"),
    ({"consumer_generation": "1"}, "is not of type 'integer', 'null'"),
    ({"allocations": {"nice_house": {"resources": {"VCPU": 1}}}}, "does not match any of the regexes"),
    ({"allocations": {NOBODY: {"resources": {"vcpu": 1}}}}, "does not match any of the regexes"),
    ({"allocations": {NOBODY: {"resources": {}}}}, "should be non-empty"),
    ({"allocations": {NOBODY: {"resources": {"VCPU": 0}}}}, "0 is less than the minimum of 1"),
    ({"allocations": {NOBODY: {"cow": "moo"}}}, "JSON does not validate"),
    ({"mappings": {"alpha": "beta"}}, "'beta' is not of type 'array'"),
    ({"mappings": {}}, "should be non-empty"),
    ({"bad_field": "moo"}, "'bad_field' was unexpected"),
]


@pytest.mark.parametrize("change, words", WRONG)
@on_both
async def test_invalid_bodies(place: Place, change: dict[str, Any], words: str) -> None:
    body = {**allocations_body({NOBODY: {"VCPU": 1}}), **change}
    assert_error(await place.put(f"/allocations/{new_id()}", body), 400, words)
    assert_error(await place.post("/allocations", {new_id(): body}), 400, words)


@on_both
async def test_empty_bodies_of_old_versions(place: Place) -> None:
    path = f"/allocations/{new_id()}"
    for version, words in (("1.0", "Failed validating 'minItems'"), ("1.12", "should be non-empty")):
        response = await place.put(path, body_at(int(version[2:]), {}), version=version)
        assert (response.status, words in error(response)["detail"]) == (400, True)


@proves("POST /placement/allocations")
@on_both
async def test_post_replaces_several_consumers(place: Place) -> None:
    source, target = await place.provider(VCPU=4), await place.provider(VCPU=4)
    server, migration = new_id(), new_id()
    await place.allocate(server, on={source: {"VCPU": 4}})
    # As in a migration: the server's allocation goes to the migration, and the server gets one on another host.
    body = {
        server: allocations_body({target: {"VCPU": 4}}, 1),
        migration: allocations_body({source: {"VCPU": 4}}, None, consumer_type="MIGRATION"),
    }
    assert (await place.post("/allocations", body)).status == 204
    assert (await place.usages(source), await place.usages(target)) == ({"VCPU": 4}, {"VCPU": 4})
    assert (await place.get_json(f"/allocations/{migration}"))["consumer_type"] == "MIGRATION"
    # Revert.
    body = {server: allocations_body({source: {"VCPU": 4}}, 2), migration: allocations_body({}, 1)}
    assert (await place.post("/allocations", body)).status == 204
    assert await place.allocations(server) == {source: {"VCPU": 4}}
    assert await place.usages(target) == {"VCPU": 0}
    assert [row["uuid"] for row in await place.db.fetch("SELECT uuid FROM consumers")] == [server]


@on_both
async def test_post_is_all_or_nothing(place: Place) -> None:
    uuid, first, second = await place.provider(VCPU=4), new_id(), new_id()
    fits = allocations_body({uuid: {"VCPU": 3}})
    for other, status, words, code in (
        (fits, 409, "The requested amount would exceed the capacity", "placement.undefined_code"),
        (allocations_body({new_id(): {"VCPU": 1}}), 400, "that does not exist", "placement.undefined_code"),
        (allocations_body({uuid: {"PCI_DEVICE": 1}}), 409, "Inventory for 'PCI_DEVICE' on", "placement.undefined_code"),
        (
            allocations_body({uuid: {"CUSTOM_PONY": 1}}),
            400,
            "No such resource class CUSTOM_PONY",
            "placement.undefined_code",
        ),
        (allocations_body({uuid: {"VCPU": 1}}, 7), 409, "expected null but got 7", CONFLICT),
    ):
        assert_error(await place.post("/allocations", {first: fits, second: other}), status, words, code)
        assert await place.usages(uuid) == {"VCPU": 0}
    assert_error(await place.post("/allocations", {}), 400, "JSON does not validate")
    assert_error(await place.post("/allocations", {"x": fits}), 400, "does not match any of the regexes")


@pytest.mark.parametrize("version", spread((13, 27, 28, 33, 34, 37, 38)))
@on_both
async def test_post_body_at_each_version(place: Place, version: str) -> None:
    minor = int(version[2:])
    uuid, consumer = await place.provider(VCPU=4), new_id()
    body = body_at(minor, {uuid: {"VCPU": 1}})
    assert (await place.post("/allocations", {consumer: body}, version=version)).status == 204
    again = {consumer: {**body_at(minor, {uuid: {"VCPU": 2}}, 1), "mappings": {"": [uuid]}}}
    assert (await place.post("/allocations", again, version=version)).status == (204 if minor >= 34 else 400)
    deleted = {consumer: body_at(minor, {}, 2 if minor >= 34 else 1)}
    assert (await place.post("/allocations", deleted, version=version)).status == 204
    assert await place.allocations(consumer) == {}


@on_both
async def test_every_change_advances_change_number(place: Place) -> None:
    """A provider's change number grows with every change of usage; its generation only with a PUT."""
    one, two, consumer = await place.provider(VCPU=4), await place.provider(VCPU=4), new_id()

    async def moved(before: tuple[int, int, int], uuid: str) -> tuple[int, bool, bool]:
        now = await counters(place.db, uuid)
        return now[0] - before[0], now[1] > before[1], now[2] > before[2]

    before = await counters(place.db, one)
    await place.allocate(consumer, on={one: {"VCPU": 1}})
    assert await moved(before, one) == (1, True, False)
    before, other = await counters(place.db, one), await counters(place.db, two)
    await place.allocate(consumer, 1, on={two: {"VCPU": 1}})
    assert await moved(before, one) == (0, True, False)
    assert await moved(other, two) == (1, True, False)
    other = await counters(place.db, two)
    await place.delete(f"/allocations/{consumer}")
    assert await moved(other, two) == (0, True, False)
