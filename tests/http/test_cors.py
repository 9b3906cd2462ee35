"""CORS: preflight requests, and headers of responses."""

from __future__ import annotations

from kilonova.config import Cors as Settings
from kilonova.http.client import ClientResponse, InProcess
from kilonova.http.cors import allow_origins
from tests.http.toy import toy
from tests.support import run

GOOD, BAD = "https://good.example", "https://bad.example"
ALLOWED = "access-control-allow-origin"


def request(method: str, origin: str | None, allowed: str = GOOD, **headers: str) -> ClientResponse:
    app = allow_origins(toy().app, Settings(allowed_origin=[allowed]))
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if origin is not None:
        sent["Origin"] = origin
    return run(InProcess(app).request(method, "/toy/v2.1/open", headers=sent))


def test_no_middleware_without_allowed_origins() -> None:
    app = toy().app
    assert allow_origins(app, Settings()) is app


def test_preflight_needs_no_token() -> None:
    answer = request(
        "OPTIONS",
        GOOD,
        Access_Control_Request_Method="PUT",
        Access_Control_Request_Headers="x-auth-token,openstack-api-version",
    )
    assert answer.status == 200
    assert answer.headers[ALLOWED] == GOOD
    assert "PUT" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "x-auth-token,openstack-api-version"
    assert answer.headers["vary"] == "Origin"


def test_preflight_of_other_origin_or_header_is_not_allowed() -> None:
    for answer in (
        request("OPTIONS", BAD, Access_Control_Request_Method="GET"),
        request("OPTIONS", GOOD, Access_Control_Request_Method="GET", Access_Control_Request_Headers="x-secret"),
    ):
        assert answer.status == 200
        assert ALLOWED not in answer.headers


def test_response_allows_configured_origin() -> None:
    assert request("GET", GOOD).headers[ALLOWED] == GOOD
    assert request("GET", BAD, allowed="*").headers[ALLOWED] == BAD
    for origin in (BAD, None):
        answer = request("GET", origin)
        assert (answer.status, answer.json()) == (200, {"open": True})
        assert ALLOWED not in answer.headers


def test_options_without_preflight_headers_is_refused() -> None:
    assert request("OPTIONS", GOOD).status in (401, 405)
