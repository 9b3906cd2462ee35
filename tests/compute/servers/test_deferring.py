"""Deleting for a while: what is seen of it, what it counts, restoring, and deleting for good."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.compute.duties import duties, reclaim_deleted
from tests.compute.operations.test_silence import QUICK, all_done
from tests.compute.servers.moves import HOST, find_again, lose
from tests.compute.servers.shelved import shelved
from tests.compute.servers.support import NOTHING, act, holdings, rules
from tests.compute.servers.test_halting import done, refusal, seen
from tests.compute.servers.test_rescuing import rescue, rescued_with
from tests.support import run
from tests.support.cloud import fault
from tests.support.proves import proves
from tests.support.whole import Whole, whole

ACTION = "POST /servers/{server_id}/action#"
HOUR: dict[str, Any] = {"compute__reclaim_seconds": 3600}


async def delete(c: Whole, server_id: str) -> dict[str, Any]:
    assert (await c.delete(f"/servers/{server_id}")).status == 204
    return await c.settled(server_id)


async def names(c: Whole, query: str = "", as_: str = "member") -> list[str]:
    answer = await c.get(f"/servers{query}", as_=as_, version="2.96")
    assert answer.status == 200, answer.body
    return [server["name"] for server in answer.json()["servers"]]


@proves(ACTION + "restore", ACTION + "forceDelete")
def test_a_deleted_server_comes_back(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1, quota__instances=1, **HOUR) as c:
            server_id = (await c.active(name="web"))["id"]
            assert (await refusal(c, server_id, "restore")).endswith("vm_state active")
            assert seen(await delete(c, server_id)) == ("SOFT_DELETED", "soft-delete", 4)
            assert (await c.guests())[server_id][1] == "shutdown"
            assert await holdings(c, server_id) == {"allocations": 3, "ports": 1, "guests": 1}
            assert await names(c) == []
            assert await names(c, "?status=SOFT_DELETED") == ["web"]
            for action in ("os-start", "pause", "shelve"):
                assert (await refusal(c, server_id, action)).endswith("vm_state soft-delete")
            assert seen(await delete(c, server_id)) == ("SOFT_DELETED", "soft-delete", 4)
            other = (await c.active(name="other"))["id"]
            assert fault(await act(c, server_id, "restore"))[0] == 403, "somebody has used the quota since"
            assert (await act(c, other, "forceDelete")).status == 202
            await c.gone(other)
            assert seen(await done(c, server_id, "restore")) == ("ACTIVE", "active", 1)
            assert (await c.guests())[server_id][1] == "running"
            assert await names(c) == ["web"]
            await delete(c, server_id)
            assert (await act(c, server_id, "forceDelete")).status == 202
            await c.gone(server_id)
            assert await holdings(c, server_id) == NOTHING
            listed = (await c.get(f"/servers/{server_id}/os-instance-actions", version="2.21")).json()
            told = [one["action"] for one in listed["instanceActions"]]
            assert told == ["delete", "delete", "restore", "delete", "create"]

    run(scenario())


def test_time_passes(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1, **HOUR) as c:
            assert reclaim_deleted in duties()
            early, late, alive = [(await c.active(name=name))["id"] for name in ("early", "late", "alive")]
            for server_id in (early, late):
                await delete(c, server_id)
            await reclaim_deleted.run(c.services)
            async with c.db.transaction() as tx:
                sql = "UPDATE servers SET soft_deleted_at = soft_deleted_at - 3600 WHERE id = $1"
                await tx.execute(sql, early)
            await asyncio.gather(*(reclaim_deleted.run(c.services) for _ in range(4)))
            await c.gone(early)
            assert await holdings(c, early) == NOTHING
            made = await c.db.fetch("SELECT server_id, user_id, request_id FROM operations WHERE kind = 'delete'")
            assert [(row["server_id"], row["user_id"]) for row in made] == [(early, "member-id")]
            assert made[0]["request_id"].startswith("req-")
            assert (await c.show(late))["status"] == "SOFT_DELETED"
            assert (await c.show(alive))["status"] == "ACTIVE"

    run(scenario())


def test_what_is_deleted_at_once(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1, **HOUR) as c:
            with rules(c) as sim:
                sim.add_failure("*", "spawn", "hang", 1, None)
                building = (await c.boot())["id"]
                assert (await c.delete(f"/servers/{building}")).status == 204
                sim.clear()
            await c.gone(building)
            off = (await shelved(c))["id"]
            assert (await c.delete(f"/servers/{off}")).status == 204
            await c.gone(off)

    run(scenario())


def test_other_states_and_silent_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1, **QUICK, **HOUR) as c:
            server = await c.active()
            server_id = server["id"]
            await rescue(c, server_id)
            assert (await delete(c, server_id))["status"] == "SOFT_DELETED"
            assert (await done(c, server_id, "restore"))["status"] == "ACTIVE"
            assert rescued_with(c, server) is None
            await done(c, server_id, "suspend")
            assert (await delete(c, server_id))["status"] == "SOFT_DELETED"
            assert seen(await done(c, server_id, "restore")) == ("ACTIVE", "active", 1)
            await lose(c, server[HOST])
            assert (await delete(c, server_id))["status"] == "SOFT_DELETED"
            await find_again(c, server[HOST])
            await all_done(c)
            assert (await c.guests())[server_id][1] == "shutdown"

    run(scenario())
