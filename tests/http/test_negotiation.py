"""Which version a request gets, and how the answer says so."""

from __future__ import annotations

import pytest

from tests.http.toy import toy

NEW, OLD = "OpenStack_API_Version", "X_Toy_Version"


@pytest.mark.parametrize(
    "headers, minor",
    [
        ({}, 1),
        ({NEW: "toy 2.4"}, 4),
        ({NEW: "TOY  2.4 "}, 4),
        ({NEW: "toy latest"}, 9),
        ({NEW: "other 2.3, toy 2.4"}, 4),
        ({NEW: "other 2.3"}, 1),
        ({OLD: "2.4"}, 4),
        ({OLD: "latest"}, 9),
        # The newer header wins, if it speaks of this service.
        ({NEW: "toy 2.5", OLD: "2.4"}, 5),
        ({NEW: "other 2.5", OLD: "2.4"}, 4),
    ],
)
def test_the_version_asked_for(headers: dict[str, str], minor: int) -> None:
    answer = toy().get("/toy/v2.1/toys", **headers)
    assert answer.json()["minor"] == minor
    assert answer.headers["openstack-api-version"] == f"toy 2.{minor}"
    assert answer.headers["x-toy-version"] == f"2.{minor}"
    assert answer.headers["vary"] == "OpenStack-API-Version, X-Toy-Version"


@pytest.mark.parametrize("asked", ["2.10", "2.0", "1.4", "3.1", "2.99999999999999999999"])
def test_a_version_out_of_range_is_406(asked: str) -> None:
    answer = toy().get("/toy/v2.1/toys", **{NEW: f"toy {asked}"})
    assert answer.status == 406
    assert "Minimum is 2.1 and maximum is 2.9" in answer.json()["fault"]["message"]
    assert "openstack-api-version" in answer.headers


@pytest.mark.parametrize("asked", ["2", "2.", ".4", "2.x", "02.4", "2.04", "-2.4", "newest", "", "2.4.1", "2,4"])
def test_what_is_no_version_is_400(asked: str) -> None:
    assert toy().get("/toy/v2.1/toys", **{NEW: f"toy {asked}"}).status == 400


def test_no_route_is_found_before_the_version_is_checked() -> None:
    assert toy().get("/toy/v2.1/nothing", **{NEW: "toy 2.10"}).status == 406


def test_errors_carry_the_version_too() -> None:
    answer = toy().get("/toy/v2.1/nothing", **{NEW: "toy 2.4"})
    assert (answer.status, answer.headers["openstack-api-version"]) == (404, "toy 2.4")


def test_a_header_sent_twice() -> None:
    """Some proxies and clients send one header per service instead of a list."""
    t = toy()
    wire = [(b"x-auth-token", b"member"), (b"openstack-api-version", b"other 2.2")]
    wire.append((b"openstack-api-version", b"toy 2.7"))
    import asyncio

    sent: list[dict[str, object]] = []

    async def call() -> None:
        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/toy/v2.1/toys", "query_string": b"", "headers": wire}
        await t.app(scope, receive, send)

    asyncio.run(call())
    assert (b"openstack-api-version", b"toy 2.7") in sent[0]["headers"]  # type: ignore[operator]


def test_the_frozen_root_knows_no_versions() -> None:
    answer = toy().get("/toy/v2/toys", **{NEW: "toy 2.4"})
    assert answer.json()["minor"] == 1
    assert "openstack-api-version" not in answer.headers
    assert toy().get("/toy/v2/toys", **{NEW: "toy nonsense"}).status == 200
