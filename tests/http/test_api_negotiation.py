"""Microversion negotiation: headers of requests and responses."""

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
        # The newer header takes precedence, if it names this service.
        ({NEW: "toy 2.5", OLD: "2.4"}, 5),
        ({NEW: "other 2.5", OLD: "2.4"}, 4),
    ],
)
def test_requested_version_applies(headers: dict[str, str], minor: int) -> None:
    answer = toy().get("/toy/v2.1/toys", **headers)
    assert answer.json()["minor"] == minor
    assert answer.headers["openstack-api-version"] == f"toy 2.{minor}"
    assert answer.headers["x-toy-version"] == f"2.{minor}"
    assert answer.headers["vary"] == "OpenStack-API-Version, X-Toy-Version"


@pytest.mark.parametrize("requested", ["2.10", "2.0", "1.4", "3.1", "2.99999999999999999999"])
def test_version_out_of_range_is_406(requested: str) -> None:
    answer = toy().get("/toy/v2.1/toys", **{NEW: f"toy {requested}"})
    assert answer.status == 406
    assert "Minimum is 2.1 and maximum is 2.9" in answer.json()["fault"]["message"]
    assert "openstack-api-version" in answer.headers


@pytest.mark.parametrize("requested", ["2", "2.", ".4", "2.x", "02.4", "2.04", "-2.4", "newest", "", "2.4.1", "2,4"])
def test_malformed_version_is_400(requested: str) -> None:
    assert toy().get("/toy/v2.1/toys", **{NEW: f"toy {requested}"}).status == 400


def test_version_is_checked_before_the_route() -> None:
    assert toy().get("/toy/v2.1/nothing", **{NEW: "toy 2.10"}).status == 406


def test_errors_have_version_header() -> None:
    answer = toy().get("/toy/v2.1/nothing", **{NEW: "toy 2.4"})
    assert (answer.status, answer.headers["openstack-api-version"]) == (404, "toy 2.4")


def test_repeated_version_header() -> None:
    """Some proxies and clients send one header per service instead of a list."""
    t = toy()
    headers = [(b"x-auth-token", b"member"), (b"openstack-api-version", b"other 2.2")]
    headers.append((b"openstack-api-version", b"toy 2.7"))
    import asyncio

    sent: list[dict[str, object]] = []

    async def call() -> None:
        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/toy/v2.1/toys", "query_string": b"", "headers": headers}
        await t.app(scope, receive, send)

    asyncio.run(call())
    assert (b"openstack-api-version", b"toy 2.7") in sent[0]["headers"]  # type: ignore[operator]


def test_frozen_root_ignores_versions() -> None:
    answer = toy().get("/toy/v2/toys", **{NEW: "toy 2.4"})
    assert answer.json()["minor"] == 1
    assert "openstack-api-version" not in answer.headers
    assert toy().get("/toy/v2/toys", **{NEW: "toy nonsense"}).status == 200
