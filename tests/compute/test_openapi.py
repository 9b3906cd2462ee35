"""The OpenAPI document: complete, valid, and one for each version."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from kilonova import compute
from kilonova.compute.zones.model import create_zone
from kilonova.http.openapi import build_document
from tests.support import run
from tests.support.cloud import DEMO, cloud
from tests.support.route_coverage import proves


async def fetch(url: str, version: str = "") -> Any:
    async with cloud(url) as c:
        answer = await c.get("/openapi.json" + (f"?version={version}" if version else ""), root="/compute", as_=None)
        assert answer.headers["content-type"] == "application/json"
        return answer.json()


@proves("GET /openapi.json")
def test_needs_no_token(sqlite_url: str) -> None:
    newest = run(fetch(sqlite_url))
    assert (newest["openapi"], newest["info"]["version"]) == ("3.1.0", "2.106")
    assert newest == run(fetch(sqlite_url, "latest")) == run(fetch(sqlite_url, "2.106"))
    assert run(fetch(sqlite_url, "2.1"))["info"]["version"] == "2.1"


@pytest.mark.parametrize("version", ["2.107", "2.0", "3.1", "2", "2.x", "x", "2.-1", "2.²"])
def test_unknown_versions_are_refused(sqlite_url: str, version: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            assert (await c.get(f"/openapi.json?version={version}", root="/compute", as_=None)).status == 400

    run(scenario())


def test_each_version_describes_its_own_routes() -> None:
    api = compute.build()
    old, new = build_document(api, 1), build_document(api, api.high)
    assert "get" in old["paths"]["/v2.1/os-hypervisors/statistics"]
    assert "/v2.1/os-hypervisors/statistics" not in new["paths"]
    assert "put" not in old["paths"]["/v2.1/flavors/{flavor_id}"]
    update = new["paths"]["/v2.1/flavors/{flavor_id}"]["put"]
    body = update["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["flavor"]["required"] == ["description"]
    assert update["x-policy"] == ["os_compute_api:os-flavor-manage:update"]
    shown = update["responses"]["200"]["content"]["application/json"]["schema"]
    assert shown["properties"]["flavor"] == {"$ref": "#/components/schemas/flavor"}
    assert "rxtx_factor" in old["components"]["schemas"]["flavor"]["properties"]
    assert "rxtx_factor" not in new["components"]["schemas"]["flavor"]["properties"]
    actions = new["paths"]["/v2.1/flavors/{flavor_id}/action"]["post"]["requestBody"]
    named = [list(each["properties"]) for each in actions["content"]["application/json"]["schema"]["oneOf"]]
    assert named == [["addTenantAccess"], ["removeTenantAccess"]]


@pytest.mark.parametrize("minor", [1, 52, 53, 106])
def test_document_is_valid(minor: int) -> None:
    """Every route of the version is described, every reference resolves, every schema is valid."""
    api = compute.build()
    described = build_document(api, minor)
    routes = {(route.method, route.path) for route in api.routes.values() if route.versions[minor - api.low]}
    operations = {
        (method.upper(), path)
        for path, methods in described["paths"].items()
        for method in methods
        if method != "parameters"
    }
    assert {(method, f"/v2.1{path}") for method, path in routes} <= operations
    text = json.dumps(described)
    assert '"repeatable"' not in text
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        target: Any = described
        for step in reference.split("/"):
            target = target[step]
    identities = [
        each["operationId"]
        for methods in described["paths"].values()
        for method, each in methods.items()
        if method != "parameters"
    ]
    assert len(identities) == len(set(identities))
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for route in api.routes.values():
        form = route.versions[minor - api.low]
        if form is not None and form.body is not None:
            jsonschema.Draft202012Validator.check_schema(form.body.schema)


def test_responses_match_the_schemas(sqlite_url: str) -> None:
    """Responses of routes match the schemas of their version."""
    quota = f"/os-quota-sets/{DEMO}"
    paths = (
        *("/flavors", "/flavors/1", "/os-hypervisors", "/os-services", "/os-availability-zone", quota),
        *("/os-aggregates", "/os-aggregates/1"),
    )

    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=2) as c:
            async with c.db.transaction() as tx:
                await create_zone(tx, "east", ["host1"])
            for version in ("2.1", "2.52", "2.53", "2.61", "latest"):
                described = build_document(compute.build(), 106 if version == "latest" else int(version[2:]))
                for path in paths:
                    template = {
                        "/flavors/1": "/flavors/{flavor_id}",
                        quota: "/os-quota-sets/{project_id}",
                        "/os-aggregates/1": "/os-aggregates/{aggregate_id}",
                    }
                    operation = described["paths"]["/v2.1" + template.get(path, path)]["get"]
                    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
                    body = (await c.get(path, as_="admin", version=version)).json()
                    jsonschema.validate(body, {**schema, "components": described["components"]})

    run(scenario())
