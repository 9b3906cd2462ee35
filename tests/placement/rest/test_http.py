"""What holds for every route: versions, media types, methods, errors, and where the API stands."""

from __future__ import annotations

import re

import pytest

from kilonova.ids import new_id
from kilonova.placement.build import build
from tests.placement.rest.support import Place, claim, error, on_both, placement, refused
from tests.support import run
from tests.support.proves import proves

JSON = {"Content-Type": "application/json"}


@proves("GET /placement/")
@on_both
async def test_the_version_document_is_for_everybody(place: Place) -> None:
    answer = await place.get("/", as_=None, version=None)
    (version,) = answer.json()["versions"]
    assert version["id"] == "v1.0"
    assert (version["min_version"], version["max_version"]) == ("1.0", "1.39")
    assert version["links"] == [{"rel": "self", "href": "/placement"}]
    assert answer.headers["openstack-api-version"] == "placement 1.0"
    assert answer.headers["vary"] == "openstack-api-version"


@on_both
async def test_without_a_token_there_is_nothing_else(place: Place) -> None:
    for path in ("/resource_providers", "/nowhere", "/usages"):
        answer = await place.get(path, as_=None)
        assert (answer.status, error(answer)["title"]) == (401, "Unauthorized")


@on_both
async def test_versions_are_negotiated(place: Place) -> None:
    assert (await place.get("/", version="latest")).headers["openstack-api-version"] == "placement 1.39"
    assert (await place.get("/traits", version="1.6")).headers["openstack-api-version"] == "placement 1.6"
    for version in ("0.9", "1.40", "2.0"):
        answer = await place.get("/", version=version)
        told = error(answer)
        assert told["detail"] == f"Unacceptable version header: {version}"
        assert (answer.status, told["min_version"], told["max_version"]) == (406, "1.0", "1.39")
    for version in ("pony.horse", "1.2.3", "1", ""):
        answer = await place.get("/", version=version)
        assert (answer.status, error(answer)["detail"]) == (400, f"invalid version string: {version}")


@on_both
async def test_another_services_version_is_not_ours(place: Place) -> None:
    answer = await place.get("/", version=None, headers={"OpenStack-API-Version": "compute 2.1, placement 1.7"})
    assert answer.headers["openstack-api-version"] == "placement 1.7"


@on_both
async def test_errors_have_codes_from_1_23_on(place: Place) -> None:
    old = error(await place.get("/resource_providers/nobody", version="1.22"))
    assert set(old) == {"status", "title", "detail", "request_id"}
    assert old["request_id"].startswith("req-")
    assert error(await place.get("/resource_providers/nobody", version="1.23"))["code"] == "placement.undefined_code"


@on_both
async def test_a_wrong_method_is_told_the_right_ones(place: Place) -> None:
    for method, path, allowed in (
        ("DELETE", "/", "GET"),
        ("PATCH", "/resource_providers", "GET, POST"),
        ("OPTIONS", "/resource_providers", "GET, POST"),
        ("GET", "/reshaper", "POST"),
        ("POST", "/allocations/x", "DELETE, GET, PUT"),
    ):
        answer = await place.request(method, path)
        assert answer.headers["allow"] == allowed
        refused(answer, 405, f"The method {method} is not allowed for this resource.")
    # Also where the path has no method yet at that version.
    answer = await place.get("/allocations", version="1.0")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@on_both
async def test_what_is_no_json_is_refused(place: Place) -> None:
    path, body = "/resource_providers", b'{"name": "a"}'
    refused(
        await place.post(path, content=body, headers={"Content-Type": "text/plain"}),
        415,
        "The media type text/plain is not supported, use application/json",
    )
    refused(await place.post(path, headers={}), 415, "The media type None is not supported")
    length = {"Content-Length": str(len(body))}
    refused(await place.post(path, content=body, headers=length), 400, "content-type header required")
    refused(await place.post(path, content=b"", headers=JSON), 400, "Malformed JSON")
    refused(await place.post(path, content=b'{"a": }', headers=JSON), 400, "Malformed JSON")
    refused(await place.post(path, content=b'{"name": "a", "name": "b"}', headers=JSON), 400, "Malformed JSON")
    refused(await place.post(path, content=b'{"name": "\\u0000"}', headers=JSON), 400, "NUL")
    assert (await place.post(path, content=body, headers=JSON)).status == 200


@on_both
async def test_who_takes_no_json_gets_none(place: Place) -> None:
    for accept in ("text/plain", "text/html,application/xml;q=0.9"):
        answer = await place.get("/resource_providers", headers={"Accept": accept})
        assert answer.status == 406
        assert b"Only application/json is provided" in answer.body
    for accept in ("application/json", "*/*", "application/*", "text/html, */*;q=0.8"):
        assert (await place.get("/resource_providers", headers={"Accept": accept})).status == 200


@on_both
async def test_errors_are_pages_for_who_takes_no_json(place: Place) -> None:
    for accept, kind in (("text/html", "text/html"), ("text/plain", "text/plain"), ("image/png", "text/plain")):
        answer = await place.get("/no<where>", headers={"Accept": accept})
        assert answer.status == 404
        assert answer.headers["content-type"].startswith(kind)
        assert b"The resource could not be found." in answer.body
    answer = await place.put("/allocations/<b>", {"allocations": []}, version="1.0", headers={"Accept": "text/html"})
    assert b"<b>" not in answer.body


@on_both
async def test_policy_comes_before_the_body(place: Place) -> None:
    for as_ in ("member", "reader", "system"):
        refused(await place.post("/resource_providers", {"bad": 1}, as_=as_), 403, "Policy")


@on_both
async def test_a_missing_provider_comes_before_a_wrong_body(place: Place) -> None:
    for noun in ("aggregates", "traits", "inventories", "inventories/VCPU"):
        path = f"/resource_providers/11111111-1111-4111-8111-111111111111/{noun}"
        refused(await place.put(path, ["wrong"]), 404, "No resource provider with uuid 11111111")


@on_both
async def test_answers_are_dated_from_1_15_on(place: Place) -> None:
    uuid = await place.provider(VCPU=1)
    await place.put("/traits/CUSTOM_A")
    below = f"/resource_providers/{uuid}"
    paths = [
        "/",
        "/resource_providers",
        "/traits",
        "/traits/CUSTOM_A",
        "/traits/HW_CPU_X86_AVX",
        "/resource_classes",
        "/resource_classes/VCPU",
        f"/allocations/{uuid}",
        "/usages?project_id=x",
        *(below + more for more in ("", "/inventories", "/inventories/VCPU", "/usages", "/aggregates", "/traits")),
        below + "/allocations",
    ]
    for path in paths:
        old, new = await place.get(path, version="1.14"), await place.get(path, version="1.15")
        assert old.status == new.status < 300
        assert "last-modified" not in old.headers
        assert "cache-control" not in old.headers
        assert new.headers["last-modified"].endswith(" GMT")
        assert new.headers["cache-control"] == "no-cache"


def test_at_a_root_of_its_own(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with placement(sqlite_url, root=True) as place:
            (version,) = (await place.told("/"))["versions"]
            assert version["links"] == [{"rel": "self", "href": ""}]
            made = await place.post("/resource_providers", {"name": "a"}, headers={"X-Forwarded-Host": "there:8778"})
            uuid = made.json()["uuid"]
            assert made.headers["location"] == f"http://there:8778/resource_providers/{uuid}"
            assert made.json()["links"][0] == {"rel": "self", "href": f"/resource_providers/{uuid}"}
            assert (await place.get("/placement/resource_providers")).status == 404
            assert "placement" in place.services.mounts

    run(scenario())


# The first version of each route; routes that are not named are there from 1.0 on.
FIRST = {
    "GET /resource_providers/{uuid}/aggregates": 1,
    "PUT /resource_providers/{uuid}/aggregates": 1,
    "GET /resource_classes": 2,
    "POST /resource_classes": 2,
    "GET /resource_classes/{name}": 2,
    "PUT /resource_classes/{name}": 2,
    "DELETE /resource_classes/{name}": 2,
    "DELETE /resource_providers/{uuid}/inventories": 5,
    "GET /traits": 6,
    "GET /traits/{name}": 6,
    "PUT /traits/{name}": 6,
    "DELETE /traits/{name}": 6,
    "GET /resource_providers/{uuid}/traits": 6,
    "PUT /resource_providers/{uuid}/traits": 6,
    "DELETE /resource_providers/{uuid}/traits": 6,
    "GET /usages": 9,
    "GET /allocation_candidates": 10,
    "POST /allocations": 13,
    "POST /reshaper": 30,
}


def test_there_are_all_routes() -> None:
    routes = build().routes
    assert len(routes) == 36
    spans = {key: [form is not None for form in route.table].index(True) for key, route in routes.items()}
    assert {key: first for key, first in spans.items() if first} == FIRST


def test_every_version_has_a_history() -> None:
    versions = build().microversions
    assert [version.minor for version in versions] == list(range(1, 40))
    assert all(version.history and version.changes for version in versions)


@pytest.mark.parametrize("key", FIRST)
def test_a_route_is_not_there_before_its_first_version(key: str, sqlite_url: str) -> None:
    method, _, path = key.partition(" ")

    async def scenario() -> None:
        async with placement(sqlite_url) as place:
            path_there = path.format(uuid=await place.provider(VCPU=1), name="CUSTOM_A")
            answer = await place.request(method, path_there, version=f"1.{FIRST[key] - 1}")
            if key == "DELETE /resource_providers/{uuid}/inventories":
                assert (answer.status, answer.headers["allow"]) == (405, "GET, POST, PUT")
            else:
                assert (answer.status, error(answer)["detail"]) == (404, "The resource could not be found.")
            answer = await place.request(method, path_there, version=f"1.{FIRST[key]}", as_="service")
            assert answer.status not in (404, 405) or "No such" in error(answer)["detail"]

    run(scenario())


@proves("GET /placement/allocation_candidates")
@on_both
async def test_candidates_can_be_put(place: Place) -> None:
    """What candidates say is the body of an allocation."""
    uuid, consumer = await place.provider(VCPU=4), new_id()
    (found,) = (await place.told("/allocation_candidates?resources=VCPU:3"))["allocation_requests"]
    assert (await place.put(f"/allocations/{consumer}", {**claim({}), **found})).status == 204
    assert await place.held(consumer) == {uuid: {"VCPU": 3}}
    assert (await place.told("/allocation_candidates?resources=VCPU:3"))["allocation_requests"] == []


@on_both
async def test_the_api_describes_itself(place: Place) -> None:
    for version, number in (("1.39", 36), ("latest", 36), ("1.0", 17)):
        answer = await place.get(f"/openapi.json?version={version}", as_=None, version=None)
        told = answer.json()
        methods = [method for path in told["paths"].values() for method in path if method != "parameters"]
        assert len(methods) == number + 1, version  # and the document itself
        assert told["components"]["schemas"]["fault"]["required"] == ["errors"]
    body = told["paths"]["/allocations/{consumer_uuid}"]["put"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["allocations"]
    assert (await place.get("/openapi.json?version=1.40")).status == 400


@on_both
async def test_keys_with_suffixes_are_described(place: Place) -> None:
    async def patterns(version: str) -> set[str]:
        told = (await place.get(f"/openapi.json?version={version}", as_=None, version=None)).json()
        parameters = told["paths"]["/allocation_candidates"]["get"]["parameters"]
        spread = [one for one in parameters if one.get("explode")]
        return {key for one in spread for key in one["schema"]["patternProperties"]}

    assert await patterns("1.24") == set()
    assert {key for key in await patterns("1.25") if re.fullmatch(key, "resources7")}
    assert not {key for key in await patterns("1.25") if re.fullmatch(key, "resources_GPU")}
    kinds = ("resources", "required", "member_of", "in_tree")
    assert {kind for kind in kinds for key in await patterns("1.39") if re.fullmatch(key, f"{kind}_GPU")} == set(kinds)
