"""What consumers hold: put, shown, removed, for one and for several, at every version."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.ids import new_id
from tests.placement.rest.support import PROJECT, USER, Place, claim, error, on_both, refused, spread, without
from tests.placement.support import marks
from tests.support.proves import proves

ONE = "/placement/allocations/{consumer_uuid}"
NOBODY = "00000000-0000-0000-0000-000000000000"
CONFLICT = "placement.concurrent_update"


def body_at(minor: int, on: dict[str, dict[str, int]], generation: int | None = None) -> dict[str, Any]:
    """The body as a version takes it."""
    body = claim(on, generation)
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
async def test_allocations_are_put_shown_and_removed(place: Place) -> None:
    one, two, consumer = await place.provider(VCPU=8, DISK_GB=9), await place.provider(DISK_GB=50), new_id()
    assert await place.told(f"/allocations/{consumer}") == {"allocations": {}}
    answer = await place.allocate(consumer, on={one: {"VCPU": 2, "DISK_GB": 1}, two: {"DISK_GB": 5}})
    assert (answer.status, answer.body) == (204, b"")
    assert "last-modified" not in answer.headers
    assert await place.told(f"/allocations/{consumer}") == {
        "allocations": {
            one: {"generation": 2, "resources": {"VCPU": 2, "DISK_GB": 1}},
            two: {"generation": 2, "resources": {"DISK_GB": 5}},
        },
        "project_id": PROJECT,
        "user_id": USER,
        "consumer_generation": 1,
        "consumer_type": "INSTANCE",
    }
    assert await place.told(f"/resource_providers/{one}/allocations") == {
        "allocations": {consumer: {"resources": {"VCPU": 2, "DISK_GB": 1}, "consumer_generation": 1}},
        "resource_provider_generation": 2,
    }
    assert (await place.delete(f"/allocations/{consumer}")).status == 204
    refused(await place.delete(f"/allocations/{consumer}"), 404, f"No allocations for consumer '{consumer}'")
    assert await place.db.fetch("SELECT * FROM consumers") == []
    assert await place.used(one) == {"VCPU": 0, "DISK_GB": 0}


@on_both
async def test_what_old_versions_show(place: Place) -> None:
    uuid, consumer = await place.provider(VCPU=8), new_id()
    await place.allocate(consumer, on={uuid: {"VCPU": 2}})
    for version, keys in (("1.11", 1), ("1.12", 3), ("1.27", 3), ("1.28", 4), ("1.37", 4), ("1.38", 5)):
        assert len(await place.told(f"/allocations/{consumer}", version=version)) == keys
    path = f"/resource_providers/{uuid}/allocations"
    for version, keys in (("1.27", 1), ("1.28", 2)):
        assert len((await place.told(path, version=version))["allocations"][consumer]) == keys


@pytest.mark.parametrize("version", spread((0, 7, 8, 11, 12, 27, 28, 33, 34, 37, 38, 39)))
@on_both
async def test_bodies_at_each_version(place: Place, version: str) -> None:
    minor = int(version[2:])
    one, two, consumer = await place.provider(VCPU=8), await place.provider(VCPU=8), new_id()
    on = {one: {"VCPU": 2}, two: {"VCPU": 1}}
    path = f"/allocations/{consumer}"
    assert (await place.put(path, body_at(minor, on), version=version)).status == 204
    told = await place.told(path)
    assert await place.held(consumer) == on
    assert told["project_id"] == (PROJECT if minor >= 8 else NOBODY)
    assert told["consumer_type"] == ("INSTANCE" if minor >= 38 else "unknown")
    assert (await place.put(path, body_at(minor, {one: {"VCPU": 3}}, 1), version=version)).status == 204
    assert await place.held(consumer) == {one: {"VCPU": 3}}
    # The neighbours' forms are refused.
    for edge in (8, 12, 28, 38):
        other = edge if minor < edge else edge - 1
        answer = await place.put(path, body_at(other, on), version=version)
        assert (answer.status, "JSON does not validate" in error(answer)["detail"]) == (400, True)
    mapped = {**body_at(minor, on, 2), "mappings": {"": [one], "_A": [two]}}
    assert (await place.put(path, mapped, version=version)).status == (204 if minor >= 34 else 400)


@on_both
async def test_who_a_consumer_belongs_to_can_change(place: Place) -> None:
    uuid, consumer = await place.provider(VCPU=8), new_id()
    path = f"/allocations/{consumer}"
    await place.allocate(consumer, on={uuid: {"VCPU": 1}})
    await place.allocate(consumer, 1, on={uuid: {"VCPU": 1}}, project_id="other", consumer_type="PONY")
    told = await place.told(path)
    assert (told["project_id"], told["consumer_type"], told["consumer_generation"]) == ("other", "PONY", 2)
    # Who says nothing of project and type leaves them as they are.
    assert (await place.put(path, body_at(0, {uuid: {"VCPU": 2}}), version="1.0")).status == 204
    told = await place.told(path)
    assert (told["project_id"], told["consumer_type"], told["consumer_generation"]) == ("other", "PONY", 3)


@on_both
async def test_generations_of_consumers(place: Place) -> None:
    uuid, consumer = await place.provider(VCPU=8), new_id()
    on = {uuid: {"VCPU": 1}}
    words = "consumer generation conflict - expected {} but got {}"
    refused(await place.allocate(consumer, 5, on=on), 409, words.format("null", 5), CONFLICT)
    assert (await place.allocate(consumer, None, on=on)).status == 204
    refused(await place.allocate(consumer, None, on=on), 409, words.format(1, "null"), CONFLICT)
    refused(await place.allocate(consumer, 12, on=on), 409, words.format(1, 12), CONFLICT)
    assert (await place.allocate(consumer, 1, on=on)).status == 204
    # A new version's caller and an old one's take turns.
    assert (await place.put(f"/allocations/{consumer}", body_at(27, on), version="1.27")).status == 204
    assert (await place.allocate(consumer, 3, on={})).status == 204
    assert await place.told(f"/allocations/{consumer}") == {"allocations": {}}
    assert (await place.allocate(consumer, None, on={})).status == 204
    refused(await place.allocate(consumer, 4, on={}), 409, words.format("null", 4), CONFLICT)


@on_both
async def test_a_refused_allocation_leaves_nothing(place: Place) -> None:
    uuid, consumer = await place.provider(VCPU=4), new_id()
    before = await marks(place.db, uuid)
    refused(
        await place.allocate(consumer, on={uuid: {"VCPU": 5}}), 409, "The requested amount would exceed the capacity"
    )
    assert await place.db.fetch("SELECT * FROM consumers") == []
    assert await marks(place.db, uuid) == before
    assert (await place.allocate(consumer, on={uuid: {"VCPU": 4}})).status == 204
    refused(await place.allocate(consumer, 1, on={uuid: {"VCPU": 5}}), 409, "would exceed the capacity")
    assert await place.held(consumer) == {uuid: {"VCPU": 4}}


@on_both
async def test_what_does_not_fit(place: Place) -> None:
    units = {"total": 100, "reserved": 10, "min_unit": 4, "max_unit": 40, "step_size": 4, "allocation_ratio": 1.5}
    uuid = await place.provider(DISK_GB=units)
    for amount in (2, 44, 5):
        answer = await place.allocate(new_id(), on={uuid: {"DISK_GB": amount}})
        refused(answer, 409, "would violate inventory constraints")
    refused(
        await place.allocate(new_id(), on={uuid: {"VCPU": 1}}),
        409,
        f"Inventory for 'VCPU' on resource provider '{uuid}'",
    )
    statuses = [(await place.allocate(new_id(), on={uuid: {"DISK_GB": 40}})).status for _ in range(4)]
    assert statuses == [204, 204, 204, 409]  # (100 - 10) * 1.5 = 135
    assert (await place.allocate(new_id(), on={uuid: {"DISK_GB": 12}})).status == 204


@on_both
async def test_too_much_may_become_less(place: Place) -> None:
    """An inventory that shrank below its use does not keep consumers from giving back, nor from staying."""
    uuid, consumer = await place.provider(VCPU=10), new_id()
    await place.allocate(consumer, on={uuid: {"VCPU": 10}})
    await place.stock(uuid, VCPU=4)
    assert (await place.allocate(consumer, 1, on={uuid: {"VCPU": 10}}, project_id="other")).status == 204
    assert (await place.allocate(consumer, 2, on={uuid: {"VCPU": 8}})).status == 204
    refused(await place.allocate(consumer, 3, on={uuid: {"VCPU": 9}}), 409, "would exceed the capacity")
    refused(await place.allocate(new_id(), on={uuid: {"VCPU": 1}}), 409, "would exceed the capacity")


@on_both
async def test_names_that_are_unknown(place: Place) -> None:
    uuid, missing, consumer = await place.provider(VCPU=4), new_id(), new_id()
    refused(
        await place.allocate(consumer, on={missing: {"VCPU": 1}}),
        400,
        f"Allocation for resource provider '{missing}' that does not exist.",
    )
    answer = await place.allocate(consumer, on={uuid: {"COWS": 1}})
    refused(answer, 400, f"Unable to allocate inventory for consumer {consumer}: No such resource class COWS.")
    refused(await place.put("/allocations/not-a-uuid", claim({uuid: {"VCPU": 1}})), 400, "Malformed consumer_uuid")
    refused(await place.get(f"/resource_providers/{missing}/allocations"), 404, "No resource provider with uuid")
    assert await place.told("/allocations/not-a-uuid") == {"allocations": {}}
    refused(await place.delete("/allocations/not-a-uuid"), 404, "No allocations for consumer 'not-a-uuid'")


@on_both
async def test_a_uuid_without_dashes_is_the_same(place: Place) -> None:
    uuid, consumer = await place.provider(VCPU=4), new_id()
    await place.allocate(consumer, on={uuid: {"VCPU": 1}})
    assert (await place.allocate(consumer.replace("-", "").upper(), 1, on={uuid: {"VCPU": 2}})).status == 204
    assert await place.held(consumer) == {uuid: {"VCPU": 2}}


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
async def test_wrong_bodies(place: Place, change: dict[str, Any], words: str) -> None:
    body = {**claim({NOBODY: {"VCPU": 1}}), **change}
    refused(await place.put(f"/allocations/{new_id()}", body), 400, words)
    refused(await place.post("/allocations", {new_id(): body}), 400, words)


@on_both
async def test_empty_bodies_of_old_versions(place: Place) -> None:
    path = f"/allocations/{new_id()}"
    for version, words in (("1.0", "Failed validating 'minItems'"), ("1.12", "should be non-empty")):
        answer = await place.put(path, body_at(int(version[2:]), {}), version=version)
        assert (answer.status, words in error(answer)["detail"]) == (400, True)


@proves("POST /placement/allocations")
@on_both
async def test_several_consumers_at_once(place: Place) -> None:
    source, target = await place.provider(VCPU=4), await place.provider(VCPU=4)
    server, migration = new_id(), new_id()
    await place.allocate(server, on={source: {"VCPU": 4}})
    # As a migration does it: what the server holds goes to the migration, and the server gets a place elsewhere.
    body = {
        server: claim({target: {"VCPU": 4}}, 1),
        migration: claim({source: {"VCPU": 4}}, None, consumer_type="MIGRATION"),
    }
    assert (await place.post("/allocations", body)).status == 204
    assert (await place.used(source), await place.used(target)) == ({"VCPU": 4}, {"VCPU": 4})
    assert (await place.told(f"/allocations/{migration}"))["consumer_type"] == "MIGRATION"
    # And back.
    body = {server: claim({source: {"VCPU": 4}}, 2), migration: claim({}, 1)}
    assert (await place.post("/allocations", body)).status == 204
    assert await place.held(server) == {source: {"VCPU": 4}}
    assert await place.used(target) == {"VCPU": 0}
    assert [row["uuid"] for row in await place.db.fetch("SELECT uuid FROM consumers")] == [server]


@on_both
async def test_several_consumers_or_none(place: Place) -> None:
    uuid, first, second = await place.provider(VCPU=4), new_id(), new_id()
    fits = claim({uuid: {"VCPU": 3}})
    for other, status, words, code in (
        (fits, 409, "The requested amount would exceed the capacity", "placement.undefined_code"),
        (claim({new_id(): {"VCPU": 1}}), 400, "that does not exist", "placement.undefined_code"),
        (claim({uuid: {"PCI_DEVICE": 1}}), 409, "Inventory for 'PCI_DEVICE' on", "placement.undefined_code"),
        (claim({uuid: {"CUSTOM_PONY": 1}}), 400, "No such resource class CUSTOM_PONY", "placement.undefined_code"),
        (claim({uuid: {"VCPU": 1}}, 7), 409, "expected null but got 7", CONFLICT),
    ):
        refused(await place.post("/allocations", {first: fits, second: other}), status, words, code)
        assert await place.used(uuid) == {"VCPU": 0}
    refused(await place.post("/allocations", {}), 400, "JSON does not validate")
    refused(await place.post("/allocations", {"x": fits}), 400, "does not match any of the regexes")


@pytest.mark.parametrize("version", spread((13, 27, 28, 33, 34, 37, 38)))
@on_both
async def test_bodies_for_several_at_each_version(place: Place, version: str) -> None:
    minor = int(version[2:])
    uuid, consumer = await place.provider(VCPU=4), new_id()
    body = body_at(minor, {uuid: {"VCPU": 1}})
    assert (await place.post("/allocations", {consumer: body}, version=version)).status == 204
    again = {consumer: {**body_at(minor, {uuid: {"VCPU": 2}}, 1), "mappings": {"": [uuid]}}}
    assert (await place.post("/allocations", again, version=version)).status == (204 if minor >= 34 else 400)
    gone = {consumer: body_at(minor, {}, 2 if minor >= 34 else 1)}
    assert (await place.post("/allocations", gone, version=version)).status == 204
    assert await place.held(consumer) == {}


@on_both
async def test_schedulers_see_every_change(place: Place) -> None:
    """A provider's change number moves whether more is used or less; its generation only where something is put."""
    one, two, consumer = await place.provider(VCPU=4), await place.provider(VCPU=4), new_id()

    async def moved(before: tuple[int, int, int], uuid: str) -> tuple[int, bool, bool]:
        now = await marks(place.db, uuid)
        return now[0] - before[0], now[1] > before[1], now[2] > before[2]

    before = await marks(place.db, one)
    await place.allocate(consumer, on={one: {"VCPU": 1}})
    assert await moved(before, one) == (1, True, False)
    before, other = await marks(place.db, one), await marks(place.db, two)
    await place.allocate(consumer, 1, on={two: {"VCPU": 1}})
    assert await moved(before, one) == (0, True, False)
    assert await moved(other, two) == (1, True, False)
    other = await marks(place.db, two)
    await place.delete(f"/allocations/{consumer}")
    assert await moved(other, two) == (0, True, False)
