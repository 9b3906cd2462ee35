"""Processing of requests: authentication, validation, policy, and errors."""

from __future__ import annotations

import logging
import re

import pytest

from tests.http.toy import PROJECT, toy
from tests.support.cloud import OTHER

REQUEST_ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def test_every_response_has_a_request_id() -> None:
    seen = set()
    for path in ("/toy/v2.1/toys", "/toy/v2.1/nothing", "/toy", "/nothing"):
        answer = toy().get(path)
        request_id = answer.headers["x-openstack-request-id"]
        assert REQUEST_ID.fullmatch(request_id)
        if path.startswith("/toy"):
            assert answer.headers["x-toy-request-id"] == request_id
        seen.add(request_id)
    assert len(seen) == 4


@pytest.mark.parametrize("token", [None, "", "nobody"])
def test_invalid_token_is_401(token: str | None) -> None:
    for path in ("/toy/v2.1/toys", "/toy/v2.1/nothing", "/toy/v2.1/toys/1"):
        answer = toy().get(path, as_=token)
        assert answer.status == 401
        assert answer.json()["fault"]["code"] == 401
        assert answer.headers["www-authenticate"] == 'Keystone uri="http://localhost/identity"'


@pytest.mark.parametrize(
    "public_url, host, uri",
    [
        ("https://cloud.example/", "inside:8774", "https://cloud.example/identity"),
        ("", "[::1]:8774", "http://[::1]:8774/identity"),
        ("", 'a"b', "http://a%22b/identity"),
    ],
)
def test_401_names_the_identity_service(public_url: str, host: str, uri: str) -> None:
    client = toy()
    client.services.config.public_url = public_url
    answer = client.get("/toy/v2.1/toys", as_=None, Host=host)
    assert answer.headers["www-authenticate"] == f'Keystone uri="{uri}"'
    client.services.config.identity.auth_url = "https://keystone.example/v3"
    answer = client.get("/toy/v2.1/toys", as_=None, Host=host)
    assert answer.headers["www-authenticate"] == 'Keystone uri="https://keystone.example/v3"'


def test_public_routes_need_no_token() -> None:
    assert toy().get("/toy/v2.1/open", as_=None).json() == {"open": True}
    assert toy().get("/toy", as_=None).status == 200
    assert toy().get("/toy/", as_=None).status == 200


@pytest.mark.parametrize(
    "path", ["/toy/v2.1/nothing", "/toy/v2.1/toys/1/2", "/toy/v9/toys", "/toy/v2.1/%ff", "/toy/v2.1/a%00b"]
)
def test_unknown_path_is_404(path: str) -> None:
    answer = toy().get(path)
    assert (answer.status, answer.json()["fault"]["code"]) == (404, 404)


def test_path_without_api_is_404() -> None:
    answer = toy().get("/elsewhere")
    assert answer.status == 404
    assert answer.json()["error"]["code"] == 404


def test_405_lists_allowed_methods() -> None:
    answer = toy().request("PATCH", "/toy/v2.1/toys/1")
    assert answer.status == 405
    assert answer.headers["allow"] == "DELETE, GET, PUT"
    assert "DELETE, GET, PUT" in answer.json()["fault"]["message"]


def test_large_body_is_413() -> None:
    answer = toy().post("/toy/v2.1/toys", b" " * 3000)
    assert (answer.status, answer.json()["fault"]["code"]) == (413, 413)


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "multipart/form-data; boundary=x", ""])
def test_other_content_type_is_415(kind: str) -> None:
    answer = toy().post("/toy/v2.1/toys", b"{}", Content_Type=kind)
    assert (answer.status, answer.json()["fault"]["code"]) == (415, 415)


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
def test_json_content_types_are_accepted(kind: str) -> None:
    assert toy().post("/toy/v2.1/toys", b'{"toy": {}}', Content_Type=kind).status == 201


def test_api_may_accept_other_content_types() -> None:
    client = toy(body_types=("text/plain",))
    for kind, status in (("text/plain", 201), ("Text/Plain; charset=utf-8", 201), ("application/json", 415)):
        assert client.post("/toy/v2.1/toys", b'{"toy": {}}', Content_Type=kind).status == status
    assert client.post("/toy/v2.1/toys", b"toy", Content_Type="text/plain").status == 400


@pytest.mark.parametrize(
    "body, expected",
    [
        (b"", "empty"),
        (b"[]", "array|object"),
        (b"{", "JSON"),
        (b'{"toy": {"name": 7}}', "field/attribute name."),
        (b'{"toy": {"name": " x"}}', "field/attribute name."),
        (b'{"toy": {"wheels": 4}}', "wheels"),
        (b'{"toy": {"parts": [{"a": "x"}, {"b": 1}]}}', "field/attribute parts[1]."),
        (b'{"toy": {"name": "x", "name": "y"}}', "twice"),
    ],
)
def test_invalid_body_is_400_and_names_the_place(body: bytes, expected: str) -> None:
    answer = toy().post("/toy/v2.1/toys", body)
    assert answer.status == 400
    message = answer.json()["fault"]["message"]
    assert any(text in message for text in expected.split("|")), message


def test_frozen_root_drops_unknown_keys() -> None:
    body = b'{"toy": {"name": " bear ", "wheels": 4, "parts": [{"a": "x", "b": 1}]}, "more": 1}'
    answer = toy().post("/toy/v2/toys", body)
    assert answer.json() == {"toy": {"name": "bear", "parts": [{"a": "x"}]}}
    assert toy().post("/toy/v2/toys", b'{"toy": {"name": 7}}').status == 400
    assert toy().get("/toy/v2/toys?wheels=4").status == 200


class TestQueries:
    def test_known_query_keys_are_passed(self) -> None:
        answer = toy().get("/toy/v2.1/toys?colour=r%C3%A9d&tag=a&tag=b&limit=3")
        assert answer.json()["query"] == {"colour": ["réd"], "tag": ["a", "b"], "limit": ["3"]}

    def test_last_value_of_a_repeated_key_counts(self) -> None:
        assert toy().get("/toy/v2.1/toys?page=3&page=1&page=2").json()["page"] == "2"
        assert toy().get("/toy/v2.1/toys?page=x&page=2").status == 400

    @pytest.mark.parametrize(
        "query", ["wheels=4", "colour=a&colour=b", "limit=x", "limit=", "colour=%ff", "colour=%00", "a=1&" * 1001]
    )
    def test_invalid_queries_are_refused(self, query: str) -> None:
        assert toy().get(f"/toy/v2.1/toys?{query}").status == 400

    def test_route_without_declared_keys_accepts_any(self) -> None:
        assert toy().get("/toy/v2.1/toys/1?wheels=4").status == 200


class TestProjectInPath:
    def test_project_is_optional_and_kept_in_links(self) -> None:
        answer = toy().get(f"/toy/v2.1/{PROJECT}/toys/1")
        assert answer.json()["link"] == f"http://localhost/toy/v2.1/{PROJECT}/toys/1"
        assert toy().get("/toy/v2.1/toys/1").json()["link"] == "http://localhost/toy/v2.1/toys/1"

    def test_project_must_match_the_token(self) -> None:
        answer = toy().get(f"/toy/v2.1/{OTHER}/toys/1")
        assert answer.status == 400
        assert "project_id" in answer.json()["fault"]["message"]
        assert toy().get(f"/toy/v2.1/{PROJECT}/toys/1", as_="system").status == 400

    def test_project_may_have_dashes(self) -> None:
        assert PROJECT is not None
        dashed = f"{PROJECT[:8]}-{PROJECT[8:12]}-{PROJECT[12:16]}-{PROJECT[16:20]}-{PROJECT[20:]}"
        assert toy().get(f"/toy/v2.1/{dashed}/toys/1").status == 200

    def test_project_alone_is_404(self) -> None:
        assert toy().get(f"/toy/v2.1/{PROJECT}").status == 404
        assert toy().get(f"/toy/v2.1/{OTHER}/nothing").status == 404


class TestActions:
    PATH = "/toy/v2.1/toys/1/action"

    def test_action_is_selected_by_its_key(self) -> None:
        answer = toy().post(self.PATH, b'{"wind": {"turns": 3}}')
        assert (answer.status, answer.json()) == (202, {"wound": "1", "body": {"wind": {"turns": 3}}})
        assert toy().post(self.PATH, b'{"drop": null}').status == 200

    @pytest.mark.parametrize(
        "body",
        [b"{}", b"[]", b"null", b'{"wind": {}, "drop": null}', b'{"fly": null}', b'{"drop": {}}', b'{"wind": null}'],
    )
    def test_invalid_action_bodies_are_refused(self, body: bytes) -> None:
        assert toy().post(self.PATH, body).status == 400


def test_policy_violation_is_403() -> None:
    answer = toy().request("DELETE", "/toy/v2.1/toys/1")
    assert answer.status == 403
    assert "never" in answer.json()["fault"]["message"]


def test_fields_with_policy_are_hidden() -> None:
    assert "secret" not in toy().get("/toy/v2.1/toys/1").json()["toy"]
    assert toy().get("/toy/v2.1/toys/1", as_="admin").json()["toy"]["secret"] == "s"


def test_encoded_slash_stays_in_its_segment() -> None:
    assert toy().get("/toy/v2.1/toys/a%2Fb").json()["id"] == "a/b"


def test_204_has_no_body_and_no_length() -> None:
    answer = toy().request("PUT", "/toy/v2.1/toys/1")
    assert (answer.status, answer.body) == (204, b"")
    assert "content-length" not in answer.headers


def test_unexpected_error_hides_internals(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        answer = toy().get("/toy/v2.1/broken")
    assert answer.status == 500
    assert b"innards" not in answer.body
    assert answer.headers["x-openstack-request-id"] in answer.json()["fault"]["message"]
    assert "innards" in caplog.text


def test_links_have_the_host_of_the_request() -> None:
    forwarded = {"X_Forwarded_Proto": "https", "X_Forwarded_Host": "evil.example"}
    answer = toy().get("/toy/v2.1/toys/1", Host="cloud.example:8443", **forwarded)
    assert answer.json()["link"] == "http://cloud.example:8443/toy/v2.1/toys/1"


def test_links_have_the_public_url_if_it_is_set() -> None:
    t = toy()
    t.services.config.public_url = "https://cloud.example/openstack/"
    answer = t.get("/toy/v2.1/toys/1", Host="10.0.0.1:8774")
    assert answer.json()["link"] == "https://cloud.example/openstack/toy/v2.1/toys/1"


def test_metrics_count_requests_by_route() -> None:
    t = toy()
    t.get("/toy/v2.1/toys/1")
    t.get("/toy/v2.1/toys/2")
    t.post("/toy/v2.1/toys/2/action", b'{"drop": null}')
    counted = {(route, method): sum(h.counts) for (route, method, _), h in t.services.metrics.requests.items()}
    assert counted == {("/toy/toys/{toy_id}", "GET"): 2, ("/toy/toys/{toy_id}/action#drop", "POST"): 1}
