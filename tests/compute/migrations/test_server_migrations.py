"""GET /servers/{id}/migrations: only running live migrations."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compute.migrations.support import put_move
from tests.support import run
from tests.support.cloud import DEMO, OTHER, Cloud, cloud, fault, put_server
from tests.support.route_coverage import proves

A, B = (letter * 8 + "-1111-1111-1111-111111111111" for letter in "ab")
HOST_FIELDS = ("source_compute", "source_node", "dest_compute", "dest_host", "dest_node")
BYTES = [f"{kind}_{part}_bytes" for kind in ("memory", "disk") for part in ("total", "processed", "remaining")]
FIRST_FIELDS = {"id", "server_uuid", "status", "created_at", "updated_at", *HOST_FIELDS, *BYTES}
MOVED = {"memory_total": 1000, "memory_processed": 400, "disk_total": 500, "disk_processed": 500}
FAILURE = {"type": "Failed", "message": "The host does not answer", "fault": None}


async def listed(c: Cloud, server_id: str = A, as_: str = "admin", version: str = "2.80") -> list[dict[str, Any]]:
    answer = await c.get(f"/servers/{server_id}/migrations", as_=as_, version=version)
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["migrations"]
    return found


@proves("GET /servers/{server_id}/migrations", "GET /servers/{server_id}/migrations/{migration_id}")
def test_running_live_migration(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            await put_server(c.db, A, host="host1")
            uuid = await put_move(c, A, step="migrate guest", at=1000.0, updated_at=1001.5, transfer=MOVED)
            expected = {
                "id": 1,
                "uuid": uuid,
                "server_uuid": A,
                "status": "running",
                "source_compute": "host1",
                "source_node": "host1.example",
                "dest_compute": "host2",
                "dest_host": "10.0.0.1",
                "dest_node": "host2.example",
                "memory_total_bytes": 1000,
                "memory_processed_bytes": 400,
                "memory_remaining_bytes": 600,
                "disk_total_bytes": 500,
                "disk_processed_bytes": 500,
                "disk_remaining_bytes": 0,
                "user_id": "member-id",
                "project_id": DEMO,
                "created_at": "1970-01-01T00:16:40.000000",
                "updated_at": "1970-01-01T00:16:41.500000",
            }
            assert await listed(c) == [expected]
            answer = await c.get(f"/servers/{A}/migrations/1", as_="admin", version="2.80")
            assert answer.json() == {"migration": expected}

    run(scenario())


@pytest.mark.parametrize(
    "version, more", [("2.23", set()), ("2.59", {"uuid"}), ("2.80", {"uuid", "user_id", "project_id"})]
)
def test_fields_by_version(sqlite_url: str, version: str, more: set[str]) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            await put_server(c.db, A)
            await put_move(c, A)
            (shown,) = await listed(c, version=version)
            one = (await c.get(f"/servers/{A}/migrations/1", as_="admin", version=version)).json()["migration"]
            assert shown.keys() == one.keys() == FIRST_FIELDS | more
            assert [shown[name] for name in BYTES] == [None] * 6

    run(scenario())


@pytest.mark.parametrize(
    "values, word",
    [
        *(({"step": step}, "queued") for step in ("choose host", "claim", "wait for slot")),
        *(({"step": step}, "preparing") for step in ("prepare destination", "bind ports")),
        ({"step": "migrate guest"}, "running"),
        *(({"step": step}, "post-migrating") for step in ("move ports", "hand over")),
        ({"state": "undoing", "step": "claim", "error": FAILURE, "undo_to": "choose host"}, "queued"),
        ({"state": "undoing", "error": FAILURE}, None),
        *(({"state": state}, None) for state in ("done", "failed", "cancelled")),
        *(({"type": type}, None) for type in ("resize", "migration", "evacuation")),
    ],
)
def test_only_running_migrations_are_listed(database_url: str, values: dict[str, Any], word: str | None) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await put_server(c.db, A)
            await put_move(c, A, **values)
            one = await c.get(f"/servers/{A}/migrations/1", as_="admin", version="2.23")
            if word is None:
                assert await listed(c) == []
                assert fault(one)[0] == 404
            else:
                assert [each["status"] for each in await listed(c)] == [word]
                assert one.json()["migration"]["status"] == word

    run(scenario())


def test_migrations_of_other_servers_are_not_found(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            for server_id in (A, B):
                await put_server(c.db, server_id)
            uuid = await put_move(c, A)
            assert [each["id"] for each in await listed(c)] == [1]
            assert await listed(c, B) == []
            for path in (f"{B}/migrations/1", f"{A}/migrations/2", f"{A}/migrations/01", f"{A}/migrations/{uuid}"):
                assert fault(await c.get(f"/servers/{path}", as_="admin", version="2.23"))[0] == 404

    run(scenario())


@pytest.mark.parametrize(
    "who, index, show",
    [
        ("admin", 200, 200),
        ("system", 200, 200),
        ("project-admin", 200, 200),
        ("manager", 200, 403),
        ("member", 403, 403),
        ("reader", 403, 403),
        ("other", 404, 404),
    ],
)
def test_policies(database_url: str, who: str, index: int, show: int) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await put_server(c.db, A)
            await put_move(c, A)
            assert (await c.get(f"/servers/{A}/migrations", as_=who, version="2.23")).status == index
            assert (await c.get(f"/servers/{A}/migrations/1", as_=who, version="2.23")).status == show

    run(scenario())


def test_managers_do_not_see_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            await put_server(c.db, A)
            await put_move(c, A)
            (shown,) = await listed(c, as_="manager")
            assert [shown[name] for name in HOST_FIELDS] == [None] * 5
            (shown,) = await listed(c)
            assert all(shown[name] for name in HOST_FIELDS)

    run(scenario())


def test_routes_begin_with_2_23_and_refuse_query_keys_from_2_102(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await put_server(c.db, A)
            await put_server(c.db, B, project_id=OTHER)
            await put_move(c, A)
            for path in (f"/servers/{A}/migrations", f"/servers/{A}/migrations/1"):
                for version, query, expected in (
                    ("2.22", "", 404),
                    ("2.23", "", 200),
                    ("2.101", "?x=1", 200),
                    ("2.102", "?x=1", 400),
                ):
                    answer = await c.get(path + query, as_="admin", version=version)
                    assert answer.status == expected, (path, version, answer.body)
            nobody = "11111111-1111-1111-1111-111111111111"
            assert fault(await c.get(f"/servers/{nobody}/migrations", as_="admin", version="2.23"))[0] == 404

    run(scenario())
