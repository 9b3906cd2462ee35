"""What all kinds of identity objects have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.identity.support import cloud
from tests.support import run

# Kinds without options: the path and a minimal body.
WITHOUT_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "group": ("groups", {"name": "n"}),
    "region": ("regions", {"id": "n"}),
    "service": ("services", {"type": "n"}),
    "policy": ("policies", {"type": "n", "blob": "b"}),
    "credential": ("credentials", {"type": "n", "blob": "b"}),
    "endpoint_group": ("OS-EP-FILTER/endpoint_groups", {"name": "n", "filters": {}}),
}


@pytest.mark.parametrize("noun", WITHOUT_OPTIONS)
def test_options_of_kinds_without_options_are_stored_like_other_attributes(
    sqlite_url: str, tmp_path: Path, noun: str
) -> None:
    path, body = WITHOUT_OPTIONS[noun]

    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            created = (await c.ok("POST", f"/v3/{path}", admin, {noun: {**body, "options": "none"}}))[noun]
            assert created["options"] == "none"
            one = f"/v3/{path}/{created['id']}"
            for value in ([1], {"immutable": True}, 1):
                changed = (await c.ok("PATCH", one, admin, {noun: {"options": value}}))[noun]
                assert changed["options"] == value
            assert (await c.ok("GET", one, admin))[noun]["options"] == 1
            assert "options" not in (await c.ok("PATCH", one, admin, {noun: {"options": None}}))[noun]
            await c.ok("DELETE", one, admin)

    run(scenario())
