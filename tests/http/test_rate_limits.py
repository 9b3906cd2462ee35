"""Limits of requests per address and per user."""

from __future__ import annotations

import pytest

from kilonova import compute, share, volume
from kilonova.config import load
from kilonova.http import App
from kilonova.http.client import ClientResponse, InProcess
from kilonova.http.rate_limits import Buckets
from kilonova.identity import build as build_identity
from kilonova.image import build as build_image
from kilonova.network import build as build_network
from kilonova.placement.build import build as build_placement
from kilonova.policy import Policy
from kilonova.services import Services
from kilonova.startup_checks import CannotStart, Roles, check
from tests.fuzz.raw import Reply, assert_fault
from tests.support import run
from tests.support.addresses import caller_at
from tests.support.cloud import Tokens

BUILDERS = (compute.build, volume.build, build_image, build_network, build_identity, build_placement, share.build)
# None of these needs a database before the limit.
PATHS = (
    *("/compute/v2.1/none", "/volume/v3/none", "/image/v2/none", "/network/v2.0/none"),
    *("/identity/v3/none", "/placement/none", "/share/v2/none"),
)


def all_apis(**flags: float | str) -> App:
    services = Services()
    services.config = load(environ={}, flags={name.replace("__", "."): value for name, value in flags.items()})
    services.policy = Policy()
    services.tokens = Tokens()
    return App(services, [build() for build in BUILDERS])


async def get(caller: InProcess, path: str, user: str = "member") -> ClientResponse:
    return await caller.request("GET", path, headers={"X-Auth-Token": user})


@pytest.mark.parametrize("path", PATHS)
def test_too_many_requests_of_an_address(path: str) -> None:
    """The response has the format of the API. Other addresses and the process itself are not limited."""

    async def scenario() -> None:
        app = all_apis(api__requests_per_second_per_address=0.001)
        client, other = caller_at("10.0.0.1", app), caller_at("10.0.0.2", app)
        assert (await get(client, path)).status == 404
        refused = await get(client, path)
        assert refused.status == 429
        assert 900 < int(refused.headers["retry-after"]) <= 1000
        assert_fault(path, Reply(refused.status, refused.headers, refused.body))
        assert (await get(client, path, user="wrong")).status == 429, "also without a valid token"
        assert (await get(other, path)).status == 404
        for _ in range(3):
            assert (await get(InProcess(app), path)).status == 404

    run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_too_many_requests_of_a_user(path: str) -> None:
    """Requests count for a user in a project, from whichever address."""

    async def scenario() -> None:
        app = all_apis(api__requests_per_second_per_user=0.001)
        assert (await get(caller_at("10.0.0.1", app), path)).status == 404
        refused = await get(caller_at("10.0.0.2", app), path)
        assert refused.status == 429
        assert "retry-after" in refused.headers
        assert_fault(path, Reply(refused.status, refused.headers, refused.body))
        assert (await get(caller_at("10.0.0.2", app), path, user="reader")).status == 404
        assert (await get(InProcess(app), path)).status == 404

    run(scenario())


def test_requests_are_not_limited_by_default() -> None:
    async def scenario() -> None:
        app = all_apis()
        client = caller_at("10.0.0.1", app)
        assert {(await get(client, "/compute/v2.1/none")).status for _ in range(300)} == {404}
        assert (app.services.rate_limits.by_address, app.services.rate_limits.by_user) == (None, None)

    run(scenario())


def test_clients_behind_a_trusted_proxy_are_limited_each() -> None:
    async def scenario() -> None:
        app = all_apis(api__requests_per_second_per_address=0.001, trusted_proxies="10.0.0.1")
        proxy, liar = caller_at("10.0.0.1", app), caller_at("10.0.0.2", app)

        async def forwarded(caller: InProcess, address: str) -> int:
            headers = {"X-Auth-Token": "member", "X-Forwarded-For": address}
            return (await caller.request("GET", "/compute/v2.1/none", headers=headers)).status

        assert [await forwarded(proxy, f"1.2.3.{number}") for number in (1, 2, 2)] == [404, 404, 429]
        assert [await forwarded(liar, f"1.2.4.{number}") for number in (1, 2)] == [404, 429]

    run(scenario())


def test_buckets_refill_and_owe() -> None:
    now = 0.0
    buckets = Buckets(2, 0.5, now=lambda: now)
    for _ in range(4):
        buckets.take("a")
    assert (buckets.wait("a"), buckets.wait("b")) == (6, 0)
    now = 6.0
    assert buckets.wait("a") == 0
    now = 1000.0
    buckets.take("a")
    buckets.take("a")
    assert buckets.wait("a") == 2, "no more than two are saved"
    buckets.fill("a")
    assert buckets.wait("a") == 0


def test_number_of_buckets_is_limited() -> None:
    buckets = Buckets(1, 0.001, size=10)
    for number in range(100):
        buckets.take(f"client {number}" * 100)
        buckets.take("frequent")
    assert len(buckets) == 10
    assert buckets.wait("frequent") > 0, "the least recently used buckets are dropped"


@pytest.mark.parametrize(
    "flags, words",
    [
        ({"api.max_connections": -1}, "api.max_connections: -1"),
        ({"api.requests_per_second_per_user": float("nan")}, "api.requests_per_second_per_user: nan"),
    ],
)
def test_invalid_settings_are_refused_at_start(flags: dict[str, object], words: str) -> None:
    with pytest.raises(CannotStart, match=words):
        check(load(environ={}, flags=flags), Roles())
