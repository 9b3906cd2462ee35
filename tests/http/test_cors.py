"""Pages of other origins: what a browser asks, and what it is told."""

from __future__ import annotations

from kilonova.config import Cors as Settings
from kilonova.http.client import InProcess, Response
from kilonova.http.cors import with_cors
from tests.http.toy import toy
from tests.support import run

GOOD, BAD = "https://good.example", "https://bad.example"
ALLOWED = "access-control-allow-origin"


def ask(method: str, origin: str | None, allowed: str = GOOD, **headers: str) -> Response:
    app = with_cors(toy().app, Settings(allowed_origin=[allowed]))
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if origin is not None:
        sent["Origin"] = origin
    return run(InProcess(app).request(method, "/toy/v2.1/open", headers=sent))


def test_nothing_is_added_where_nothing_is_allowed() -> None:
    app = toy().app
    assert with_cors(app, Settings()) is app


def test_a_question_beforehand_needs_no_token() -> None:
    answer = ask(
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


def test_other_origins_and_headers_are_told_nothing() -> None:
    for answer in (
        ask("OPTIONS", BAD, Access_Control_Request_Method="GET"),
        ask("OPTIONS", GOOD, Access_Control_Request_Method="GET", Access_Control_Request_Headers="x-secret"),
    ):
        assert answer.status == 200
        assert ALLOWED not in answer.headers


def test_answers_name_the_origin() -> None:
    assert ask("GET", GOOD).headers[ALLOWED] == GOOD
    assert ask("GET", BAD, allowed="*").headers[ALLOWED] == BAD
    for origin in (BAD, None):
        answer = ask("GET", origin)
        assert (answer.status, answer.json()) == (200, {"open": True})
        assert ALLOWED not in answer.headers


def test_without_a_question_the_method_is_wrong() -> None:
    assert ask("OPTIONS", GOOD).status in (401, 405)
