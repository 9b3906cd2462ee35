"""The aggregates of a provider."""

from __future__ import annotations

from kilonova.ids import new_id
from tests.placement.rest.support import Place, on_both, refused
from tests.placement.support import marks
from tests.support.proves import proves

PATH = "/placement/resource_providers/{uuid}/aggregates"
ONE, TWO = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"


@proves("GET /placement/resource_providers/{uuid}/aggregates", "PUT /placement/resource_providers/{uuid}/aggregates")
@on_both
async def test_aggregates_are_replaced(place: Place) -> None:
    uuid = await place.provider()
    path = f"/resource_providers/{uuid}/aggregates"
    assert await place.told(path) == {"aggregates": [], "resource_provider_generation": 0}
    before = await marks(place.db, uuid)
    answer = await place.put(path, {"aggregates": [TWO, ONE], "resource_provider_generation": 0})
    assert answer.json() == {"aggregates": [TWO, ONE], "resource_provider_generation": 1}
    assert (await marks(place.db, uuid))[2] > before[2]
    assert await place.told(path) == {"aggregates": [ONE, TWO], "resource_provider_generation": 1}
    stale = {"aggregates": [], "resource_provider_generation": 0}
    refused(await place.put(path, stale), 409, "generation conflict", "placement.concurrent_update")
    assert (await place.put(path, {"aggregates": [ONE], "resource_provider_generation": 1})).status == 200
    assert (await place.told(path))["aggregates"] == [ONE]


@on_both
async def test_below_1_19_a_bare_list_moves_no_generation(place: Place) -> None:
    uuid = await place.provider()
    path = f"/resource_providers/{uuid}/aggregates"
    before = await marks(place.db, uuid)
    answer = await place.put(path, [ONE, TWO], version="1.18")
    assert (answer.status, answer.json()) == (200, {"aggregates": [ONE, TWO]})
    assert await place.told(path, version="1.1") == {"aggregates": [ONE, TWO]}
    after = await marks(place.db, uuid)
    assert (after[0], after[2] > before[2]) == (0, True)
    new = {"aggregates": [ONE], "resource_provider_generation": 0}
    for body, version in ((new, "1.18"), ([ONE], "1.19")):
        answer = await place.put(path, body, version=version)
        assert answer.status == 400
        assert "JSON does not validate" in answer.json()["errors"][0]["detail"]


@on_both
async def test_wrong_aggregates(place: Place) -> None:
    path = f"/resource_providers/{await place.provider()}/aggregates"
    for body, words in (
        ({"aggregates": []}, "'resource_provider_generation' is a required property"),
        ({"aggregates": ["harry"], "resource_provider_generation": 0}, "is not a 'uuid'"),
        ({"aggregates": [ONE, ONE], "resource_provider_generation": 0}, "has non-unique elements"),
    ):
        refused(await place.put(path, body), 400, words)
    nobody = f"/resource_providers/{new_id()}/aggregates"
    refused(await place.get(nobody), 404, "No resource provider with uuid")
    refused(await place.put(nobody, []), 404, "No resource provider with uuid")
