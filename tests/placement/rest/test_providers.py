"""Resource providers: create, show, list, rename, delete."""

from __future__ import annotations

from kilonova.ids import new_id
from tests.placement.rest.support import Place, allocations_body, assert_error, on_both
from tests.placement.support import counters
from tests.support.route_coverage import proves

ALL, ONE = "/resource_providers", "/resource_providers/{uuid}"
LINKS = ["self", "inventories", "usages", "aggregates", "traits", "allocations"]


@proves(
    "POST /placement/resource_providers",
    "GET /placement/resource_providers/{uuid}",
    "GET /placement/resource_providers",
)
@on_both
async def test_create_and_show_provider(place: Place) -> None:
    uuid = new_id()
    created = await place.post(ALL, {"name": "☃", "uuid": uuid})
    assert created.status == 200
    assert created.headers["location"].endswith(f"/placement/resource_providers/{uuid}")
    shown = created.json()
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
    assert await place.get_json(f"{ALL}/{uuid}") == shown
    assert await place.get_json(f"{ALL}/{uuid.replace('-', '').upper()}") == shown
    assert await place.get_json(f"{ALL}?name=%E2%98%83") == {"resource_providers": [shown]}
    assert await place.get_json(f"{ALL}?uuid={uuid}&name=x") == {"resource_providers": []}
    row = await place.db.fetch_one("SELECT reported, change, facts FROM resource_providers WHERE uuid = $1", uuid)
    assert row == {"reported": False, "change": 1, "facts": 1}


@on_both
async def test_before_1_20_create_has_no_body(place: Place) -> None:
    created = await place.post(ALL, {"name": "a"}, version="1.19")
    assert (created.status, created.body) == (201, b"")
    assert "content-type" not in created.headers
    assert (await place.get("/" + created.headers["location"].partition("/placement/")[2])).status == 200
    assert (await place.post(ALL, {"name": "b"}, version="1.20")).status == 200


@on_both
async def test_fields_shown_by_old_versions(place: Place) -> None:
    uuid = await place.provider()
    for version, keys, links in (("1.13", 4, 6), ("1.10", 4, 5), ("1.5", 4, 4), ("1.0", 4, 3), ("1.14", 6, 6)):
        shown = await place.get_json(f"{ALL}/{uuid}", version=version)
        assert (len(shown), len(shown["links"])) == (keys, links)
        assert await place.get_json(ALL, version=version) == {"resource_providers": [shown]}


@on_both
async def test_name_and_uuid_are_unique(place: Place) -> None:
    uuid = await place.provider("a")
    for body, words in (
        ({"name": "a"}, "Conflicting resource provider name: a already exists."),
        ({"name": "b", "uuid": uuid}, f"Conflicting resource provider uuid: {uuid} already exists."),
        ({"name": "b", "uuid": uuid.replace("-", "")}, f"Conflicting resource provider uuid: {uuid} already"),
    ):
        assert_error(await place.post(ALL, body), 409, words, "placement.duplicate_name")
    other = await place.provider("b")
    assert_error(await place.put(f"{ALL}/{other}", {"name": "a"}), 409, "name: a already", "placement.duplicate_name")
    assert (await place.get_json(f"{ALL}/{other}"))["name"] == "b"


@on_both
async def test_invalid_bodies(place: Place) -> None:
    for body, words in (
        ({}, "'name' is a required property"),
        ({"name": ""}, "Failed validating 'minLength' in schema['properties']['name']"),
        ({"name": "a" * 201}, "Failed validating 'maxLength' in schema['properties']['name']"),
        ({"name": "a", "uuid": "x"}, "'x' is not a 'uuid'"),
        ({"name": "a", "root_provider_uuid": new_id()}, "Additional properties are not allowed"),
        ({"name": 1}, "1 is not of type 'string'"),
    ):
        assert_error(await place.post(ALL, body), 400, words)
    uuid = await place.provider()
    assert_error(await place.put(f"{ALL}/{uuid}", {"name": "a", "uuid": new_id()}), 400, "JSON does not validate")
    for path in (ALL, f"{ALL}/{uuid}"):
        body = {"name": "a", "parent_provider_uuid": uuid}
        response = await place.request("POST" if path == ALL else "PUT", path, body, version="1.13")
        assert response.status == 400


@on_both
async def test_invalid_queries(place: Place) -> None:
    for query in ("uuid=x", "spam=eggs", "name=a&name=b"):
        assert_error(await place.get(f"{ALL}?{query}"), 400, "Invalid query string parameters")
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
async def test_rename_keeps_generation_and_advances_change_number(place: Place) -> None:
    uuid = await place.provider("a", VCPU=1)
    before = await counters(place.db, uuid)
    response = await place.put(f"{ALL}/{uuid}", {"name": "b"})
    assert (response.status, response.json()["name"], response.json()["generation"]) == (200, "b", 1)
    generation, change, facts = await counters(place.db, uuid)
    assert generation == before[0]
    assert change > before[1]
    assert facts > before[2]
    assert_error(await place.put(f"{ALL}/{new_id()}", {"name": "c"}), 404, "No resource provider with uuid")


@proves("DELETE /placement/resource_providers/{uuid}")
@on_both
async def test_provider_with_allocations_cannot_be_deleted(place: Place) -> None:
    uuid = await place.provider(VCPU=4)
    consumer = new_id()
    assert (await place.put(f"/allocations/{consumer}", allocations_body({uuid: {"VCPU": 1}}))).status == 204
    assert_error(
        await place.delete(f"{ALL}/{uuid}"),
        409,
        f"Unable to delete resource provider {uuid}: Resource provider has allocations.",
        "placement.resource_provider.inuse",
    )
    assert (await place.delete(f"/allocations/{consumer}")).status == 204
    await place.put(f"{ALL}/{uuid}/traits", {"traits": ["HW_CPU_X86_AVX"], "resource_provider_generation": 2})
    await place.put(f"{ALL}/{uuid}/aggregates", {"aggregates": [new_id()], "resource_provider_generation": 3})
    assert (await place.delete(f"{ALL}/{uuid}")).status == 204
    assert_error(await place.delete(f"{ALL}/{uuid}"), 404, f"No resource provider with uuid {uuid} found for delete")
    for table in ("inventories", "provider_traits", "provider_aggregates"):
        assert await place.db.fetch(f"SELECT * FROM {table}") == []
