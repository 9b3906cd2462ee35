"""Removed routes respond with 410 at every version."""

from __future__ import annotations

import re

import pytest

from kilonova.compute.removed import REMOVED
from tests.support import run
from tests.support.cloud import cloud, fault


@pytest.mark.parametrize("version", ["2.1", "2.36", "latest"])
def test_removed_routes_are_410(sqlite_url: str, version: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            for template, methods in REMOVED.items():
                path = re.sub(r"\{\w+\}", "1", template)
                for method, _, action in (each.partition(" ") for each in methods):
                    body = {action: None} if action else {}
                    answer = await c.request(method, path, json=body, version=version)
                    assert fault(answer)[:2] == (410, "computeFault"), f"{method} {path}"

    run(scenario())


def test_removed_routes_need_a_token(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            for method, path in (("GET", "/os-fping"), ("GET", "/os-agents"), ("POST", "/os-networks")):
                assert (await c.request(method, path, as_=None)).status == 401
                assert (await c.request(method, path)).status == 410

    run(scenario())
