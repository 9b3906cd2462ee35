"""Matching of paths."""

from __future__ import annotations

import pytest

from kilonova.http.router import Router


@pytest.fixture
def router() -> Router[str]:
    router: Router[str] = Router()
    for method, path in (
        ("GET", "/"),
        ("GET", "/toys"),
        ("POST", "/toys"),
        ("GET", "/toys/{toy_id}"),
        ("GET", "/toys/new"),
        ("GET", "/toys/{toy_id}/parts/{part_id}"),
        ("GET", "/toys/new/parts"),
    ):
        router.add(method, path, f"{method} {path}")
    return router


@pytest.mark.parametrize(
    "path, methods, params",
    [
        ("", {"GET": "GET /"}, {}),
        ("toys", {"GET": "GET /toys", "POST": "POST /toys"}, {}),
        ("toys/7", {"GET": "GET /toys/{toy_id}"}, {"toy_id": "7"}),
        # A fixed segment takes precedence,
        ("toys/new", {"GET": "GET /toys/new"}, {}),
        ("toys/new/parts", {"GET": "GET /toys/new/parts"}, {}),
        # unless the rest of the path does not match below it.
        (
            "toys/new/parts/1",
            {"GET": "GET /toys/{toy_id}/parts/{part_id}"},
            {"toy_id": "new", "part_id": "1"},
        ),
    ],
)
def test_known_paths_match(router: Router[str], path: str, methods: dict[str, str], params: dict[str, str]) -> None:
    assert router.match(path.split("/") if path else []) == (methods, params)


@pytest.mark.parametrize("path", ["toy", "toys/7/parts", "toys/7/wheels/1", "toys/7/parts/1/2"])
def test_unknown_paths_do_not_match(router: Router[str], path: str) -> None:
    assert router.match(path.split("/")) is None


def test_conflicting_routes_are_refused(router: Router[str]) -> None:
    with pytest.raises(ValueError, match="declared twice"):
        router.add("GET", "/toys/{toy_id}", "again")
    with pytest.raises(ValueError, match="already named"):
        router.add("PUT", "/toys/{other}", "another name")
