"""Resource providers: made, shown, listed, renamed, deleted."""

from __future__ import annotations

from kilonova.ids import new_id
from tests.placement.rest.support import Place, claim, on_both, refused
from tests.placement.support import marks
from tests.support.proves import proves

ALL, ONE = "/resource_providers", "/resource_providers/{uuid}"
LINKS = ["self", "inventories", "usages", "aggregates", "traits", "allocations"]


@proves(
    "POST /placement/resource_providers",
    "GET /placement/resource_providers/{uuid}",
    "GET /placement/resource_providers",
)
@on_both
async def test_a_provider_is_made_and_shown(place: Place) -> None:
    uuid = new_id()
    made = await place.post(ALL, {"name": "☃", "uuid": uuid})
    assert made.status == 200
    assert made.headers["location"].endswith(f"/placement/resource_providers/{uuid}")
    shown = made.json()
    assert shown == {
        "uuid": uuid,
        "name": "☃",
        "generation": 0,
        "parent_provider_uuid": None,
        "root_provider_uuid": uuid,
        "links": [
            {"rel": rel, "href": f"/placement/resource_providers/{uuid}" + ("" if rel == "self" else f"/{rel}")}
            for rel in LINKS
        ],
    }
    assert await place.told(f"{ALL}/{uuid}") == shown
    assert await place.told(f"{ALL}/{uuid.replace('-', '').upper()}") == shown
    assert await place.told(f"{ALL}?name=%E2%98%83") == {"resource_providers": [shown]}
    assert await place.told(f"{ALL}?uuid={uuid}&name=x") == {"resource_providers": []}
    row = await place.db.fetch_one("SELECT reported, change, facts FROM resource_providers WHERE uuid = $1", uuid)
    assert row == {"reported": False, "change": 1, "facts": 1}


@on_both
async def test_below_1_20_a_new_provider_is_not_shown(place: Place) -> None:
    made = await place.post(ALL, {"name": "a"}, version="1.19")
    assert (made.status, made.body) == (201, b"")
    assert "content-type" not in made.headers
    assert (await place.get("/" + made.headers["location"].partition("/placement/")[2])).status == 200
    assert (await place.post(ALL, {"name": "b"}, version="1.20")).status == 200


@on_both
async def test_older_versions_show_less(place: Place) -> None:
    uuid = await place.provider()
    for version, keys, links in (("1.13", 4, 6), ("1.10", 4, 5), ("1.5", 4, 4), ("1.0", 4, 3), ("1.14", 6, 6)):
        shown = await place.told(f"{ALL}/{uuid}", version=version)
        assert (len(shown), len(shown["links"])) == (keys, links)
        assert await place.told(ALL, version=version) == {"resource_providers": [shown]}


@on_both
async def test_a_name_and_a_uuid_are_taken_once(place: Place) -> None:
    uuid = await place.provider("a")
    for body, words in (
        ({"name": "a"}, "Conflicting resource provider name: a already exists."),
        ({"name": "b", "uuid": uuid}, f"Conflicting resource provider uuid: {uuid} already exists."),
        ({"name": "b", "uuid": uuid.replace("-", "")}, f"Conflicting resource provider uuid: {uuid} already"),
    ):
        refused(await place.post(ALL, body), 409, words, "placement.duplicate_name")
    other = await place.provider("b")
    refused(await place.put(f"{ALL}/{other}", {"name": "a"}), 409, "name: a already", "placement.duplicate_name")
    assert (await place.told(f"{ALL}/{other}"))["name"] == "b"


@on_both
async def test_wrong_bodies(place: Place) -> None:
    for body, words in (
        ({}, "'name' is a required property"),
        ({"name": "a" * 201}, "Failed validating 'maxLength' in schema['properties']['name']"),
        ({"name": "a", "uuid": "x"}, "'x' is not a 'uuid'"),
        ({"name": "a", "root_provider_uuid": new_id()}, "Additional properties are not allowed"),
        ({"name": 1}, "1 is not of type 'string'"),
    ):
        refused(await place.post(ALL, body), 400, words)
    uuid = await place.provider()
    refused(await place.put(f"{ALL}/{uuid}", {"name": "a", "uuid": new_id()}), 400, "JSON does not validate")
    for path in (ALL, f"{ALL}/{uuid}"):
        body = {"name": "a", "parent_provider_uuid": uuid}
        answer = await place.request("POST" if path == ALL else "PUT", path, body, version="1.13")
        assert answer.status == 400


@on_both
async def test_wrong_queries(place: Place) -> None:
    for query in ("uuid=x", "spam=eggs", "name=a&name=b"):
        refused(await place.get(f"{ALL}?{query}"), 400, "Invalid query string parameters")
    for version, query in (
        ("1.2", "member_of=" + new_id()),
        ("1.3", "resources=VCPU:1"),
        ("1.13", "in_tree=" + new_id()),
        ("1.17", "required=HW_CPU_X86_AVX"),
    ):
        assert (await place.get(f"{ALL}?{query}", version=version)).status == 400
        assert (await place.get(f"{ALL}?{query}", version=f"1.{int(version[2:]) + 1}")).status == 200


@proves("PUT /placement/resource_providers/{uuid}")
@on_both
async def test_renaming_keeps_the_generation_but_is_noticed(place: Place) -> None:
    uuid = await place.provider("a", VCPU=1)
    before = await marks(place.db, uuid)
    answer = await place.put(f"{ALL}/{uuid}", {"name": "b"})
    assert (answer.status, answer.json()["name"], answer.json()["generation"]) == (200, "b", 1)
    generation, change, facts = await marks(place.db, uuid)
    assert generation == before[0]
    assert change > before[1]
    assert facts > before[2]
    refused(await place.put(f"{ALL}/{new_id()}", {"name": "c"}), 404, "No resource provider with uuid")


@proves("DELETE /placement/resource_providers/{uuid}")
@on_both
async def test_only_what_is_unused_is_deleted(place: Place) -> None:
    uuid = await place.provider(VCPU=4)
    consumer = new_id()
    assert (await place.put(f"/allocations/{consumer}", claim({uuid: {"VCPU": 1}}))).status == 204
    refused(
        await place.delete(f"{ALL}/{uuid}"),
        409,
        f"Unable to delete resource provider {uuid}: Resource provider has allocations.",
        "placement.resource_provider.inuse",
    )
    assert (await place.delete(f"/allocations/{consumer}")).status == 204
    await place.put(f"{ALL}/{uuid}/traits", {"traits": ["HW_CPU_X86_AVX"], "resource_provider_generation": 2})
    await place.put(f"{ALL}/{uuid}/aggregates", {"aggregates": [new_id()], "resource_provider_generation": 3})
    assert (await place.delete(f"{ALL}/{uuid}")).status == 204
    refused(await place.delete(f"{ALL}/{uuid}"), 404, f"No resource provider with uuid {uuid} found for delete")
    for table in ("inventories", "provider_traits", "provider_aggregates"):
        assert await place.db.fetch(f"SELECT * FROM {table}") == []
