"""Declarations of routes: each says who may use it."""

from __future__ import annotations

import pytest

from kilonova.http import Api, Context
from kilonova.http.api import RouteOptions
from tests.http.toy import toy_fault


async def handler(ctx: Context) -> None: ...


def declare(options: RouteOptions) -> Api:
    api = Api("toy", prefix="/toy", errors=toy_fault)
    api.route("GET", "/toys", **options)(handler)
    return api


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "rule"},
        {"checks": ["rule"]},
        {"authenticated": True},
        {"checks": ["rule"], "authenticated": True},
        {"public": True},
        {"ticket": True},
    ],
    ids=str,
)
def test_route_says_who_may_use_it(options: RouteOptions) -> None:
    assert "GET /toys" in declare(options).routes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"checks": []},
        {"policy": "rule", "public": True},
        {"policy": "rule", "authenticated": True},
        {"authenticated": True, "public": True},
        {"ticket": True, "public": True},
    ],
    ids=str,
)
def test_route_that_says_nothing_or_two_things_is_refused(options: RouteOptions) -> None:
    with pytest.raises(ValueError, match="GET /toys needs either rules"):
        declare(options)


def test_action_that_says_nothing_is_refused() -> None:
    api = Api("toy", prefix="/toy", errors=toy_fault)
    with pytest.raises(ValueError, match="POST /toys/action#wind needs either rules"):
        api.action("wind", "/toys/action")(handler)
