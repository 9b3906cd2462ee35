"""Concurrent changes of identity objects: nothing refers to deleted objects, and no transaction ends in a deadlock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.identity.support import Cloud, cloud
from tests.support import run

ROUNDS = 8
ACTORS = 4


async def make(c: Cloud, admin: str, noun: str, **values: Any) -> str:
    return str((await c.ok("POST", f"/v3/{noun}s", admin, {noun: values}))[noun]["id"])


async def at_once(c: Cloud, admin: str, calls: Sequence[tuple[str, str]]) -> None:
    """Send all requests at the same time. An object may be there or not."""
    answers = await asyncio.gather(*(c.call(method, f"/v3/{path}", admin) for method, path in calls))
    assert {answer.status for answer in answers} <= {204, 404, 409}, [answer.body for answer in answers]


async def dangling(c: Cloud, table: str, column: str, referred: str, condition: str = "TRUE") -> list[Any]:
    sql = (
        f"SELECT * FROM {table} t WHERE {condition} AND NOT EXISTS (SELECT 1 FROM {referred} r WHERE r.id = t.{column})"
    )
    return await c.services.db.fetch(sql)


def test_nothing_refers_to_projects_of_a_deleted_domain(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, role_id = await c.login("admin"), await c.ident("role", "member")
            groups = [await make(c, admin, "group", name=f"g{number}") for number in range(ACTORS)]
            for number in range(ROUNDS):
                domain = await make(c, admin, "domain", name=f"d{number}", enabled=False)
                projects = [await make(c, admin, "project", name=f"p{n}", domain_id=domain) for n in range(3)]
                places = [f"domains/{domain}", *(f"projects/{project}" for project in projects)]
                grants = [("PUT", f"{place}/groups/{each}/roles/{role_id}") for each in groups for place in places]
                half = len(grants) // 2
                await at_once(c, admin, [*grants[:half], ("DELETE", f"domains/{domain}"), *grants[half:]])
            table = "group_role_assignments"
            assert await dangling(c, table, "target_id", "projects", "target_kind = 'project'") == []
            assert await dangling(c, table, "target_id", "domains", "target_kind = 'domain'") == []

    run(scenario())


def test_projects_keep_no_deleted_endpoints(database_url: str, tmp_path: Path) -> None:
    """A project with endpoints has no others in its catalogue, and a deleted endpoint cannot be removed."""

    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            projects = [await make(c, admin, "project", name=f"p{number}") for number in range(ACTORS)]
            for number in range(ROUNDS):
                service = await make(c, admin, "service", type="t")
                of = {"service_id": service, "interface": "public", "url": "http://x"}
                endpoints = [await make(c, admin, "endpoint", **of) for _ in range(2)]
                added = [("PUT", f"OS-EP-FILTER/projects/{p}/endpoints/{e}") for p in projects for e in endpoints]
                deleted = f"services/{service}" if number % 2 else f"endpoints/{endpoints[0]}"
                await at_once(c, admin, [*added[:ACTORS], ("DELETE", deleted), *added[ACTORS:]])
            assert await dangling(c, "endpoint_projects", "endpoint_id", "catalog_endpoints") == []

    run(scenario())


def test_concurrent_deletions_wait_for_each_other(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, role_id = await c.login("admin"), await c.ident("role", "member")
            for number in range(ROUNDS):
                domain = await make(c, admin, "domain", name=f"d{number}", enabled=False)
                project = await make(c, admin, "project", name="p", domain_id=domain)
                users = [await make(c, admin, "user", name=f"u{n}", domain_id=domain) for n in range(ACTORS)]
                groups = [await make(c, admin, "group", name=f"g{n}", domain_id=domain) for n in range(ACTORS)]
                members = [f"groups/{group}/users/{user}" for group in groups for user in users]
                actors = [*(f"groups/{group}" for group in groups), *(f"users/{user}" for user in users)]
                grants = [f"{place}/{a}/roles/{role_id}" for a in actors for place in (f"projects/{project}", "system")]
                for path in (*members, *grants):
                    await c.ok("PUT", f"/v3/{path}", admin, status=204)
                first, last = actors[::2], actors[1::2]
                deleted = [*members[::3], *first, *grants[::5], f"domains/{domain}", *members[1::3], *last]
                await at_once(c, admin, [("DELETE", path) for path in deleted])

    run(scenario())
