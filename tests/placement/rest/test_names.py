"""Traits and resource classes: standard ones are there, custom ones are made; and the traits of providers."""

from __future__ import annotations

import pytest

from kilonova.ids import new_id
from kilonova.placement.names import standard_classes, standard_traits
from tests.placement.rest.support import Place, claim, on_both, refused
from tests.placement.support import marks
from tests.support.proves import proves

OF = "/placement/resource_providers/{uuid}/traits"


@proves("GET /placement/traits", "PUT /placement/traits/{name}", "GET /placement/traits/{name}")
@on_both
async def test_traits_are_made_and_listed(place: Place) -> None:
    assert (await place.told("/traits"))["traits"] == sorted(standard_traits())
    made = await place.put("/traits/CUSTOM_A", version="1.6")
    assert (made.status, made.body) == (201, b"")
    assert made.headers["location"].endswith("/placement/traits/CUSTOM_A")
    assert (await place.put("/traits/CUSTOM_A")).status == 204
    await place.put("/traits/CUSTOM_AB")
    for name in ("CUSTOM_A", "HW_CPU_X86_AVX"):
        assert (await place.get(f"/traits/{name}")).status == 204
    refused(await place.get("/traits/CUSTOM_B"), 404, "No such trait CUSTOM_B")
    assert (await place.told("/traits?name=startswith:CUSTOM_"))["traits"] == ["CUSTOM_A", "CUSTOM_AB"]
    assert (await place.told("/traits?name=in:CUSTOM_A,NONE,COMPUTE_NODE"))["traits"] == ["COMPUTE_NODE", "CUSTOM_A"]


@pytest.mark.parametrize(
    "name", ["TRAIT_X", "CUSTOM_a", "CUSTOM_A:1", "CUSTOM_", "CUSTOM_" + "A" * 249, "COMPUTE_NODE"]
)
@on_both
async def test_wrong_names_of_traits(place: Place, name: str) -> None:
    refused(await place.put(f"/traits/{name}"), 400, 'start with the prefix "CUSTOM_"')


@on_both
async def test_wrong_filters_of_traits(place: Place) -> None:
    for query, words in (
        ("name=in_abc", 'Got: "in_abc"'),
        ("associated=xyz", 'only accepts "true" or "false"'),
        ("invalid=abc", "Additional properties are not allowed"),
    ):
        refused(await place.get(f"/traits?{query}"), 400, words)


@proves(
    "DELETE /placement/traits/{name}",
    "GET /placement/resource_providers/{uuid}/traits",
    "PUT /placement/resource_providers/{uuid}/traits",
    "DELETE /placement/resource_providers/{uuid}/traits",
)
@on_both
async def test_traits_of_a_provider(place: Place) -> None:
    uuid = await place.provider()
    path = f"/resource_providers/{uuid}/traits"
    assert await place.told(path) == {"resource_provider_generation": 0, "traits": []}
    await place.put("/traits/CUSTOM_A")
    before = await marks(place.db, uuid)
    body = {"resource_provider_generation": 0, "traits": ["HW_CPU_X86_AVX", "CUSTOM_A", "CUSTOM_A"]}
    answer = await place.put(path, body)
    assert answer.json() == {"resource_provider_generation": 1, "traits": ["CUSTOM_A", "HW_CPU_X86_AVX"]}
    assert (await marks(place.db, uuid))[2] > before[2]
    assert await place.told(path) == answer.json()
    assert (await place.told("/traits?associated=true"))["traits"] == ["CUSTOM_A", "HW_CPU_X86_AVX"]
    assert "CUSTOM_A" not in (await place.told("/traits?associated=false"))["traits"]
    refused(
        await place.put(path, body),
        409,
        "Resource provider's generation already changed. Please update the generation and try again.",
        "placement.concurrent_update",
    )
    refused(await place.delete("/traits/CUSTOM_A"), 409, "The trait CUSTOM_A is in use by a resource provider.")
    assert (await place.delete(path)).status == 204
    assert await place.told(path) == {"resource_provider_generation": 2, "traits": []}
    assert (await place.delete("/traits/CUSTOM_A")).status == 204
    refused(await place.delete("/traits/CUSTOM_A"), 404, "No such trait")
    refused(await place.delete("/traits/HW_CPU_X86_AVX"), 400, "Cannot delete standard trait")


@on_both
async def test_wrong_traits_of_a_provider(place: Place) -> None:
    path = f"/resource_providers/{await place.provider()}/traits"
    for body, words in (
        ({"traits": []}, "'resource_provider_generation' is a required property"),
        ({"traits": "x", "resource_provider_generation": 0}, "'x' is not of type 'array'"),
        ({"traits": [], "resource_provider_generation": "x"}, "'x' is not of type 'integer'"),
        ({"traits": [], "resource_provider_generation": 0, "a": 1}, "Additional properties are not allowed"),
        ({"traits": ["NONE_B", "NONE_A"], "resource_provider_generation": 0}, "No such trait NONE_A, NONE_B."),
    ):
        refused(await place.put(path, body), 400, words)
    nobody = f"/resource_providers/{new_id()}/traits"
    for answer in (
        await place.get(nobody),
        await place.delete(nobody),
        await place.put(nobody, {"traits": [], "resource_provider_generation": 0}),
    ):
        refused(answer, 404, "No resource provider with uuid")


@on_both
async def test_what_a_host_reports_stays_its_word(place: Place) -> None:
    """A trait that a host reported and an operator confirms is still the host's to take back."""
    uuid = await place.provider()
    path = f"/resource_providers/{uuid}/traits"
    await place.put(path, {"traits": ["HW_CPU_X86_AVX"], "resource_provider_generation": 0})
    async with place.db.transaction() as tx:
        await tx.execute("UPDATE provider_traits SET reported = TRUE")
    await place.put(path, {"traits": ["HW_CPU_X86_AVX", "COMPUTE_NODE"], "resource_provider_generation": 1})
    rows = await place.db.fetch("SELECT trait, reported FROM provider_traits")
    assert {row["trait"]: row["reported"] for row in rows} == {"HW_CPU_X86_AVX": True, "COMPUTE_NODE": False}


CLASS = "/placement/resource_classes/{name}"


@proves(
    "GET /placement/resource_classes",
    "POST /placement/resource_classes",
    "GET /placement/resource_classes/{name}",
    "DELETE /placement/resource_classes/{name}",
)
@on_both
async def test_classes_are_made_listed_and_deleted(place: Place) -> None:
    async def listed() -> list[str]:
        return [one["name"] for one in (await place.told("/resource_classes"))["resource_classes"]]

    assert await listed() == list(standard_classes())
    made = await place.post("/resource_classes", {"name": "CUSTOM_GOLD"})
    assert (made.status, made.body) == (201, b"")
    assert made.headers["location"].endswith("/placement/resource_classes/CUSTOM_GOLD")
    assert await listed() == [*standard_classes(), "CUSTOM_GOLD"]
    assert await place.told("/resource_classes/CUSTOM_GOLD") == {
        "name": "CUSTOM_GOLD",
        "links": [{"rel": "self", "href": "/placement/resource_classes/CUSTOM_GOLD"}],
    }
    assert (await place.get("/resource_classes/VCPU")).status == 200
    refused(await place.post("/resource_classes", {"name": "CUSTOM_GOLD"}), 409, "Conflicting resource class already")
    assert (await place.delete("/resource_classes/CUSTOM_GOLD")).status == 204
    for method in ("GET", "DELETE"):
        refused(await place.request(method, "/resource_classes/CUSTOM_GOLD"), 404, "No such resource class")
    refused(await place.delete("/resource_classes/VCPU"), 400, "Cannot delete standard resource class")


@on_both
async def test_a_class_in_use_is_not_deleted(place: Place) -> None:
    await place.put("/resource_classes/CUSTOM_GOLD")
    uuid = await place.provider(CUSTOM_GOLD=4)
    refused(await place.delete("/resource_classes/CUSTOM_GOLD"), 409, "Class is in use in inventory")
    await place.delete(f"/resource_providers/{uuid}/inventories")
    assert (await place.delete("/resource_classes/CUSTOM_GOLD")).status == 204


@proves("PUT /placement/resource_classes/{name}")
@on_both
async def test_a_class_is_ensured_from_1_7_on(place: Place) -> None:
    for status in (201, 204):
        answer = await place.put("/resource_classes/CUSTOM_COW", version="1.7")
        assert (answer.status, answer.body) == (status, b"")
        assert answer.headers["location"].endswith("/resource_classes/CUSTOM_COW")
    for name, rule in (("COW", "pattern"), ("VCPU", "pattern"), ("CUSTOM_" + "A" * 249, "maxLength")):
        refused(await place.put(f"/resource_classes/{name}"), 400, f"Failed validating '{rule}'")


@on_both
async def test_a_class_is_renamed_below_1_7(place: Place) -> None:
    await place.post("/resource_classes", {"name": "CUSTOM_COW"}, version="1.2")
    await place.post("/resource_classes", {"name": "CUSTOM_CAT"}, version="1.2")
    uuid, consumer = await place.provider(CUSTOM_COW=4), new_id()
    await place.put(f"/allocations/{consumer}", claim({uuid: {"CUSTOM_COW": 3}}))
    before = await marks(place.db, uuid)
    for name, body, words in (
        ("CUSTOM_COW", {}, "'name' is a required property"),
        ("CUSTOM_COW", {"name": "VCPU"}, "does not match"),
        ("CUSTOM_COW", {"name": "CUSTOM_A", "x": 1}, "Additional properties are not allowed"),
        ("VCPU", {"name": "CUSTOM_VCPU"}, "Cannot update standard resource class VCPU"),
    ):
        answer = await place.put(f"/resource_classes/{name}", body, version="1.6")
        assert answer.status == 400
        assert words in answer.json()["errors"][0]["detail"]
    taken = await place.put("/resource_classes/CUSTOM_COW", {"name": "CUSTOM_CAT"}, version="1.6")
    assert (taken.status, taken.json()["errors"][0]["detail"]) == (409, "Resource class already exists: CUSTOM_CAT")
    nobody = await place.put("/resource_classes/CUSTOM_DOG", {"name": "CUSTOM_FOX"}, version="1.6")
    assert nobody.status == 404
    answer = await place.put("/resource_classes/CUSTOM_COW", {"name": "CUSTOM_BULL"}, version="1.6")
    assert (answer.status, answer.json()["name"]) == (200, "CUSTOM_BULL")
    assert await place.held(consumer) == {uuid: {"CUSTOM_BULL": 3}}
    assert await place.used(uuid) == {"CUSTOM_BULL": 3}
    after = await marks(place.db, uuid)
    assert (after[0], after[2] > before[2]) == (before[0], True)


@on_both
async def test_wrong_names_of_classes(place: Place) -> None:
    for body, words in (
        ({"name": "IRON_NFV"}, "does not match"),
        ({"name": "CUSTOM_Illegal&@!Name?"}, "does not match"),
        ({"name": "CUSTOM_" + "A" * 249}, "Failed validating 'maxLength'"),
        ({"name": "CUSTOM_A", "additional": 1}, "Additional properties are not allowed"),
        ({}, "'name' is a required property"),
    ):
        refused(await place.post("/resource_classes", body), 400, words)
