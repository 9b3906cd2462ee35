"""The aggregates of a provider."""

from __future__ import annotations

from kilonova.ids import new_id
from tests.placement.rest.support import Place, assert_error, on_both
from tests.placement.support import counters
from tests.support.route_coverage import proves

PATH = "/placement/resource_providers/{uuid}/aggregates"
ONE, TWO = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"


@proves("GET /placement/resource_providers/{uuid}/aggregates", "PUT /placement/resource_providers/{uuid}/aggregates")
@on_both
async def test_put_replaces_aggregates(place: Place) -> None:
    uuid = await place.provider()
    path = f"/resource_providers/{uuid}/aggregates"
    assert await place.get_json(path) == {"aggregates": [], "resource_provider_generation": 0}
    before = await counters(place.db, uuid)
    response = await place.put(path, {"aggregates": [TWO, ONE], "resource_provider_generation": 0})
    assert response.json() == {"aggregates": [TWO, ONE], "resource_provider_generation": 1}
    assert (await counters(place.db, uuid))[2] > before[2]
    assert await place.get_json(path) == {"aggregates": [ONE, TWO], "resource_provider_generation": 1}
    stale = {"aggregates": [], "resource_provider_generation": 0}
    assert_error(await place.put(path, stale), 409, "generation conflict", "placement.concurrent_update")
    assert (await place.put(path, {"aggregates": [ONE], "resource_provider_generation": 1})).status == 200
    assert (await place.get_json(path))["aggregates"] == [ONE]


@on_both
async def test_before_1_19_list_keeps_generation(place: Place) -> None:
    uuid = await place.provider()
    path = f"/resource_providers/{uuid}/aggregates"
    before = await counters(place.db, uuid)
    response = await place.put(path, [ONE, TWO], version="1.18")
    assert (response.status, response.json()) == (200, {"aggregates": [ONE, TWO]})
    assert await place.get_json(path, version="1.1") == {"aggregates": [ONE, TWO]}
    after = await counters(place.db, uuid)
    assert (after[0], after[2] > before[2]) == (0, True)
    new = {"aggregates": [ONE], "resource_provider_generation": 0}
    for body, version in ((new, "1.18"), ([ONE], "1.19")):
        response = await place.put(path, body, version=version)
        assert response.status == 400
        assert "JSON does not validate" in response.json()["errors"][0]["detail"]


@on_both
async def test_uuids_keep_their_spelling(place: Place) -> None:
    uuid = await place.provider(VCPU=1)
    path = f"/resource_providers/{uuid}/aggregates"
    bare = ONE.replace("-", "")
    body = {"aggregates": [bare, TWO], "resource_provider_generation": 1}
    assert (await place.put(path, body)).json() == {"aggregates": [bare, TWO], "resource_provider_generation": 2}
    assert sorted((await place.get_json(path))["aggregates"]) == sorted([bare, TWO])
    for aggregates in (bare, f"in:{ONE},{bare}", TWO):
        for listed in ("/resource_providers?", "/allocation_candidates?resources=VCPU:1&"):
            assert uuid in (await place.get(f"{listed}member_of={aggregates}")).body.decode(), aggregates
    assert uuid not in (await place.get(f"/resource_providers?member_of=!{bare}")).body.decode()


@on_both
async def test_invalid_aggregates(place: Place) -> None:
    path = f"/resource_providers/{await place.provider()}/aggregates"
    for body, words in (
        ({"aggregates": []}, "'resource_provider_generation' is a required property"),
        ({"aggregates": ["harry"], "resource_provider_generation": 0}, "is not a 'uuid'"),
        ({"aggregates": [ONE, ONE], "resource_provider_generation": 0}, "has non-unique elements"),
    ):
        assert_error(await place.put(path, body), 400, words)
    missing = f"/resource_providers/{new_id()}/aggregates"
    assert_error(await place.get(missing), 404, "No resource provider with uuid")
    assert_error(await place.put(missing, []), 404, "No resource provider with uuid")
