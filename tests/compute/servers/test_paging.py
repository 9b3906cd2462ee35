"""Pages of the lists of servers: nothing is lost, nothing comes twice, whatever the order."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import orjson

from kilonova.ids import new_id
from tests.compute.servers.test_listing import FLAVOR
from tests.support import run
from tests.support.cloud import OTHER, Cloud, cloud, fault, insert_server
from tests.support.proves import proves

NUMBER = 23
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
]


async def fill(c: Cloud) -> None:
    """Servers that are alike in all that they can be sorted by, many times over."""
    chance = random.Random(7)
    async with c.db.transaction() as tx:
        for _ in range(NUMBER):
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


async def pages(c: Cloud, path: str, **options: Any) -> list[list[str]]:
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
def test_every_order_page_by_page(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await fill(c)
            for order in ORDERS:
                (all_at_once,) = await pages(c, f"/servers?{order}")
                assert len(set(all_at_once)) == NUMBER
                for path in ("/servers", "/servers/detail"):
                    for limit in (1, 4, NUMBER - 1):
                        found = await pages(c, f"{path}?{order}&limit={limit}")
                        assert list(chain(*found)) == all_at_once, (order, limit)
                        assert {len(page) for page in found[:-1]} == {limit}

    run(scenario())


def test_the_order_is_what_was_asked_for(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await fill(c)
            query = "sort_key=key_name&sort_key=created_at&sort_dir=desc&sort_dir=asc"
            listed = (await c.get(f"/servers/detail?{query}")).json()["servers"]
            found = [(server["key_name"] or "", server["created"]) for server in listed]
            # Both ways at once: python sorts stably.
            assert found == sorted(sorted(found, key=lambda pair: pair[1]), key=lambda pair: pair[0], reverse=True)
            newest = [server["created"] for server in (await c.get("/servers/detail")).json()["servers"]]
            assert newest == sorted(newest, reverse=True)

    run(scenario())


def test_links_keep_the_query(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await fill(c)
            query = "limit=2&status=ACTIVE&status=SHUTOFF&name=%5BaB%5D&sort_key=display_name&sort_dir=asc"
            body = (await c.get(f"/servers/detail?{query}")).json()
            (link,) = body["servers_links"]
            assert link["rel"] == "next"
            last = body["servers"][-1]["id"]
            assert link["href"].startswith("http://localhost/compute/v2.1/servers/detail?")
            assert sorted(link["href"].partition("?")[2].split("&")) == sorted([*query.split("&"), f"marker={last}"])
            (rest,) = await pages(c, f"/servers?{query.replace('limit=2&', '')}")
            assert list(chain(*await pages(c, f"/servers?{query}"))) == rest

    run(scenario())


def test_the_edges_of_a_page(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, api__max_limit=10) as c:
            await fill(c)
            # Who names no limit gets the most there is at once, and the way to the rest.
            assert [len(page) for page in await pages(c, "/servers")] == [10, 10, 3]
            assert [len(page) for page in await pages(c, "/servers/detail?limit=1000")] == [10, 10, 3]
            assert (await c.get("/servers?limit=0")).json() == {"servers": []}

    run(scenario())


def test_markers(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await fill(c)
            (everything,) = await pages(c, "/servers")
            theirs = await c.db.fetch_value("SELECT id FROM servers WHERE project_id = $1", OTHER)
            for path in ("/servers", "/servers/detail"):
                for marker in ("nobody", new_id(), theirs, ""):
                    answer = await c.get(f"{path}?marker={marker}")
                    assert fault(answer) == (400, "badRequest", f"marker [{marker}] not found")
                    assert (await c.get(f"{path}?marker={marker}&all_tenants=0")).status == 400
            assert (await c.get(f"/servers?marker={theirs}&all_tenants=1", as_="admin")).status == 200
            assert await pages(c, f"/servers?marker={everything[-1]}") == [[]]
            # Rows that come and go meanwhile do not shift the pages.
            first = await pages(c, "/servers?limit=5&sort_key=created_at&sort_dir=asc")
            async with c.db.transaction() as tx:
                await insert_server(tx, new_id(), created_at=0.5)
                await tx.execute("UPDATE servers SET deleted = TRUE WHERE id = $1", first[0][-1])
            answer = await c.get(f"/servers?limit=5&sort_key=created_at&sort_dir=asc&marker={first[0][-1]}")
            assert [server["id"] for server in answer.json()["servers"]] == first[1]

    run(scenario())
