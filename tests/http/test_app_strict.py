"""Strict APIs, with custom error messages and versioned error formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.http import App, Context, Field, View
from kilonova.http.client import InProcess
from kilonova.http.error_messages import ErrorMessages, SchemaViolation
from kilonova.http.errors import HttpError, NotFound
from kilonova.http.versions import Microversion, request, route, view
from tests.http.toy import Toy, closed, toy_api
from tests.support import run

TEXT = {"type": "string"}
JSON = {"content_type": "application/json"}


class CustomMessages(ErrorMessages):
    def unsupported_media_type(self, given: str | None) -> str:
        return f"not {given}"

    def malformed_json(self, detail: str) -> str:
        return f"malformed: {detail}"

    def schema_violation(self, what: str, violation: SchemaViolation) -> str:
        return f"{violation.rule} at {list(violation.schema)}"

    def unknown_query_key(self, key: str, patterns: Sequence[str]) -> str:
        return f"no {key}"

    def method_not_allowed(self, method: str, allowed: str) -> str:
        return f"no {method}"


def fault(error: HttpError, ctx: Context) -> Any:
    return ctx.render("error", error)


def strict_toy(*versions: Microversion) -> Toy:
    api = toy_api(
        roots=(),
        frozen_roots=(),
        project_in_path=False,
        strict=True,
        messages=CustomMessages(),
        versioned_errors=fault,
    )
    api.view(
        View(
            "error",
            {
                "message": Field(lambda error, ctx: error.message, TEXT),
                "code": Field(lambda error, ctx: error.code, TEXT),
            },
        )
    )

    async def refuse_lost(ctx: Context, toy_id: str) -> None:
        if toy_id == "lost":
            raise NotFound("the box is lost")

    @api.route(
        "PUT", "/boxes/{toy_id}", body=closed(size={"type": "integer"}), policy="admin", check_exists=refuse_lost
    )
    async def put(ctx: Context, toy_id: str) -> None: ...

    @api.route("DELETE", "/boxes/{toy_id}", authenticated=True)
    async def delete(ctx: Context, toy_id: str) -> None: ...

    api.compile(versions)
    return Toy(api)


BOX = "/toy/boxes/1"
LATEST = {"openstack_api_version": "toy latest"}


def test_policy_is_checked_before_media_type_and_body() -> None:
    client = strict_toy()
    assert client.request("PUT", BOX, content=b"{", as_="member").status == 403
    answer = client.request("PUT", BOX, content=b"{", as_="admin", content_type="text/plain")
    assert (answer.status, answer.json()["message"]) == (415, "not text/plain")
    assert client.request("PUT", BOX, as_="admin").json()["message"] == "not None"
    answer = client.request("PUT", BOX, content=b"{}", as_="admin", content_length="2")
    assert answer.status == 400
    assert client.request("PUT", BOX, content=b"{", as_="admin", **JSON).json()["message"].startswith("malformed: ")
    error = client.request("PUT", BOX, content=b'{"size": "x"}', as_="admin", **JSON).json()
    assert error["message"] == "type at ['properties', 'size']"


def test_missing_resource_is_reported_before_invalid_body() -> None:
    client = strict_toy()
    for content in (b"{", b'{"size": "x"}'):
        answer = client.request("PUT", "/toy/boxes/lost", content=content, as_="admin", **JSON)
        assert (answer.status, answer.json()["message"]) == (404, "the box is lost")
    assert client.request("PUT", "/toy/boxes/lost", content=b"{}", as_="admin", **JSON).status == 200


def test_custom_error_messages() -> None:
    client = strict_toy()
    assert client.get("/toy/toys?shape=round").json()["message"] == "no shape"
    assert client.request("PATCH", "/toy/toys").json()["message"] == "no PATCH"


def test_only_json_responses() -> None:
    client = strict_toy()
    assert client.get("/toy/toys", accept="text/plain").status == 406
    assert client.get("/toy/open", accept="text/plain").status == 200
    answer = client.get("/toy/none<b>", accept="text/html")
    assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=UTF-8")


def test_method_that_begins_later_is_405_below() -> None:
    client = strict_toy(
        Microversion("2.5", "d", [route("DELETE", "/boxes/{toy_id}").begins(status_below=405)]),
        Microversion("2.6", "d", [view("error").gains("code")]),
    )
    answer = client.request("DELETE", BOX)
    assert (answer.status, answer.headers["allow"], "code" in answer.json()) == (405, "PUT", False)
    assert client.request("DELETE", BOX, openstack_api_version="toy 2.5").status == 200
    assert "code" in client.request("PATCH", BOX, openstack_api_version="toy 2.6").json()


def test_path_without_methods_at_this_version_is_405() -> None:
    begins = [route("DELETE", "/boxes/{toy_id}").begins(), route("PUT", "/boxes/{toy_id}").begins()]
    client = strict_toy(Microversion("2.5", "d", begins))
    assert client.request("DELETE", BOX).status == 404
    answer = client.request("GET", BOX)
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE, PUT")


def test_body_changes_completely() -> None:
    client = strict_toy(
        Microversion("2.5", "d", [request("PUT /boxes/{toy_id}").changes("", before={"type": "array"}, upgrade=len)])
    )
    assert client.request("PUT", BOX, content=b"[]", as_="admin", **JSON).status == 200
    assert client.request("PUT", BOX, content=b"[]", as_="admin", **JSON, **LATEST).status == 400


def test_api_at_root() -> None:
    client = strict_toy()
    (api,) = client.app.apis.values()
    app = App.at_root(client.services, api)
    answer = run(InProcess(app).request("GET", "/toys/1", headers={"X-Auth-Token": "member"}))
    assert answer.json()["link"] == "http://localhost/toys/1"
    # The identity service is at the other address.
    for site, uri in (("", "http://localhost/identity"), ("https://cloud.example", "https://cloud.example/identity")):
        app = App.at_root(client.services, api, site)
        refused = run(InProcess(app).request("GET", "/toys/1"))
        assert (refused.status, refused.headers["www-authenticate"]) == (401, f'Keystone uri="{uri}"')
    assert client.services.mounts == {"toy"}
