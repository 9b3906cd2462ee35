"""Long lists in the query of every list are refused or ignored: no statement gets more values than it can take."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest

from kilonova import compute, volume
from kilonova.http import Api, App
from kilonova.http.client import InProcess
from kilonova.http.filter_values import MAX_FILTER_VALUES
from kilonova.identity import build as build_identity
from kilonova.image import build as build_image
from kilonova.network import build as build_network
from kilonova.placement.build import build as build_placement
from tests.fuzz.routes import RouteWalker
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud

BUILDERS = (compute.build, volume.build, build_image, build_network, build_identity, build_placement)
# `in:` begins a list in some filters; in others it belongs to the first of the values.
LONG = "in:" + ",".join(["a"] * 3000)
ID = "33333333-3333-4333-8333-333333333333"

# Filters that take a list, with one valid value. `#` is replaced by many numbered ones.
LISTS = [
    *(("compute", f"/v2.1/servers?{key}=t#") for key in ("tags", "tags-any", "not-tags", "not-tags-any")),
    ("identity", "/v3/projects?tags=t#"),
    ("identity", "/v3/projects?not-tags-any=t#"),
    ("image", "/v2/images?sort=name"),
    ("image", "/v2/images?name=in:a#"),
    ("network", "/v2.0/networks?tags=t#"),
    ("network", "/v2.0/ports?security_groups=g#"),
    ("placement", "/resource_providers?required=CUSTOM_A#"),
    ("placement", "/resource_providers?required=in:CUSTOM_A#"),
    ("placement", "/resource_providers?resources=CUSTOM_A#:1"),
    ("placement", f"/resource_providers?member_of=in:{ID}"),
    ("placement", "/traits?name=in:CUSTOM_A#"),
    ("volume", "/v3/volumes?sort=name"),
    ("volume", "/v3/volumes?sort_key=name"),
    ("volume", "/v3/types?sort=name"),
    ("volume", "/v3/volumes?created_at=gt:2020-01-01T00:00:00"),
]


def caller(c: FullCloud, api: Api) -> InProcess:
    in_cloud = c.app if api.prefix.strip("/") in c.app.apis else App(c.services, [api])
    return InProcess(in_cloud, api.prefix)


@pytest.mark.parametrize("build", BUILDERS)
def test_no_long_value_of_any_query_key_is_an_error(database_url: str, build: Callable[[], Api]) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            api = build()
            called = 0
            walk = RouteWalker(api, None, {}, {})  # type: ignore[arg-type]
            for route in walk.routes():
                if route.method != "GET":
                    continue
                minor, version = walk.newest_version(route)
                headers = {"X-Auth-Token": "admin"}
                if api.major:
                    headers[api.version_header] = f"{api.name} {api.major}.{minor}"
                for key in version.query_keys:
                    path = f"{walk.path(route)}?{quote(key)}={LONG}"
                    answer = await caller(c, api).request("GET", path, headers=headers)
                    assert answer.status < 500 or answer.status == 501, (route.key, key, answer.body)
                    called += 1
            assert called > 5

    run(scenario())


def test_lists_have_limited_length(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            apis = {api.prefix: api for api in (build() for build in BUILDERS)}
            for name, path in LISTS:
                api = apis[f"/{name}"]
                headers = {"X-Auth-Token": "admin"}
                if api.major:
                    headers[api.version_header] = f"{api.name} {api.major}.{api.high}"
                keys, _, value = path.partition("=")
                prefix = "in:" if value.startswith("in:") else ""
                one = value.removeprefix("in:")
                for count in (MAX_FILTER_VALUES, MAX_FILTER_VALUES + 1):
                    values = ",".join(one.replace("#", str(number)) for number in range(count))
                    answer = await caller(c, api).request("GET", f"{keys}={prefix}{values}", headers=headers)
                    # The placement service also refuses names that do not exist.
                    is_refused = answer.status == 400 and f"at most {MAX_FILTER_VALUES}".encode() in answer.body
                    assert is_refused == (count > MAX_FILTER_VALUES), (path, count, answer.status, answer.body)

    run(scenario())
