"""Servers in groups: together or apart as the group says, also when many are made at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from kilonova.compute.quotas import model as quotas
from kilonova.scheduler import Scheduler, SchedulerConfig
from tests.compute.servers.support import make_flavor, rules
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.whole import PATIENCE, Whole, whole

MANY: dict[str, Any] = {
    "quota__instances": -1,
    "quota__cores": -1,
    "quota__ram": -1,
    "quota__server_group_members": -1,
}


async def group(c: Whole, policy: str = "anti-affinity", as_: str = "member", **keys: Any) -> str:
    body = {"server_group": {"name": policy, "policy": policy, **keys}}
    answer = await c.post("/os-server-groups", body, as_=as_, version="2.64")
    assert answer.status == 200, answer.body
    made: str = answer.json()["server_group"]["id"]
    return made


async def ask(c: Whole, hints: dict[str, Any], key: str = "os:scheduler_hints", **options: Any) -> Any:
    as_, version = options.pop("as_", "member"), options.pop("version", "2.96")
    server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "none", **options}
    return await c.post("/servers", {"server": server, key: hints}, as_=as_, version=version)


async def boot(c: Whole, hints: dict[str, Any], **options: Any) -> str:
    answer = await ask(c, hints, **options)
    assert answer.status == 202, answer.body
    made: str = answer.json()["server"]["id"]
    return made


async def settled(c: Whole, hints: dict[str, Any], **options: Any) -> dict[str, Any]:
    return await c.settled(await boot(c, hints, **options))


async def placed(c: Whole, group_id: str) -> Counter[str]:
    """How many of the group's servers are on each host."""
    members = (await c.get(f"/os-server-groups/{group_id}", version="2.64")).json()["server_group"]["members"]
    shown = [await c.settled(server_id) for server_id in members]
    return Counter(server["OS-EXT-SRV-ATTR:host"] for server in shown if server["status"] == "ACTIVE")


async def spawning(c: Whole, group_id: str) -> None:
    """Until every server of the group has gone to its host, none being built yet."""
    members = (await c.get(f"/os-server-groups/{group_id}", version="2.64")).json()["server_group"]["members"]
    async with asyncio.timeout(PATIENCE):
        for server_id in members:
            while (await c.show(server_id))["OS-EXT-STS:task_state"] != "spawning":
                await asyncio.sleep(0.01)


class TestMembers:
    def test_from_creation_to_deletion(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url) as c:
                group_id = await group(c)
                server_id = await boot(c, {"group": group_id})

                async def members() -> Any:
                    shown = (await c.get(f"/os-server-groups/{group_id}", version="2.64")).json()
                    return shown["server_group"]["members"]

                assert await members() == [server_id]
                await c.settled(server_id)
                shown = await c.show(server_id, version="2.100")
                assert shown["server_groups"] == [group_id]
                assert shown["scheduler_hints"] == {"group": group_id}
                assert "server_groups" not in await c.show(server_id, version="2.70")
                assert (await c.show((await c.active())["id"], version="2.71"))["server_groups"] == []
                renamed = await c.put(f"/servers/{server_id}", {"server": {"name": "t"}}, version="2.71")
                assert renamed.json()["server"]["server_groups"] == [group_id]
                await c.delete(f"/servers/{server_id}")
                await c.gone(server_id)
                assert await members() == []

        run(scenario())

    def test_servers_outlive_their_group(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=1) as c:
                group_id = await group(c)
                server = await settled(c, {"group": group_id})
                assert (await c.delete(f"/os-server-groups/{group_id}")).status == 204
                shown = await c.show(server["id"], version="2.71")
                assert (shown["status"], shown["server_groups"]) == ("ACTIVE", [])
                await c.delete(f"/servers/{server['id']}")
                await c.gone(server["id"])

        run(scenario())

    def test_the_quota_of_a_group(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, quota__server_group_members=3) as c:
                group_id = await group(c, "soft-affinity")
                answer = await ask(c, {"group": group_id}, min_count=4)
                assert fault(answer)[:2] == (403, "forbidden")
                answers = await asyncio.gather(*(ask(c, {"group": group_id}) for _ in range(5)))
                assert sorted(answer.status for answer in answers) == [202] * 3 + [403] * 2
                assert await c.db.fetch_value("SELECT COUNT(*) FROM servers") == 3
                other = await group(c, "soft-affinity")
                # Of several, as many as there is room for.
                assert (await ask(c, {"group": other}, min_count=2, max_count=5)).status == 202
                assert await c.db.fetch_value("SELECT COUNT(*) FROM server_group_members") == 6

        run(scenario())


class TestHints:
    def test_a_users_own_quota_of_a_group(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, quota__server_group_members=4) as c:
                group_id = await group(c, "soft-affinity")
                async with c.db.transaction() as tx:
                    await quotas.set_user_limits(tx, DEMO, "member-id", {"server_group_members": 2})
                assert (await ask(c, {"group": group_id}, min_count=3)).status == 403
                assert (await ask(c, {"group": group_id}, max_count=3)).status == 202
                answer = await ask(c, {"group": group_id})
                assert fault(answer)[::2] == (
                    403,
                    "Quota exceeded, too many servers in group: 2 there, 2 allowed",
                )
                # Others of the project have what the project's limit leaves.
                answer = await ask(c, {"group": group_id}, as_="project-admin", min_count=2, max_count=3)
                assert answer.status == 202
                assert await c.db.fetch_value("SELECT COUNT(*) FROM server_group_members") == 4

        run(scenario())

    def test_only_a_group_of_the_own_project(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=1) as c:
                theirs = await group(c, as_="other")
                for unknown in (theirs, "11111111-2222-3333-4444-555555555555"):
                    answer = await ask(c, {"group": unknown})
                    assert fault(answer)[::2] == (400, f"Instance group {unknown} could not be found.")
                assert await c.db.fetch_value("SELECT COUNT(*) FROM servers") == 0

        run(scenario())

    @pytest.mark.parametrize(
        "hints",
        [
            {"group": "web"},
            {"group": None},
            {"group": []},
            {"group": ["11111111-2222-3333-4444-555555555555"] * 2},
            {"same_host": "here"},
            {"same_host": ["here"]},
            {"different_host": {}},
            {"different_host": [1]},
            {"query": 1},
            {"target_cell": ""},
            {"build_near_host_ip": "here"},
            {"cidr": "24"},
            [],
            "group",
        ],
    )
    def test_nonsense_is_refused(self, sqlite_url: str, hints: Any) -> None:
        async def scenario() -> None:
            async with whole(sqlite_url, hosts=1) as c:
                for key in ("os:scheduler_hints", "OS-SCH-HNT:scheduler_hints"):
                    assert (await ask(c, hints, key)).status == 400

        run(scenario())

    def test_those_of_others_are_kept(self, database_url: str) -> None:
        hints = {
            "colour": {"of": ["the", "house", 1]},
            "query": '[">=","$free_ram_mb",1024]',
            "build_near_host_ip": "10.0.0.1",
            "cidr": "/24",
        }

        async def scenario() -> None:
            async with whole(database_url, hosts=1) as c:
                for key in ("os:scheduler_hints", "OS-SCH-HNT:scheduler_hints"):
                    server_id = await boot(c, hints, key=key)
                    assert (await c.settled(server_id))["status"] == "ACTIVE"
                    assert (await c.show(server_id, version="2.100"))["scheduler_hints"] == hints

        run(scenario())

    def test_same_and_different_host(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=3) as c:
                first = await c.active()
                here = first["OS-EXT-SRV-ATTR:host"]
                for _ in range(2):
                    near = await settled(c, {"same_host": first["id"]})
                    assert near["OS-EXT-SRV-ATTR:host"] == here
                second = await settled(c, {"different_host": first["id"]})
                assert second["OS-EXT-SRV-ATTR:host"] != here
                third = await settled(c, {"different_host": [first["id"], second["id"]]})
                hosts = {server["OS-EXT-SRV-ATTR:host"] for server in (first, second, third)}
                assert len(hosts) == 3
                both = {"different_host": [server["id"] for server in (first, second, third)]}
                shown = await settled(c, both)
                assert shown["status"] == "ERROR"
                assert shown["fault"]["message"].startswith("No valid host was found: 3 hosts: 3 ")
                nowhere = await settled(c, {"same_host": "11111111-2222-3333-4444-555555555555"})
                assert nowhere["status"] == "ERROR"

        run(scenario())

    def test_hints_tell_nothing_of_other_projects(self, sqlite_url: str) -> None:
        async def scenario() -> None:
            async with whole(sqlite_url, hosts=1) as c:
                theirs = await c.active()
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE servers SET project_id = 'other' WHERE id = $1", theirs["id"])
                assert (await settled(c, {"different_host": theirs["id"]}))["status"] == "ACTIVE"
                assert (await settled(c, {"same_host": theirs["id"]}))["status"] == "ERROR"

        run(scenario())


class TestPolicies:
    def test_apart_in_one_request(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=6, **MANY) as c:
                group_id = await group(c)
                await boot(c, {"group": group_id}, min_count=6)
                assert await placed(c, group_id) == dict.fromkeys(c.hosts.names, 1)
                shown = await settled(c, {"group": group_id})
                assert shown["status"] == "ERROR"
                assert shown["fault"]["message"].startswith("No valid host was found: 6 hosts: 6 ")

        run(scenario())

    def test_together_in_one_request(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=6, **MANY) as c:
                group_id = await group(c, "affinity")
                await boot(c, {"group": group_id}, min_count=8)
                assert list((await placed(c, group_id)).values()) == [8]
                # Whoever does not fit is told so, and the others stay.
                await make_flavor(c, "large", ram=15872)
                shown = await settled(c, {"group": group_id}, flavorRef="large")
                assert shown["status"] == "ERROR"
                assert shown["fault"]["message"].startswith("No valid host was found: 6 hosts: ")

        run(scenario())

    def test_all_leave_a_host_that_can_build_none_of_them(self, database_url: str) -> None:
        """Whoever fails first finds the others there, and waits whether they will leave too."""

        async def scenario() -> None:
            async with whole(database_url, hosts=3, **MANY) as c:
                group_id = await group(c, "affinity")
                with rules(c) as sim:
                    sim.add_failure("sim-*", "spawn", "hang", None, None)
                    sim.add_failure("*", "spawn", "error", 4, "no more")
                    await boot(c, {"group": group_id}, min_count=4)
                    await spawning(c, group_id)
                    sim.clear("sim-*")
                    assert list((await placed(c, group_id)).values()) == [4]

        run(scenario())

    def test_who_cannot_follow_the_others_is_told_so(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=3, **MANY) as c:
                group_id = await group(c, "affinity")
                with rules(c) as sim:
                    sim.add_failure("sim-*", "spawn", "hang", None, None)
                    sim.add_failure("*", "spawn", "error", 1, "no more")
                    await boot(c, {"group": group_id}, min_count=3)
                    await spawning(c, group_id)
                    sim.clear("sim-*")
                    assert list((await placed(c, group_id)).values()) == [2]
                members = (await c.get(f"/os-server-groups/{group_id}", version="2.64")).json()["server_group"]
                shown = [await c.show(server_id) for server_id in members["members"]]
                [refused] = [server["fault"]["message"] for server in shown if server["status"] == "ERROR"]
                assert refused.startswith("No valid host was found: 3 hosts: ")
                assert "without the servers of its affinity group" in refused

        run(scenario())

    def test_many_requests_at_once(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=5, **MANY) as c:
                apart, together = await group(c), await group(c, "affinity")
                several = await group(c, rules={"max_server_per_host": 2})
                await asyncio.gather(
                    *(boot(c, {"group": apart}) for _ in range(7)),
                    *(boot(c, {"group": together}) for _ in range(7)),
                    *(boot(c, {"group": several}) for _ in range(11)),
                )
                assert await placed(c, apart) == dict.fromkeys(c.hosts.names, 1)
                assert list((await placed(c, together)).values()) == [7]
                assert await placed(c, several) == dict.fromkeys(c.hosts.names, 2)

        run(scenario())

    def test_wishes_are_followed_while_they_can_be(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=3, **MANY) as c:
                # Enough for a wish to outweigh the load of the hosts.
                config = SchedulerConfig(weights={"soft_affinity": 10.0, "soft_anti_affinity": 10.0})
                c.services.scheduler = Scheduler(c.db, config, down_time=c.services.config.hosts.down_seconds)
                apart, together = await group(c, "soft-anti-affinity"), await group(c, "soft-affinity")
                for _ in range(3):
                    assert (await settled(c, {"group": apart}))["status"] == "ACTIVE"
                    assert (await settled(c, {"group": together}))["status"] == "ACTIVE"
                assert set((await placed(c, apart)).values()) == {1}
                assert list((await placed(c, together)).values()) == [3]
                await make_flavor(c, "most", ram=14000)
                for wish in (apart, together):
                    shown = await settled(c, {"group": wish}, flavorRef="most")
                    assert shown["status"] == "ACTIVE"
                assert set((await placed(c, apart)).values()) == {1, 2}
                assert sorted((await placed(c, together)).values()) == [1, 3]

        run(scenario())

    def test_the_policy_holds_for_a_forced_host_too(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2) as c:
                group_id = await group(c, as_="project-admin")
                options = {"as_": "project-admin", "availability_zone": "nova:sim-001"}
                assert (await settled(c, {"group": group_id}, **options))["status"] == "ACTIVE"
                shown = await settled(c, {"group": group_id}, **options)
                assert "1 has a server of its anti-affinity group" in shown["fault"]["message"]
                assert await placed(c, group_id) == {"sim-001": 1}

        run(scenario())

    def test_a_place_is_free_again_after_a_failed_build(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=3, **MANY) as c:
                with rules(c) as sim:
                    sim.add_failure("*", "spawn", "error", 3, "the disk is on fire")
                group_id = await group(c)
                made = [await boot(c, {"group": group_id}) for _ in range(3)]
                for server_id in made:
                    await c.settled(server_id)
                assert set((await placed(c, group_id)).values()) <= {1}

        run(scenario())
