"""migrate: a cold migration with or without a host, its confirmation and reversal, and refusals."""

from __future__ import annotations

from typing import Any

from tests.compute.servers.actions.test_resize import (
    ROUTE,
    TINY_RESOURCES,
    allocations_of,
    confirm,
    guest_disks,
    revert,
)
from tests.compute.servers.moves import HOST, action_refusal, newest_action, run_move
from tests.support import run
from tests.support.full_cloud import full_cloud
from tests.support.route_coverage import proves


@proves(ROUTE + "migrate")
def test_cold_migrate_and_revert_or_confirm(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3) as c:
            server = await c.boot_active()
            server_id, source, disk = server["id"], server[HOST], await guest_disks(c)
            target = next(name for name in c.hosts.names if name != source)
            for body, expected_host in ((None, None), ({}, None), ({"host": None}, None), ({"host": target}, target)):
                shown = await run_move(c, server_id, "migrate", body)
                assert (shown["status"], shown["flavor"]) == ("VERIFY_RESIZE", server["flavor"])
                assert shown[HOST] == expected_host if expected_host else shown[HOST] != source
                assert await allocations_of(c, server_id) == {
                    "server": (shown[HOST], TINY_RESOURCES),
                    "MIGRATION": (source, TINY_RESOURCES),
                }
                assert (await newest_action(c, server_id))["action"] == "migrate"
                assert (await revert(c, server_id))[HOST] == source
            shown = await run_move(c, server_id, "migrate", {"host": target}, as_="admin")
            assert (await confirm(c, server_id))[HOST] == target
            assert await guest_disks(c) == disk
            assert await allocations_of(c, server_id) == {"server": (target, TINY_RESOURCES)}

    run(scenario())


def test_migrate_refuses_bad_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            server_id, source = server["id"], server[HOST]

            async def refusal(body: Any, version: str = "2.56") -> tuple[int, str]:
                return await action_refusal(c, server_id, "migrate", body, version=version)

            assert await refusal({"host": "unknown"}) == (400, "Compute host unknown could not be found.")
            assert await refusal({"host": source}) == (400, "The target host can't be the same one.")
            wrong: tuple[Any, ...] = ({"host": ""}, {"host": "a b"}, {"host": 1}, {"hosts": source}, "x", [])
            for body in wrong:
                assert (await refusal(body))[0] == 400, body
            # Before 2.56 the host is ignored.
            shown = await run_move(c, server_id, "migrate", {"host": "unknown"}, version="2.55", as_="manager")
            assert shown["status"] == "VERIFY_RESIZE"

    run(scenario())
