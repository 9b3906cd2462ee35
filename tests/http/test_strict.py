"""An API of the strict kind, with sentences of its own and an error form that depends on the version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.http import App, Context, Field, View
from kilonova.http.client import InProcess
from kilonova.http.errors import HttpError, NotFound
from kilonova.http.versions import Microversion, request, route, view
from kilonova.http.words import Words, Wrong
from tests.http.toy import Toy, closed, toy_api
from tests.support import run

TEXT = {"type": "string"}
JSON = {"content_type": "application/json"}


class Own(Words):
    def media_type(self, given: str | None) -> str:
        return f"not {given}"

    def malformed(self, detail: str) -> str:
        return f"malformed: {detail}"

    def invalid(self, what: str, wrong: Wrong) -> str:
        return f"{wrong.rule} at {list(wrong.schema)}"

    def query_key(self, key: str, patterns: Sequence[str]) -> str:
        return f"no {key}"

    def method(self, method: str, allowed: str) -> str:
        return f"no {method}"


def fault(error: HttpError, ctx: Context) -> Any:
    return ctx.render("error", error)


def strict(*versions: Microversion) -> Toy:
    api = toy_api(roots=(), frozen_roots=(), project_in_path=False, strict=True, words=Own(), versioned_errors=fault)
    api.view(
        View(
            "error",
            {
                "message": Field(lambda error, ctx: error.message, TEXT),
                "code": Field(lambda error, ctx: error.code, TEXT),
            },
        )
    )

    async def lost(ctx: Context, toy_id: str) -> None:
        if toy_id == "lost":
            raise NotFound("it is lost")

    @api.route("PUT", "/boxes/{toy_id}", body=closed(size={"type": "integer"}), policy="admin", subject=lost)
    async def put(ctx: Context, toy_id: str) -> None: ...

    @api.route("DELETE", "/boxes/{toy_id}")
    async def delete(ctx: Context, toy_id: str) -> None: ...

    api.compile(versions)
    return Toy(api)


BOX = "/toy/boxes/1"
LATEST = {"openstack_api_version": "toy latest"}


def test_policy_comes_before_media_type_and_body() -> None:
    it = strict()
    assert it.request("PUT", BOX, content=b"{", as_="member").status == 403
    answer = it.request("PUT", BOX, content=b"{", as_="admin", content_type="text/plain")
    assert (answer.status, answer.json()["message"]) == (415, "not text/plain")
    assert it.request("PUT", BOX, as_="admin").json()["message"] == "not None"
    answer = it.request("PUT", BOX, content=b"{}", as_="admin", content_length="2")
    assert answer.status == 400
    assert it.request("PUT", BOX, content=b"{", as_="admin", **JSON).json()["message"].startswith("malformed: ")
    told = it.request("PUT", BOX, content=b'{"size": "x"}', as_="admin", **JSON).json()
    assert told["message"] == "type at ['properties', 'size']"


def test_a_missing_subject_comes_before_a_wrong_body() -> None:
    it = strict()
    for content in (b"{", b'{"size": "x"}'):
        answer = it.request("PUT", "/toy/boxes/lost", content=content, as_="admin", **JSON)
        assert (answer.status, answer.json()["message"]) == (404, "it is lost")
    assert it.request("PUT", "/toy/boxes/lost", content=b"{}", as_="admin", **JSON).status == 200


def test_own_sentences() -> None:
    it = strict()
    assert it.get("/toy/toys?shape=round").json()["message"] == "no shape"
    assert it.request("PATCH", "/toy/toys").json()["message"] == "no PATCH"


def test_only_json_is_given() -> None:
    it = strict()
    assert it.get("/toy/toys", accept="text/plain").status == 406
    assert it.get("/toy/open", accept="text/plain").status == 200
    answer = it.get("/toy/none<b>", accept="text/html")
    assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=UTF-8")


def test_a_method_that_begins_later_on_a_path_that_was_there() -> None:
    it = strict(
        Microversion("2.5", "d", [route("DELETE", "/boxes/{toy_id}").begins(status_below=405)]),
        Microversion("2.6", "d", [view("error").gains("code")]),
    )
    answer = it.request("DELETE", BOX)
    assert (answer.status, answer.headers["allow"], "code" in answer.json()) == (405, "PUT", False)
    assert it.request("DELETE", BOX, openstack_api_version="toy 2.5").status == 200
    assert "code" in it.request("PATCH", BOX, openstack_api_version="toy 2.6").json()


def test_a_path_is_known_though_none_of_its_methods_is_yet() -> None:
    begins = [route("DELETE", "/boxes/{toy_id}").begins(), route("PUT", "/boxes/{toy_id}").begins()]
    it = strict(Microversion("2.5", "d", begins))
    assert it.request("DELETE", BOX).status == 404
    answer = it.request("GET", BOX)
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE, PUT")


def test_a_body_that_is_another_one_below() -> None:
    it = strict(
        Microversion("2.5", "d", [request("PUT /boxes/{toy_id}").changes("", before={"type": "array"}, upgrade=len)])
    )
    assert it.request("PUT", BOX, content=b"[]", as_="admin", **JSON).status == 200
    assert it.request("PUT", BOX, content=b"[]", as_="admin", **JSON, **LATEST).status == 400


def test_at_a_root_of_its_own() -> None:
    it = strict()
    (api,) = it.app.apis.values()
    app = App.at_root(it.services, api)
    answer = run(InProcess(app).request("GET", "/toys/1", headers={"X-Auth-Token": "member"}))
    assert answer.json()["link"] == "http://localhost/toys/1"
    assert it.services.mounts == {"toy"}
