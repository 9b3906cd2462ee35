"""Resource classes, standard and custom."""

from __future__ import annotations

from kilonova.ids import new_id
from kilonova.placement.names import standard_classes
from tests.placement.rest.support import Place, allocations_body, assert_error, on_both
from tests.placement.support import counters
from tests.support.route_coverage import proves

CLASS = "/placement/resource_classes/{name}"


@proves(
    "GET /placement/resource_classes",
    "POST /placement/resource_classes",
    "GET /placement/resource_classes/{name}",
    "DELETE /placement/resource_classes/{name}",
)
@on_both
async def test_create_list_and_delete_classes(place: Place) -> None:
    async def listed() -> list[str]:
        return [one["name"] for one in (await place.get_json("/resource_classes"))["resource_classes"]]

    assert await listed() == list(standard_classes())
    created = await place.post("/resource_classes", {"name": "CUSTOM_GOLD"})
    assert (created.status, created.body) == (201, b"")
    assert created.headers["location"].endswith("/placement/resource_classes/CUSTOM_GOLD")
    assert await listed() == [*standard_classes(), "CUSTOM_GOLD"]
    assert await place.get_json("/resource_classes/CUSTOM_GOLD") == {
        "name": "CUSTOM_GOLD",
        "links": [{"rel": "self", "href": "/placement/resource_classes/CUSTOM_GOLD"}],
    }
    assert (await place.get("/resource_classes/VCPU")).status == 200
    assert_error(
        await place.post("/resource_classes", {"name": "CUSTOM_GOLD"}), 409, "Conflicting resource class already"
    )
    assert (await place.delete("/resource_classes/CUSTOM_GOLD")).status == 204
    for method in ("GET", "DELETE"):
        assert_error(await place.request(method, "/resource_classes/CUSTOM_GOLD"), 404, "No such resource class")
    assert_error(await place.delete("/resource_classes/VCPU"), 400, "Cannot delete standard resource class")


@on_both
async def test_class_in_use_cannot_be_deleted(place: Place) -> None:
    await place.put("/resource_classes/CUSTOM_GOLD")
    uuid = await place.provider(CUSTOM_GOLD=4)
    assert_error(await place.delete("/resource_classes/CUSTOM_GOLD"), 409, "Class is in use in inventory")
    await place.delete(f"/resource_providers/{uuid}/inventories")
    assert (await place.delete("/resource_classes/CUSTOM_GOLD")).status == 204


@proves("PUT /placement/resource_classes/{name}")
@on_both
async def test_put_ensures_class_since_1_7(place: Place) -> None:
    for status in (201, 204):
        response = await place.put("/resource_classes/CUSTOM_COW", version="1.7")
        assert (response.status, response.body) == (status, b"")
        assert response.headers["location"].endswith("/resource_classes/CUSTOM_COW")
    for name, rule in (("COW", "pattern"), ("VCPU", "pattern"), ("CUSTOM_" + "A" * 249, "maxLength")):
        assert_error(await place.put(f"/resource_classes/{name}"), 400, f"Failed validating '{rule}'")


@on_both
async def test_before_1_7_put_renames_class(place: Place) -> None:
    await place.post("/resource_classes", {"name": "CUSTOM_COW"}, version="1.2")
    await place.post("/resource_classes", {"name": "CUSTOM_CAT"}, version="1.2")
    uuid, consumer = await place.provider(CUSTOM_COW=4), new_id()
    await place.put(f"/allocations/{consumer}", allocations_body({uuid: {"CUSTOM_COW": 3}}))
    before = await counters(place.db, uuid)
    for name, body, words in (
        ("CUSTOM_COW", {}, "'name' is a required property"),
        ("CUSTOM_COW", {"name": "VCPU"}, "does not match"),
        ("CUSTOM_COW", {"name": "CUSTOM_A", "x": 1}, "Additional properties are not allowed"),
        ("VCPU", {"name": "CUSTOM_VCPU"}, "Cannot update standard resource class VCPU"),
    ):
        response = await place.put(f"/resource_classes/{name}", body, version="1.6")
        assert response.status == 400
        assert words in response.json()["errors"][0]["detail"]
    taken = await place.put("/resource_classes/CUSTOM_COW", {"name": "CUSTOM_CAT"}, version="1.6")
    assert (taken.status, taken.json()["errors"][0]["detail"]) == (409, "Resource class already exists: CUSTOM_CAT")
    missing = await place.put("/resource_classes/CUSTOM_DOG", {"name": "CUSTOM_FOX"}, version="1.6")
    assert missing.status == 404
    response = await place.put("/resource_classes/CUSTOM_COW", {"name": "CUSTOM_BULL"}, version="1.6")
    assert (response.status, response.json()["name"]) == (200, "CUSTOM_BULL")
    assert await place.allocations(consumer) == {uuid: {"CUSTOM_BULL": 3}}
    assert await place.usages(uuid) == {"CUSTOM_BULL": 3}
    after = await counters(place.db, uuid)
    assert (after[0], after[2] > before[2]) == (before[0], True)


@on_both
async def test_invalid_class_names(place: Place) -> None:
    for body, words in (
        ({"name": "IRON_NFV"}, "does not match"),
        ({"name": "CUSTOM_Illegal&@!Name?"}, "does not match"),
        ({"name": "CUSTOM_" + "A" * 249}, "Failed validating 'maxLength'"),
        ({"name": "CUSTOM_A", "additional": 1}, "Additional properties are not allowed"),
        ({}, "'name' is a required property"),
    ):
        assert_error(await place.post("/resource_classes", body), 400, words)
