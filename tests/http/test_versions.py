"""Microversion declarations, compiled into the routes and views of each version."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.http.versions import (
    Behaviour,
    Change,
    Microversion,
    action,
    query,
    request,
    response,
    route,
    view,
)
from tests.http.toy import BOLD, TEXT, Toy, closed, toy, toy_api

NEW = "OpenStack_API_Version"


def at(minor: int) -> dict[str, str]:
    return {NEW: f"toy 2.{minor}"}


def with_changes(*changes: Change, minor: int = 5) -> Toy:
    return toy([Microversion(f"2.{minor}", "What changed.", list(changes))])


def test_route_begins() -> None:
    t = with_changes(route("GET", "/toys/new").begins())
    assert t.get("/toy/v2.1/toys/new", **at(4)).status == 404
    assert t.get("/toy/v2.1/toys/new", **at(5)).status == 200
    assert t.get("/toy/v2.1/toys/new", **at(9)).status == 200


def test_route_ends() -> None:
    t = with_changes(route("GET", "/toys/new").ends())
    assert t.get("/toy/v2.1/toys/new", **at(4)).status == 200
    assert t.get("/toy/v2.1/toys/new", **at(5)).status == 404
    assert t.get("/toy/v2.1/toys/new", **at(9)).status == 404


def test_route_begins_and_ends() -> None:
    new = route("GET", "/toys/new")
    t = toy([Microversion("2.3", "", [new.begins()]), Microversion("2.7", "", [new.ends()])])
    found = [minor for minor in range(1, 10) if t.get("/toy/v2.1/toys/new", **at(minor)).status == 200]
    assert found == [3, 4, 5, 6]


def test_action_begins_without_effect_on_others() -> None:
    t = with_changes(action("drop", "/toys/{toy_id}/action").begins())
    path = "/toy/v2.1/toys/1/action"
    assert t.post(path, b'{"drop": null}', **at(4)).status == 404
    assert t.post(path, b'{"drop": null}', **at(5)).status == 200
    assert t.post(path, b'{"wind": {}}', **at(4)).status == 202


def test_body_gains_key() -> None:
    t = with_changes(request("POST /toys").gains("toy.colour"))
    body = b'{"toy": {"colour": "red"}}'
    assert t.post("/toy/v2.1/toys", body, **at(4)).status == 400
    assert t.post("/toy/v2.1/toys", body, **at(5)).status == 201
    assert t.post("/toy/v2/toys", body).json() == {"toy": {}}


def test_body_gains_key_inside_list() -> None:
    t = with_changes(request("POST /toys").gains("toy.parts[].a"))
    body = b'{"toy": {"parts": [{"a": "x"}]}}'
    assert t.post("/toy/v2.1/toys", body, **at(4)).status == 400
    assert t.post("/toy/v2.1/toys", body, **at(5)).status == 201


def test_body_loses_key_and_old_bodies_are_upgraded() -> None:
    def upgrade(body: Any) -> Any:
        toy = dict(body["toy"])
        if "tint" in toy:
            toy["colour"] = toy.pop("tint")
        return {"toy": toy}

    change = request("POST /toys").loses("toy.tint", schema=TEXT, required=True, upgrade=upgrade)
    t = with_changes(change)
    assert t.post("/toy/v2.1/toys", b'{"toy": {"tint": "red"}}', **at(4)).json() == {"toy": {"colour": "red"}}
    assert t.post("/toy/v2.1/toys", b'{"toy": {}}', **at(4)).status == 400
    assert t.post("/toy/v2.1/toys", b'{"toy": {"tint": "red"}}', **at(5)).status == 400
    assert t.post("/toy/v2.1/toys", b'{"toy": {}}', **at(5)).status == 201


def test_upgrades_run_from_oldest_to_newest() -> None:
    def adding(letter: str) -> Any:
        return lambda body: {"toy": {"name": body["toy"].get("name", "") + letter}}

    t = toy(
        [
            Microversion(f"2.{minor}", "", [request("POST /toys").loses("toy.x", schema=TEXT, upgrade=adding(letter))])
            for minor, letter in ((3, "a"), (5, "b"), (7, "c"))
        ]
    )
    names = {
        minor: t.post("/toy/v2.1/toys", b'{"toy": {}}', **at(minor)).json()["toy"].get("name") for minor in (1, 3, 5, 7)
    }
    assert names == {1: "abc", 3: "bc", 5: "c", 7: None}


def test_body_changes_completely() -> None:
    t = with_changes(request("POST /toys").changes("", before=closed(name=TEXT), upgrade=lambda body: {"toy": body}))
    assert t.post("/toy/v2.1/toys", b'{"name": "bear"}', **at(4)).json() == {"toy": {"name": "bear"}}
    assert t.post("/toy/v2.1/toys", b'{"name": "bear"}', **at(5)).status == 400


def test_action_body_changes_from_null() -> None:
    wind = action("wind", "/toys/{toy_id}/action")
    t = with_changes(wind.changes("", before={"type": "null"}, required_before=True))
    path = "/toy/v2.1/toys/1/action"
    assert t.post(path, b'{"wind": null}', **at(4)).status == 202
    assert t.post(path, b'{"wind": {}}', **at(4)).status == 400
    assert t.post(path, b'{"wind": null}', **at(5)).status == 400


def test_query_gains_loses_changes_and_closes() -> None:
    target = query("GET /toys")
    t = toy(
        [
            Microversion("2.3", "", [target.gains("colour")]),
            Microversion("2.5", "", [target.closes(), target.changes("limit", before=TEXT)]),
            Microversion("2.7", "", [target.loses("wheels", schema=TEXT)]),
        ]
    )

    def query_at(minor: int, text: str) -> Any:
        answer = t.get(f"/toy/v2.1/toys?{text}", **at(minor))
        return answer.json()["query"] if answer.status == 200 else answer.status

    assert query_at(2, "colour=red") == {}
    assert query_at(3, "colour=red") == {"colour": ["red"]}
    assert query_at(4, "nonsense=1") == {}
    assert query_at(5, "nonsense=1") == 400
    assert query_at(4, "limit=x") == {"limit": ["x"]}
    assert query_at(5, "limit=x") == 400
    assert query_at(6, "wheels=4") == {"wheels": ["4"]}
    assert query_at(7, "wheels=4") == 400


def test_status_changes() -> None:
    t = with_changes(response("POST /toys").status(before=200))
    assert t.post("/toy/v2.1/toys", b'{"toy": {}}', **at(4)).status == 200
    assert t.post("/toy/v2.1/toys", b'{"toy": {}}', **at(5)).status == 201


def test_view_gains_loses_and_changes_fields() -> None:
    t = toy(
        [
            Microversion("2.3", "", [view("toy").changes("size", before=lambda row, ctx: row["size"])]),
            Microversion(
                "2.5", "", [view("toy").gains("colour"), view("toy").loses("tint", value=lambda row, ctx: "t")]
            ),
        ]
    )

    def shown(minor: int) -> Any:
        return t.get("/toy/v2.1/toys/1", **at(minor)).json()["toy"]

    assert shown(2) == {"name": "bear", "size": 5, "tint": "t"}
    assert shown(4) == {"name": "bear", "size": {"cm": 5}, "tint": "t"}
    assert shown(5) == {"name": "bear", "colour": "brown", "size": {"cm": 5}}


def test_behaviour_begins() -> None:
    t = with_changes(BOLD)
    assert t.get("/toy/v2.1/toys", **at(4)).json()["bold"] is False
    assert t.get("/toy/v2.1/toys", **at(5)).json()["bold"] is True
    assert t.get("/toy/v2.1/toys", **at(9)).json()["bold"] is True


def test_behaviour_of_no_microversion_is_refused() -> None:
    api = toy_api()
    api.behaviour("toys are shy")
    with pytest.raises(ValueError, match="no microversion begins the behaviour 'toys are shy'"):
        api.compile([Microversion("2.5", "", [])])


def test_microversion_with_an_undeclared_behaviour_is_refused() -> None:
    with pytest.raises(ValueError, match=r"microversion 2.5: toy has not declared .*'toys are shy'"):
        with_changes(Behaviour("toys are shy"))


def test_behaviour_declared_twice_is_refused() -> None:
    api = toy_api()
    api.behaviour("toys are shy")
    with pytest.raises(ValueError, match="'toys are shy' is declared twice"):
        api.behaviour("toys are shy")


@pytest.mark.parametrize(
    "change",
    [
        route("GET", "/nothing").ends(),
        request("POST /nothing").gains("toy.colour"),
        request("POST /toys").gains("toy.nothing"),
        view("nothing").gains("colour"),
        view("toy").gains("nothing"),
        action("nothing", "/toys/{toy_id}/action").begins(),
    ],
)
def test_declaration_with_unknown_target_is_refused(change: Change) -> None:
    with pytest.raises((ValueError, KeyError)):
        with_changes(change)


def test_unchanged_versions_share_a_route_version() -> None:
    api = toy_api([Microversion("2.5", "", [request("POST /toys").gains("toy.colour")])])
    versions = api.routes["POST /toys"].versions
    assert len({id(version) for version in versions}) == 2
    assert versions[0] is versions[3]
    assert versions[4] is versions[8]


def test_every_change_has_a_description() -> None:
    changes = [
        route("GET", "/toys/new").begins(),
        action("drop").ends(),
        request("POST /toys").changes("toy", before={}),
        query("GET /toys").closes(),
        response("POST /toys").status(before=200),
        view("toy").loses("a", "b", value=lambda row, ctx: None),
        BOLD,
    ]
    assert [change.description for change in changes] == [
        "`GET /toys/new` begins",
        "action `drop` ends",
        "`POST /toys` takes another form of `toy`",
        "`GET /toys` refuses unknown query keys",
        "`POST /toys` answers with another status (before: 200)",
        "view `toy` no longer shows `a`, `b`",
        "toys are bold",
    ]
