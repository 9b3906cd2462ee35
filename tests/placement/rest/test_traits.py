"""Traits, and the traits of providers."""

from __future__ import annotations

import pytest

from kilonova.ids import new_id
from kilonova.placement.names import standard_traits
from tests.placement.rest.support import Place, assert_error, on_both
from tests.placement.support import counters
from tests.support.route_coverage import proves


@proves("GET /placement/traits", "PUT /placement/traits/{name}", "GET /placement/traits/{name}")
@on_both
async def test_create_and_list_traits(place: Place) -> None:
    assert (await place.get_json("/traits"))["traits"] == sorted(standard_traits())
    created = await place.put("/traits/CUSTOM_A", version="1.6")
    assert (created.status, created.body) == (201, b"")
    assert created.headers["location"].endswith("/placement/traits/CUSTOM_A")
    assert (await place.put("/traits/CUSTOM_A")).status == 204
    await place.put("/traits/CUSTOM_AB")
    for name in ("CUSTOM_A", "HW_CPU_X86_AVX"):
        assert (await place.get(f"/traits/{name}")).status == 204
    assert_error(await place.get("/traits/CUSTOM_B"), 404, "No such trait CUSTOM_B")
    assert (await place.get_json("/traits?name=startswith:CUSTOM_"))["traits"] == ["CUSTOM_A", "CUSTOM_AB"]
    assert (await place.get_json("/traits?name=in:CUSTOM_A,NONE,COMPUTE_NODE"))["traits"] == [
        "COMPUTE_NODE",
        "CUSTOM_A",
    ]


@pytest.mark.parametrize(
    "name", ["TRAIT_X", "CUSTOM_a", "CUSTOM_A:1", "CUSTOM_", "CUSTOM_" + "A" * 249, "COMPUTE_NODE"]
)
@on_both
async def test_invalid_trait_names(place: Place, name: str) -> None:
    assert_error(await place.put(f"/traits/{name}"), 400, 'start with the prefix "CUSTOM_"')


@on_both
async def test_invalid_trait_filters(place: Place) -> None:
    for query, words in (
        ("name=in_abc", 'Got: "in_abc"'),
        ("associated=xyz", 'only accepts "true" or "false"'),
        ("invalid=abc", "Additional properties are not allowed"),
    ):
        assert_error(await place.get(f"/traits?{query}"), 400, words)


@proves(
    "DELETE /placement/traits/{name}",
    "GET /placement/resource_providers/{uuid}/traits",
    "PUT /placement/resource_providers/{uuid}/traits",
    "DELETE /placement/resource_providers/{uuid}/traits",
)
@on_both
async def test_put_and_delete_provider_traits(place: Place) -> None:
    uuid = await place.provider()
    path = f"/resource_providers/{uuid}/traits"
    assert await place.get_json(path) == {"resource_provider_generation": 0, "traits": []}
    await place.put("/traits/CUSTOM_A")
    before = await counters(place.db, uuid)
    body = {"resource_provider_generation": 0, "traits": ["HW_CPU_X86_AVX", "CUSTOM_A", "CUSTOM_A"]}
    response = await place.put(path, body)
    assert response.json() == {"resource_provider_generation": 1, "traits": ["CUSTOM_A", "HW_CPU_X86_AVX"]}
    assert (await counters(place.db, uuid))[2] > before[2]
    assert await place.get_json(path) == response.json()
    assert (await place.get_json("/traits?associated=true"))["traits"] == ["CUSTOM_A", "HW_CPU_X86_AVX"]
    assert "CUSTOM_A" not in (await place.get_json("/traits?associated=false"))["traits"]
    assert_error(
        await place.put(path, body),
        409,
        "Resource provider's generation already changed. Please update the generation and try again.",
        "placement.concurrent_update",
    )
    assert_error(await place.delete("/traits/CUSTOM_A"), 409, "The trait CUSTOM_A is in use by a resource provider.")
    assert (await place.delete(path)).status == 204
    assert await place.get_json(path) == {"resource_provider_generation": 2, "traits": []}
    assert (await place.delete("/traits/CUSTOM_A")).status == 204
    assert_error(await place.delete("/traits/CUSTOM_A"), 404, "No such trait")
    assert_error(await place.delete("/traits/HW_CPU_X86_AVX"), 400, "Cannot delete standard trait")


@on_both
async def test_invalid_provider_traits(place: Place) -> None:
    path = f"/resource_providers/{await place.provider()}/traits"
    for body, words in (
        ({"traits": []}, "'resource_provider_generation' is a required property"),
        ({"traits": "x", "resource_provider_generation": 0}, "'x' is not of type 'array'"),
        ({"traits": [], "resource_provider_generation": "x"}, "'x' is not of type 'integer'"),
        ({"traits": [], "resource_provider_generation": 0, "a": 1}, "Additional properties are not allowed"),
        ({"traits": ["NONE_B", "NONE_A"], "resource_provider_generation": 0}, "No such trait NONE_A, NONE_B."),
    ):
        assert_error(await place.put(path, body), 400, words)
    missing = f"/resource_providers/{new_id()}/traits"
    for response in (
        await place.get(missing),
        await place.delete(missing),
        await place.put(missing, {"traits": [], "resource_provider_generation": 0}),
    ):
        assert_error(response, 404, "No resource provider with uuid")


@on_both
async def test_put_keeps_reported_flag_of_traits(place: Place) -> None:
    """A trait that a host reported stays reported if an operator sends it too, so that the host can remove it."""
    uuid = await place.provider()
    path = f"/resource_providers/{uuid}/traits"
    await place.put(path, {"traits": ["HW_CPU_X86_AVX"], "resource_provider_generation": 0})
    async with place.db.transaction() as tx:
        await tx.execute("UPDATE provider_traits SET reported = TRUE")
    await place.put(path, {"traits": ["HW_CPU_X86_AVX", "COMPUTE_NODE"], "resource_provider_generation": 1})
    rows = await place.db.fetch("SELECT trait, reported FROM provider_traits")
    assert {row["trait"]: row["reported"] for row in rows} == {"HW_CPU_X86_AVX": True, "COMPUTE_NODE": False}
