"""All routes of bare metal nodes are refused."""

from __future__ import annotations

from tests.support import run
from tests.support.cloud import cloud, fault

PATH = "/os-baremetal-nodes"


def test_list_and_show_are_not_supported(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            for path in (PATH, f"{PATH}/1"):
                assert fault(await c.get(path, as_="admin", version="2.35"))[:2] == (501, "notImplemented")
                assert (await c.get(path, version="2.35")).status == 403
                assert (await c.get(path, as_="admin", version="2.36")).status == 404

    run(scenario())


def test_changes_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            asked = (
                ("POST", PATH, {"node": {}}),
                ("DELETE", f"{PATH}/1", None),
                ("POST", f"{PATH}/1/action", {"add_interface": {"address": "fa:16:3e:00:00:01"}}),
                ("POST", f"{PATH}/1/action", {"remove_interface": None}),
            )
            for method, path, body in asked:
                answer = await c.request(method, path, json=body, version="2.35")
                assert fault(answer)[:2] == (400, "badRequest"), f"{method} {path}"
                assert "bare metal service" in fault(answer)[2]
                assert (await c.request(method, path, json=body, version="2.36")).status == 404

    run(scenario())
