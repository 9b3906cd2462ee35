"""Migrations of real moves."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.compute.servers.moves import HOST, force_down, make_reachable, make_unreachable, run_move
from tests.compute.servers.support import act, make_flavor
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.route_coverage import proves

LIVE = {"host": None, "block_migration": "auto"}


async def newest(c: FullCloud, as_: str = "admin") -> dict[str, Any]:
    answer = await c.get("/os-migrations?limit=1", as_=as_, version="2.105")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()["migrations"][0]
    return found


async def decide(c: FullCloud, server_id: str, action: str) -> None:
    assert (await act(c, server_id, action)).status in (202, 204)
    await c.wait_until_settled(server_id)


@proves("GET /os-migrations")
def test_resize_migrate_and_live_migrate_are_listed(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server = await c.boot_active()
            server_id, source = server["id"], server[HOST]

            after = await run_move(c, server_id, "os-migrateLive", LIVE)
            shown = await newest(c)
            operation = await c.db.fetch_one("SELECT * FROM operations WHERE kind = 'live_migrate'")
            assert operation is not None
            assert (shown["migration_type"], shown["status"], shown["id"]) == ("live-migration", "completed", 1)
            assert (shown["uuid"], shown["instance_uuid"]) == (operation["id"], server_id)
            assert (shown["source_compute"], shown["source_node"]) == (source, source)
            assert (shown["dest_compute"], shown["dest_node"]) == (after[HOST], after[HOST])
            address = await c.db.fetch_value("SELECT host_ip FROM hypervisors WHERE host = $1", after[HOST])
            assert shown["dest_host"] == address
            assert (shown["user_id"], shown["project_id"]) == ("admin-id", DEMO)
            assert shown["old_instance_type_id"] == shown["new_instance_type_id"]
            assert shown["created_at"] < shown["updated_at"]
            assert (shown["reason"], "links" in shown) == (None, False)
            # Managers of the project see the migration without hosts.
            seen = await newest(c, as_="manager")
            assert (seen["uuid"], seen["source_compute"], seen["dest_host"]) == (shown["uuid"], None, None)

            await run_move(c, server_id, "migrate", None)
            assert (await newest(c))["status"] == "finished"
            await decide(c, server_id, "confirmResize")
            shown = await newest(c)
            assert (shown["migration_type"], shown["status"]) == ("migration", "confirmed")

            await run_move(c, server_id, "resize", {"flavorRef": "2"}, as_="member")
            await decide(c, server_id, "revertResize")
            shown = await newest(c)
            assert (shown["migration_type"], shown["status"], shown["user_id"]) == ("resize", "reverted", "member-id")
            numbers = {row["flavor_id"]: row["id"] for row in await c.db.fetch("SELECT id, flavor_id FROM flavors")}
            assert (shown["old_instance_type_id"], shown["new_instance_type_id"]) == (numbers["1"], numbers["2"])

            listed = (await c.get("/os-migrations", as_="admin", version="2.59")).json()["migrations"]
            assert [each["id"] for each in listed] == [3, 2, 1]

    run(scenario())


def test_failed_move_shows_its_reason(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            await make_flavor(c, "huge", ram=16000, disk=1)
            server_id = (await c.boot_active())["id"]
            await run_move(c, server_id, "resize", {"flavorRef": "huge"}, as_="member")
            for who in ("admin", "manager"):
                shown = await newest(c, as_=who)
                assert (shown["migration_type"], shown["status"]) == ("resize", "error")
                assert shown["dest_compute"] is None
                assert "lacks 16000 MB memory" in shown["reason"]

    run(scenario())


def test_evacuation_is_completed_after_cleanup_of_source(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            await make_unreachable(c, server[HOST])
            await force_down(c, server[HOST])
            await run_move(c, server["id"], "evacuate", {})
            shown = await newest(c)
            assert (shown["migration_type"], shown["status"]) == ("evacuation", "done")
            await make_reachable(c, server[HOST])
            async with c.db.transaction() as tx:
                await tx.execute(
                    "UPDATE operations SET run_at = 0 WHERE kind = 'clean_up_guest' AND finished_at IS NULL"
                )
                tx.notify("operations")
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while (later := await newest(c))["status"] == "done":
                    await asyncio.sleep(0.01)
            assert (later["status"], later["id"]) == ("completed", shown["id"])
            assert later["updated_at"] > shown["updated_at"]

    run(scenario())
