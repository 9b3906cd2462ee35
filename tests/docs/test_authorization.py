"""The tables of what tokens with system scope may do."""

from __future__ import annotations

import pytest

from kilonova.docs import authorization
from kilonova.docs.authorization import NONE, READS

EXPECTED = {
    ("compute", "/servers"): ("–", "all but `POST /servers`"),
    ("compute", "/os-keypairs"): ("own", "all"),
    ("compute", "/os-hypervisors"): ("all", "all"),
    ("compute", "/os-services"): ("reading", "all"),
    ("compute", "/os-quota-sets"): ("only `GET /os-quota-sets/{project_id}/defaults`", "all"),
    ("placement", "/resource_providers"): ("–", "–"),
    ("identity", "/v3/auth"): ("all; own objects only: `DELETE /v3/auth/tokens`", "all"),
}


@pytest.fixture(scope="module")
def tables() -> dict[str, dict[str, dict[str, str]]]:
    """By API and group of routes."""
    return {api.name: dict(authorization.system_scope(api)) for api in authorization.build_apis()}


def test_groups_say_what_system_tokens_may(tables: dict[str, dict[str, dict[str, str]]]) -> None:
    assert {(api, group): tuple(tables[api][group].values()) for api, group in EXPECTED} == EXPECTED


def test_groups_agree_with_each_route(tables: dict[str, dict[str, dict[str, str]]]) -> None:
    checked = 0
    for api in authorization.build_apis():
        for row in authorization.rows(api):
            if not (row.decides and row.rule) or row.route.ticket:
                continue
            (group,) = [name for name in tables[api.name] if f"{row.route.path}/".startswith(f"{name}/")]
            for caller, may in tables[api.name][group].items():
                words = may.partition("; ")[0]
                is_named = f"`{row.route.key}`" in words
                is_read = words.startswith("reading") and row.route.method in READS
                expected = is_read or is_named != words.startswith("all") if words != "own" else True
                assert (row.access[caller] != NONE) == (expected and words != NONE), (row.route.key, caller, may)
                checked += 1
    assert checked > 500
