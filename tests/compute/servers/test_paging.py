"""Paging of the lists of servers: no server is missing or repeated, in any sort order."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import orjson

from kilonova.ids import new_id
from tests.compute.servers.test_listing import FLAVOR
from tests.support import run
from tests.support.cloud import OTHER, Cloud, cloud, fault, insert_server
from tests.support.route_coverage import proves

SERVER_COUNT = 23
ORDERS = [
    "",
    "sort_key=created_at&sort_dir=asc",
    "sort_key=display_name",
    "sort_key=display_name&sort_dir=asc",
    "sort_key=display_name&sort_key=created_at&sort_dir=asc&sort_dir=desc",
    "sort_key=vm_state&sort_key=display_name&sort_dir=desc",
    "sort_key=key_name&sort_dir=asc",
    "sort_key=key_name&sort_dir=desc",
    "sort_key=launched_at&sort_key=key_name&sort_dir=desc&sort_dir=asc",
    "sort_key=uuid&sort_dir=asc",
    "sort_key=locked&sort_key=memory_mb&sort_dir=asc&sort_dir=desc",
    "sort_key=task_state&sort_key=display_name",
    "sort_key=locked_by&sort_key=auto_disk_config",
    "sort_key=progress&sort_key=kernel_id",
]


async def insert_servers(c: Cloud) -> None:
    """Servers with few different values per sort key, so that many are equal."""
    chance = random.Random(7)
    async with c.db.transaction() as tx:
        for _ in range(SERVER_COUNT):
            values = {
                "name": chance.choice(["a", "B", "ä", "z"]),
                "created_at": float(chance.choice([1, 2])),
                "launched_at": chance.choice([None, 1.5, 2.5]),
                "vm_state": chance.choice(["active", "stopped"]),
                "key_name": chance.choice([None, "k", "l"]),
                "locked": chance.choice([True, False]),
                "flavor": orjson.dumps(FLAVOR).decode(),
            }
            await insert_server(tx, new_id(), **values)
        await insert_server(tx, new_id(), project_id=OTHER, flavor=orjson.dumps(FLAVOR).decode())


async def get_pages(c: Cloud, path: str, **options: Any) -> list[list[str]]:
    """The ids on each page, following the links."""
    found = []
    while path:
        answer = await c.get(path, **options)
        assert answer.status == 200, answer.body
        body = answer.json()
        found.append([server["id"] for server in body["servers"]])
        links = body.get("servers_links", [])
        assert [link["rel"] for link in links] in ([], ["next"])
        path = links[0]["href"].removeprefix("http://localhost/compute/v2.1") if links else ""
    return found


@proves("GET /servers", "GET /servers/detail")
def test_pages_are_complete_in_every_sort_order(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await insert_servers(c)
            for order in ORDERS:
                (whole_list,) = await get_pages(c, f"/servers?{order}")
                assert len(set(whole_list)) == SERVER_COUNT
                for path in ("/servers", "/servers/detail"):
                    for limit in (1, 4, SERVER_COUNT - 1):
                        found = await get_pages(c, f"{path}?{order}&limit={limit}")
                        assert list(chain(*found)) == whole_list, (order, limit)
                        assert {len(page) for page in found[:-1]} == {limit}

    run(scenario())


def test_sort_keys_and_directions(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await insert_servers(c)
            query = "sort_key=key_name&sort_key=created_at&sort_dir=desc&sort_dir=asc"
            listed = (await c.get(f"/servers/detail?{query}")).json()["servers"]
            found = [(server["key_name"] or "", server["created"]) for server in listed]
            # Sorting twice sorts by both keys: Python's sort is stable.
            assert found == sorted(sorted(found, key=lambda pair: pair[1]), key=lambda pair: pair[0], reverse=True)
            newest = [server["created"] for server in (await c.get("/servers/detail")).json()["servers"]]
            assert newest == sorted(newest, reverse=True)

    run(scenario())


def test_task_states_are_sorted(database_url: str) -> None:
    """Simulated hosts that never answer keep two servers busy."""

    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            async with c.db.transaction() as tx:
                for name in ("idle", "rebooted", "stopped"):
                    await insert_server(tx, new_id(), name=name, host="host1", hypervisor_hostname="host1")
            ids = {s["name"]: s["id"] for s in (await c.get("/servers")).json()["servers"]}
            stop, reboot = {"os-stop": None}, {"reboot": {"type": "SOFT"}}
            assert (await c.post(f"/servers/{ids['stopped']}/action", stop)).status == 202
            assert (await c.post(f"/servers/{ids['rebooted']}/action", reboot)).status == 202
            for direction, expected in (
                ("asc", [None, "powering-off", "rebooting"]),
                ("desc", ["rebooting", "powering-off", None]),
            ):
                path = f"/servers/detail?sort_key=task_state&sort_dir={direction}"
                listed = (await c.get(path)).json()["servers"]
                assert [server["OS-EXT-STS:task_state"] for server in listed] == expected
                pages = await get_pages(c, path + "&limit=1")
                assert list(chain(*pages)) == [server["id"] for server in listed]

    run(scenario())


def test_next_links_keep_the_query(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await insert_servers(c)
            query = "limit=2&status=ACTIVE&status=SHUTOFF&name=%5BaB%5D&sort_key=display_name&sort_dir=asc"
            body = (await c.get(f"/servers/detail?{query}")).json()
            (link,) = body["servers_links"]
            assert link["rel"] == "next"
            last = body["servers"][-1]["id"]
            assert link["href"].startswith("http://localhost/compute/v2.1/servers/detail?")
            assert sorted(link["href"].partition("?")[2].split("&")) == sorted([*query.split("&"), f"marker={last}"])
            (rest,) = await get_pages(c, f"/servers?{query.replace('limit=2&', '')}")
            assert list(chain(*await get_pages(c, f"/servers?{query}"))) == rest

    run(scenario())


def test_page_size_is_limited_by_max_limit(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, api__max_limit=10) as c:
            await insert_servers(c)
            # Without a limit a page has max_limit servers, and a link to the next page.
            assert [len(page) for page in await get_pages(c, "/servers")] == [10, 10, 3]
            assert [len(page) for page in await get_pages(c, "/servers/detail?limit=1000")] == [10, 10, 3]
            assert (await c.get("/servers?limit=0")).json() == {"servers": []}

    run(scenario())


def test_unknown_and_foreign_markers_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await insert_servers(c)
            (everything,) = await get_pages(c, "/servers")
            theirs = await c.db.fetch_value("SELECT id FROM servers WHERE project_id = $1", OTHER)
            for path in ("/servers", "/servers/detail"):
                for marker in ("unknown", new_id(), theirs, ""):
                    answer = await c.get(f"{path}?marker={marker}")
                    assert fault(answer) == (400, "badRequest", f"marker [{marker}] not found")
                    assert (await c.get(f"{path}?marker={marker}&all_tenants=0")).status == 400
            assert (await c.get(f"/servers?marker={theirs}&all_tenants=1", as_="admin")).status == 200
            assert await get_pages(c, f"/servers?marker={everything[-1]}") == [[]]
            # Servers that are created or deleted between two requests do not shift the pages.
            first = await get_pages(c, "/servers?limit=5&sort_key=created_at&sort_dir=asc")
            async with c.db.transaction() as tx:
                await insert_server(tx, new_id(), created_at=0.5)
                await tx.execute("UPDATE servers SET deleted = TRUE WHERE id = $1", first[0][-1])
            answer = await c.get(f"/servers?limit=5&sort_key=created_at&sort_dir=asc&marker={first[0][-1]}")
            assert [server["id"] for server in answer.json()["servers"]] == first[1]

    run(scenario())
