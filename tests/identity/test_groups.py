"""Groups, which are not supported."""

from __future__ import annotations

from pathlib import Path

from tests.identity.support import cloud
from tests.support import run


def test_groups_are_empty_and_cannot_be_created(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            assert (await c.ok("GET", "/v3/groups?name=x", admin))["groups"] == []
            user_id, project_id = await c.ident("user", "demo"), await c.ident("project", "demo")
            assert (await c.ok("GET", f"/v3/users/{user_id}/groups", admin))["groups"] == []
            response = await c.call("POST", "/v3/groups", admin, {"group": {"name": "g"}})
            assert response.status == 501
            assert "Groups are not supported" in response.json()["error"]["message"]
            assert (await c.call("GET", "/v3/groups/g", admin)).status == 404
            assert (await c.call("PUT", f"/v3/projects/{project_id}/groups/g/roles/r", admin)).status == 404

    run(scenario())
