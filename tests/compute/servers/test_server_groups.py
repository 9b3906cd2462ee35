"""Servers in server groups: membership, quotas, scheduler hints, and policies under concurrent requests."""

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
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud

NO_QUOTAS: dict[str, Any] = {
    "quota__instances": -1,
    "quota__cores": -1,
    "quota__ram": -1,
    "quota__server_group_members": -1,
}


async def create_group(c: FullCloud, policy: str = "anti-affinity", as_: str = "member", **keys: Any) -> str:
    body = {"server_group": {"name": policy, "policy": policy, **keys}}
    answer = await c.post("/os-server-groups", body, as_=as_, version="2.64")
    assert answer.status == 200, answer.body
    made: str = answer.json()["server_group"]["id"]
    return made


async def request_boot(c: FullCloud, hints: dict[str, Any], key: str = "os:scheduler_hints", **options: Any) -> Any:
    as_, version = options.pop("as_", "member"), options.pop("version", "2.96")
    server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "none", **options}
    return await c.post("/servers", {"server": server, key: hints}, as_=as_, version=version)


async def boot(c: FullCloud, hints: dict[str, Any], **options: Any) -> str:
    answer = await request_boot(c, hints, **options)
    assert answer.status == 202, answer.body
    made: str = answer.json()["server"]["id"]
    return made


async def boot_and_settle(c: FullCloud, hints: dict[str, Any], **options: Any) -> dict[str, Any]:
    return await c.wait_until_settled(await boot(c, hints, **options))


async def count_by_host(c: FullCloud, group_id: str) -> Counter[str]:
    """The number of active members on each host."""
    members = (await c.get(f"/os-server-groups/{group_id}", version="2.64")).json()["server_group"]["members"]
    shown = [await c.wait_until_settled(server_id) for server_id in members]
    return Counter(server["OS-EXT-SRV-ATTR:host"] for server in shown if server["status"] == "ACTIVE")


async def wait_for_spawning(c: FullCloud, group_id: str) -> None:
    """Wait until all members have a host and are in task state spawning."""
    members = (await c.get(f"/os-server-groups/{group_id}", version="2.64")).json()["server_group"]["members"]
    async with asyncio.timeout(TIMEOUT_SECONDS):
        for server_id in members:
            while (await c.show(server_id))["OS-EXT-STS:task_state"] != "spawning":
                await asyncio.sleep(0.01)


class TestMembers:
    def test_server_is_member_from_creation_to_deletion(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                group_id = await create_group(c)
                server_id = await boot(c, {"group": group_id})

                async def members() -> Any:
                    shown = (await c.get(f"/os-server-groups/{group_id}", version="2.64")).json()
                    return shown["server_group"]["members"]

                assert await members() == [server_id]
                await c.wait_until_settled(server_id)
                shown = await c.show(server_id, version="2.100")
                assert shown["server_groups"] == [group_id]
                assert shown["scheduler_hints"] == {"group": [group_id]}
                assert "server_groups" not in await c.show(server_id, version="2.70")
                assert (await c.show((await c.boot_active())["id"], version="2.71"))["server_groups"] == []
                renamed = await c.put(f"/servers/{server_id}", {"server": {"name": "t"}}, version="2.71")
                assert renamed.json()["server"]["server_groups"] == [group_id]
                await c.delete(f"/servers/{server_id}")
                await c.wait_until_deleted(server_id)
                assert await members() == []

        run(scenario())

    def test_group_deletion_keeps_servers(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=1) as c:
                group_id = await create_group(c)
                server = await boot_and_settle(c, {"group": group_id})
                assert (await c.delete(f"/os-server-groups/{group_id}")).status == 204
                shown = await c.show(server["id"], version="2.71")
                assert (shown["status"], shown["server_groups"]) == ("ACTIVE", [])
                await c.delete(f"/servers/{server['id']}")
                await c.wait_until_deleted(server["id"])

        run(scenario())

    def test_server_group_members_quota(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, quota__server_group_members=3) as c:
                group_id = await create_group(c, "soft-affinity")
                answer = await request_boot(c, {"group": group_id}, min_count=4)
                assert fault(answer)[:2] == (403, "forbidden")
                answers = await asyncio.gather(*(request_boot(c, {"group": group_id}) for _ in range(5)))
                assert sorted(answer.status for answer in answers) == [202] * 3 + [403] * 2
                assert await c.db.fetch_value("SELECT COUNT(*) FROM servers") == 3
                other = await create_group(c, "soft-affinity")
                # Between min_count and max_count, the quota decides.
                assert (await request_boot(c, {"group": other}, min_count=2, max_count=5)).status == 202
                assert await c.db.fetch_value("SELECT COUNT(*) FROM server_group_members") == 6

        run(scenario())


class TestHints:
    def test_server_group_members_quota_of_a_user(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, quota__server_group_members=4) as c:
                group_id = await create_group(c, "soft-affinity")
                async with c.db.transaction() as tx:
                    await quotas.set_user_limits(tx, DEMO, "member-id", {"server_group_members": 2})
                assert (await request_boot(c, {"group": group_id}, min_count=3)).status == 403
                assert (await request_boot(c, {"group": group_id}, max_count=3)).status == 202
                answer = await request_boot(c, {"group": group_id})
                assert fault(answer)[::2] == (
                    403,
                    "Quota exceeded, too many servers in group: 2 of 2 members",
                )
                # Other users of the project have the rest of the project's limit.
                answer = await request_boot(c, {"group": group_id}, as_="project-admin", min_count=2, max_count=3)
                assert answer.status == 202
                assert await c.db.fetch_value("SELECT COUNT(*) FROM server_group_members") == 4

        run(scenario())

    def test_group_of_another_project_is_not_found(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=1) as c:
                theirs = await create_group(c, as_="other")
                for unknown in (theirs, "11111111-2222-3333-4444-555555555555"):
                    answer = await request_boot(c, {"group": unknown})
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
    def test_bad_hints_are_refused(self, sqlite_url: str, hints: Any) -> None:
        async def scenario() -> None:
            async with full_cloud(sqlite_url, hosts=1) as c:
                for key in ("os:scheduler_hints", "OS-SCH-HNT:scheduler_hints"):
                    assert (await request_boot(c, hints, key)).status == 400

        run(scenario())

    def test_unknown_hints_are_stored_and_shown(self, database_url: str) -> None:
        hints = {
            "colour": {"of": ["the", "house", 1]},
            "query": '[">=","$free_ram_mb",1024]',
            "build_near_host_ip": "10.0.0.1",
            "cidr": "/24",
        }

        async def scenario() -> None:
            async with full_cloud(database_url, hosts=1) as c:
                for key in ("os:scheduler_hints", "OS-SCH-HNT:scheduler_hints"):
                    server_id = await boot(c, hints, key=key)
                    assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"
                    assert (await c.show(server_id, version="2.100"))["scheduler_hints"] == {
                        name: [value] for name, value in hints.items()
                    }

        run(scenario())

    def test_same_host_and_different_host_hints(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=3) as c:
                first = await c.boot_active()
                here = first["OS-EXT-SRV-ATTR:host"]
                for _ in range(2):
                    near = await boot_and_settle(c, {"same_host": first["id"]})
                    assert near["OS-EXT-SRV-ATTR:host"] == here
                second = await boot_and_settle(c, {"different_host": first["id"]})
                assert second["OS-EXT-SRV-ATTR:host"] != here
                third = await boot_and_settle(c, {"different_host": [first["id"], second["id"]]})
                hosts = {server["OS-EXT-SRV-ATTR:host"] for server in (first, second, third)}
                assert len(hosts) == 3
                both = {"different_host": [server["id"] for server in (first, second, third)]}
                shown = await boot_and_settle(c, both)
                assert shown["status"] == "ERROR"
                assert shown["fault"]["message"].startswith("No valid host was found: 3 hosts: 3 ")
                shown = await boot_and_settle(c, {"same_host": "11111111-2222-3333-4444-555555555555"})
                assert shown["status"] == "ERROR"

        run(scenario())

    def test_host_hints_ignore_servers_of_other_projects(self, sqlite_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(sqlite_url, hosts=1) as c:
                theirs = await c.boot_active()
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE servers SET project_id = 'other' WHERE id = $1", theirs["id"])
                assert (await boot_and_settle(c, {"different_host": theirs["id"]}))["status"] == "ACTIVE"
                assert (await boot_and_settle(c, {"same_host": theirs["id"]}))["status"] == "ERROR"

        run(scenario())


class TestPolicies:
    def test_anti_affinity_in_one_request(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=6, **NO_QUOTAS) as c:
                group_id = await create_group(c)
                await boot(c, {"group": group_id}, min_count=6)
                assert await count_by_host(c, group_id) == dict.fromkeys(c.hosts.names, 1)
                shown = await boot_and_settle(c, {"group": group_id})
                assert shown["status"] == "ERROR"
                assert shown["fault"]["message"].startswith("No valid host was found: 6 hosts: 6 ")

        run(scenario())

    def test_affinity_in_one_request(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=6, **NO_QUOTAS) as c:
                group_id = await create_group(c, "affinity")
                await boot(c, {"group": group_id}, min_count=8)
                assert list((await count_by_host(c, group_id)).values()) == [8]
                # A server that does not fit fails, and the others stay.
                await make_flavor(c, "large", ram=15872)
                shown = await boot_and_settle(c, {"group": group_id}, flavorRef="large")
                assert shown["status"] == "ERROR"
                assert shown["fault"]["message"].startswith("No valid host was found: 6 hosts: ")

        run(scenario())

    def test_affinity_group_moves_together_to_another_host_after_failed_builds(self, database_url: str) -> None:
        """The first server to fail finds the others on the host, and waits whether they leave too."""

        async def scenario() -> None:
            async with full_cloud(database_url, hosts=3, **NO_QUOTAS) as c:
                group_id = await create_group(c, "affinity")
                with rules(c) as sim:
                    sim.add_failure("sim-*", "spawn", "hang", None, None)
                    sim.add_failure("*", "spawn", "error", 4, "no more")
                    await boot(c, {"group": group_id}, min_count=4)
                    await wait_for_spawning(c, group_id)
                    sim.clear("sim-*")
                    assert list((await count_by_host(c, group_id)).values()) == [4]

        run(scenario())

    def test_affinity_fault_if_one_build_fails_on_the_common_host(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=3, **NO_QUOTAS) as c:
                group_id = await create_group(c, "affinity")
                with rules(c) as sim:
                    sim.add_failure("sim-*", "spawn", "hang", None, None)
                    sim.add_failure("*", "spawn", "error", 1, "no more")
                    await boot(c, {"group": group_id}, min_count=3)
                    await wait_for_spawning(c, group_id)
                    sim.clear("sim-*")
                    assert list((await count_by_host(c, group_id)).values()) == [2]
                members = (await c.get(f"/os-server-groups/{group_id}", version="2.64")).json()["server_group"]
                shown = [await c.show(server_id) for server_id in members["members"]]
                [refused] = [server["fault"]["message"] for server in shown if server["status"] == "ERROR"]
                assert refused.startswith("No valid host was found: 3 hosts: ")
                assert "without the servers of its affinity group" in refused

        run(scenario())

    def test_policies_hold_for_concurrent_requests(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=5, **NO_QUOTAS) as c:
                apart, together = await create_group(c), await create_group(c, "affinity")
                several = await create_group(c, rules={"max_server_per_host": 2})
                await asyncio.gather(
                    *(boot(c, {"group": apart}) for _ in range(7)),
                    *(boot(c, {"group": together}) for _ in range(7)),
                    *(boot(c, {"group": several}) for _ in range(11)),
                )
                assert await count_by_host(c, apart) == dict.fromkeys(c.hosts.names, 1)
                assert list((await count_by_host(c, together)).values()) == [7]
                assert await count_by_host(c, several) == dict.fromkeys(c.hosts.names, 2)

        run(scenario())

    def test_soft_policies_are_followed_while_possible(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=3, **NO_QUOTAS) as c:
                # Weights that outweigh the load of the hosts.
                config = SchedulerConfig(weights={"soft_affinity": 10.0, "soft_anti_affinity": 10.0})
                c.services.scheduler = Scheduler(c.db, config, down_seconds=c.services.config.hosts.down_seconds)
                apart, together = await create_group(c, "soft-anti-affinity"), await create_group(c, "soft-affinity")
                for _ in range(3):
                    assert (await boot_and_settle(c, {"group": apart}))["status"] == "ACTIVE"
                    assert (await boot_and_settle(c, {"group": together}))["status"] == "ACTIVE"
                assert set((await count_by_host(c, apart)).values()) == {1}
                assert list((await count_by_host(c, together)).values()) == [3]
                await make_flavor(c, "most", ram=14000)
                for group_id in (apart, together):
                    shown = await boot_and_settle(c, {"group": group_id}, flavorRef="most")
                    assert shown["status"] == "ACTIVE"
                assert set((await count_by_host(c, apart)).values()) == {1, 2}
                assert sorted((await count_by_host(c, together)).values()) == [1, 3]

        run(scenario())

    def test_policy_holds_for_a_forced_host(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2) as c:
                group_id = await create_group(c, as_="project-admin")
                options = {"as_": "project-admin", "availability_zone": "nova:sim-001"}
                assert (await boot_and_settle(c, {"group": group_id}, **options))["status"] == "ACTIVE"
                shown = await boot_and_settle(c, {"group": group_id}, **options)
                assert "1 has a server of its anti-affinity group" in shown["fault"]["message"]
                assert await count_by_host(c, group_id) == {"sim-001": 1}

        run(scenario())

    def test_failed_build_frees_the_host_for_anti_affinity(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=3, **NO_QUOTAS) as c:
                with rules(c) as sim:
                    sim.add_failure("*", "spawn", "error", 3, "the disk is on fire")
                group_id = await create_group(c)
                made = [await boot(c, {"group": group_id}) for _ in range(3)]
                for server_id in made:
                    await c.wait_until_settled(server_id)
                assert set((await count_by_host(c, group_id)).values()) <= {1}

        run(scenario())
