"""Behaviour of all routes: versions, media types, methods, errors, mount points."""

from __future__ import annotations

import re

import pytest

from kilonova.ids import new_id
from kilonova.placement.build import build
from tests.placement.rest.support import Place, allocations_body, assert_error, error, on_both, placement
from tests.support import run
from tests.support.route_coverage import proves

JSON = {"Content-Type": "application/json"}


@proves("GET /placement/")
@on_both
async def test_version_document_needs_no_token(place: Place) -> None:
    response = await place.get("/", as_=None, version=None)
    (version,) = response.json()["versions"]
    assert version["id"] == "v1.0"
    assert (version["min_version"], version["max_version"]) == ("1.0", "1.39")
    assert version["links"] == [{"rel": "self", "href": "/placement"}]
    assert response.headers["openstack-api-version"] == "placement 1.0"
    assert response.headers["vary"] == "openstack-api-version"


@on_both
async def test_other_routes_need_a_token(place: Place) -> None:
    for path in ("/resource_providers", "/nowhere", "/usages"):
        response = await place.get(path, as_=None)
        assert (response.status, error(response)["title"]) == (401, "Unauthorized")


@on_both
async def test_microversion_negotiation(place: Place) -> None:
    assert (await place.get("/", version="latest")).headers["openstack-api-version"] == "placement 1.39"
    assert (await place.get("/traits", version="1.6")).headers["openstack-api-version"] == "placement 1.6"
    for version in ("0.9", "1.40", "2.0"):
        response = await place.get("/", version=version)
        body = error(response)
        assert body["detail"] == f"Unacceptable version header: {version}"
        assert (response.status, body["min_version"], body["max_version"]) == (406, "1.0", "1.39")
    for version in ("pony.horse", "1.2.3", "1", ""):
        response = await place.get("/", version=version)
        assert (response.status, error(response)["detail"]) == (400, f"invalid version string: {version}")


@on_both
async def test_version_of_other_service_is_ignored(place: Place) -> None:
    response = await place.get("/", version=None, headers={"OpenStack-API-Version": "compute 2.1, placement 1.7"})
    assert response.headers["openstack-api-version"] == "placement 1.7"


@on_both
async def test_errors_have_codes_since_1_23(place: Place) -> None:
    old = error(await place.get("/resource_providers/nobody", version="1.22"))
    assert set(old) == {"status", "title", "detail", "request_id"}
    assert old["request_id"].startswith("req-")
    assert error(await place.get("/resource_providers/nobody", version="1.23"))["code"] == "placement.undefined_code"


@on_both
async def test_wrong_method_lists_allowed_methods(place: Place) -> None:
    for method, path, allowed in (
        ("DELETE", "/", "GET"),
        ("PATCH", "/resource_providers", "GET, POST"),
        ("OPTIONS", "/resource_providers", "GET, POST"),
        ("GET", "/reshaper", "POST"),
        ("POST", "/allocations/x", "DELETE, GET, PUT"),
    ):
        response = await place.request(method, path)
        assert response.headers["allow"] == allowed
        assert_error(response, 405, f"The method {method} is not allowed for this resource.")
    # Also if the path has no method at that version.
    response = await place.get("/allocations", version="1.0")
    assert (response.status, response.headers["allow"]) == (405, "POST")


@on_both
async def test_body_that_is_not_json_is_refused(place: Place) -> None:
    path, body = "/resource_providers", b'{"name": "a"}'
    assert_error(
        await place.post(path, content=body, headers={"Content-Type": "text/plain"}),
        415,
        "The media type text/plain is not supported, use application/json",
    )
    assert_error(await place.post(path, headers={}), 415, "The media type None is not supported")
    length = {"Content-Length": str(len(body))}
    assert_error(await place.post(path, content=body, headers=length), 400, "content-type header required")
    assert_error(await place.post(path, content=b"", headers=JSON), 400, "Malformed JSON")
    assert_error(await place.post(path, content=b'{"a": }', headers=JSON), 400, "Malformed JSON")
    assert_error(await place.post(path, content=b'{"name": "a", "name": "b"}', headers=JSON), 400, "Malformed JSON")
    assert_error(await place.post(path, content=b'{"name": "\\u0000"}', headers=JSON), 400, "NUL")
    assert (await place.post(path, content=body, headers=JSON)).status == 200


@on_both
async def test_accept_header_without_json_is_refused(place: Place) -> None:
    for accept in ("text/plain", "text/html,application/xml;q=0.9"):
        response = await place.get("/resource_providers", headers={"Accept": accept})
        assert response.status == 406
        assert b"Only application/json is provided" in response.body
    for accept in ("application/json", "*/*", "application/*", "text/html, */*;q=0.8"):
        assert (await place.get("/resource_providers", headers={"Accept": accept})).status == 200


@on_both
async def test_errors_are_html_if_json_is_not_accepted(place: Place) -> None:
    for accept, kind in (("text/html", "text/html"), ("text/plain", "text/plain"), ("image/png", "text/plain")):
        response = await place.get("/no<where>", headers={"Accept": accept})
        assert response.status == 404
        assert response.headers["content-type"].startswith(kind)
        assert b"The resource could not be found." in response.body
    response = await place.put("/allocations/<b>", {"allocations": []}, version="1.0", headers={"Accept": "text/html"})
    assert b"<b>" not in response.body


@on_both
async def test_policy_is_checked_before_the_body(place: Place) -> None:
    for as_ in ("member", "reader", "system"):
        assert_error(await place.post("/resource_providers", {"bad": 1}, as_=as_), 403, "Policy")


@on_both
async def test_missing_provider_is_reported_before_invalid_body(place: Place) -> None:
    for noun in ("aggregates", "traits", "inventories", "inventories/VCPU"):
        path = f"/resource_providers/11111111-1111-4111-8111-111111111111/{noun}"
        assert_error(await place.put(path, ["wrong"]), 404, "No resource provider with uuid 11111111")


@on_both
async def test_last_modified_since_1_15(place: Place) -> None:
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


def test_api_at_root(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with placement(sqlite_url, root=True) as place:
            (version,) = (await place.get_json("/"))["versions"]
            assert version["links"] == [{"rel": "self", "href": ""}]
            created = await place.post("/resource_providers", {"name": "a"}, headers={"Host": "there:8778"})
            uuid = created.json()["uuid"]
            assert created.headers["location"] == f"http://there:8778/resource_providers/{uuid}"
            assert created.json()["links"][0] == {"rel": "self", "href": f"/resource_providers/{uuid}"}
            assert (await place.get("/placement/resource_providers")).status == 404
            assert "placement" in place.services.mounts

    run(scenario())


# The first version of each route; other routes exist since 1.0.
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


def test_all_routes_exist() -> None:
    routes = build().routes
    assert len(routes) == 36
    spans = {key: [form is not None for form in route.versions].index(True) for key, route in routes.items()}
    assert {key: first for key, first in spans.items() if first} == FIRST


def test_every_microversion_has_a_text() -> None:
    versions = build().microversions
    assert [version.minor for version in versions] == list(range(1, 40))
    assert all(version.history and version.changes for version in versions)


@pytest.mark.parametrize("key", FIRST)
def test_route_is_absent_before_its_first_version(key: str, sqlite_url: str) -> None:
    method, _, path = key.partition(" ")

    async def scenario() -> None:
        async with placement(sqlite_url) as place:
            path_there = path.format(uuid=await place.provider(VCPU=1), name="CUSTOM_A")
            response = await place.request(method, path_there, version=f"1.{FIRST[key] - 1}")
            if key == "DELETE /resource_providers/{uuid}/inventories":
                assert (response.status, response.headers["allow"]) == (405, "GET, POST, PUT")
            else:
                assert (response.status, error(response)["detail"]) == (404, "The resource could not be found.")
            response = await place.request(method, path_there, version=f"1.{FIRST[key]}", as_="service")
            assert response.status not in (404, 405) or "No such" in error(response)["detail"]

    run(scenario())


@proves("GET /placement/allocation_candidates")
@on_both
async def test_candidate_can_be_put_as_allocation(place: Place) -> None:
    """An allocation request of candidates is a valid PUT body."""
    uuid, consumer = await place.provider(VCPU=4), new_id()
    (found,) = (await place.get_json("/allocation_candidates?resources=VCPU:3"))["allocation_requests"]
    assert (await place.put(f"/allocations/{consumer}", {**allocations_body({}), **found})).status == 204
    assert await place.allocations(consumer) == {uuid: {"VCPU": 3}}
    assert (await place.get_json("/allocation_candidates?resources=VCPU:3"))["allocation_requests"] == []


@on_both
async def test_openapi_document(place: Place) -> None:
    for version, number in (("1.39", 36), ("latest", 36), ("1.0", 17)):
        response = await place.get(f"/openapi.json?version={version}", as_=None, version=None)
        shown = response.json()
        methods = [method for path in shown["paths"].values() for method in path if method != "parameters"]
        assert len(methods) == number + 1, version  # plus the document itself
        assert shown["components"]["schemas"]["fault"]["required"] == ["errors"]
    body = shown["paths"]["/allocations/{consumer_uuid}"]["put"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["allocations"]
    assert (await place.get("/openapi.json?version=1.40")).status == 400


@on_both
async def test_openapi_describes_keys_with_suffixes(place: Place) -> None:
    async def patterns(version: str) -> set[str]:
        body = (await place.get(f"/openapi.json?version={version}", as_=None, version=None)).json()
        parameters = body["paths"]["/allocation_candidates"]["get"]["parameters"]
        spread = [one for one in parameters if one.get("explode")]
        return {key for one in spread for key in one["schema"]["patternProperties"]}

    assert await patterns("1.24") == set()
    assert {key for key in await patterns("1.25") if re.fullmatch(key, "resources7")}
    assert not {key for key in await patterns("1.25") if re.fullmatch(key, "resources_GPU")}
    kinds = ("resources", "required", "member_of", "in_tree")
    assert {kind for kind in kinds for key in await patterns("1.39") if re.fullmatch(key, f"{kind}_GPU")} == set(kinds)
