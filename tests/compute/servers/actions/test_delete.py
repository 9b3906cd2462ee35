"""DELETE /servers/{server_id}: in any state, repeated, and with all resources released."""

from __future__ import annotations

import asyncio

from tests.compute.servers.support import (
    NETWORK,
    NO_RESOURCES,
    act,
    count_resources,
    count_server_resources,
    make_port,
    rules,
    show_port,
    wait_for_fields,
)
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.route_coverage import proves

UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"


@proves("DELETE /servers/{server_id}")
def test_delete_releases_all_resources(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            before = await count_resources(c)
            servers = [(await c.boot_active())["id"] for _ in range(2)]
            await act(c, servers[1], "os-stop")
            await c.wait_until_settled(servers[1])
            for server_id in servers:
                answer = await c.delete(f"/servers/{server_id}")
                assert (answer.status, answer.body) == (204, b"")
            for server_id in servers:
                await c.wait_until_deleted(server_id)
                assert await count_server_resources(c, server_id) == NO_RESOURCES
                for method, body in (("GET", None), ("PUT", {"server": {"name": "x"}}), ("DELETE", None)):
                    answer = await c.request(method, f"/servers/{server_id}", json=body)
                    assert fault(answer) == (404, "itemNotFound", f"Instance {server_id} could not be found.")
                assert (await act(c, server_id, "os-start")).status == 404
            after = await count_resources(c)
            assert {**after, "operations": 0} == {**before, "operations": 0}
            assert (await c.get("/servers")).json() == {"servers": []}
            assert (await c.delete(f"/servers/{UNKNOWN_ID}")).status == 404
            assert (await c.delete("/servers/no-uuid")).status == 404

    run(scenario())


def test_concurrent_deletes_begin_one_operation(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "destroy", "hang", 1, None)
                answers = await asyncio.gather(*(c.delete(f"/servers/{server_id}") for _ in range(5)))
                assert {answer.status for answer in answers} == {204}
                shown = await wait_for_fields(c, server_id, OS_EXT_STS__task_state="deleting")
                assert shown["status"] == "ACTIVE"
                status, _, message = fault(await act(c, server_id, "os-stop"))
                assert (status, "task_state deleting" in message) == (409, True)
                sim.clear()
            await c.wait_until_deleted(server_id)
            kinds = await c.db.fetch("SELECT kind FROM operations WHERE server_id = $1 ORDER BY seq", server_id)
            assert [row["kind"] for row in kinds] == ["boot", "delete"]

    run(scenario())


def test_delete_during_build(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            before = await count_resources(c)
            with rules(c) as sim:
                sim.set_latency("*", "spawn", 300.0)
                spawning = (await c.boot())["id"]
                await wait_for_fields(c, spawning, OS_EXT_STS__task_state="spawning")
                queued = [(await c.boot())["id"] for _ in range(3)]
                for server_id in (spawning, *queued):
                    assert (await c.delete(f"/servers/{server_id}")).status == 204
                for server_id in (spawning, *queued):
                    await c.wait_until_deleted(server_id)
            assert {**await count_resources(c), "operations": 0} == {**before, "operations": 0}

    run(scenario())


def test_delete_during_reboot(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "reboot", "hang", 1, None)
                await act(c, server_id, "reboot", {"type": "HARD"})
                await wait_for_fields(c, server_id, status="HARD_REBOOT")
                assert (await c.delete(f"/servers/{server_id}")).status == 204
                found = (await c.get("/servers?status=HARD_REBOOT")).json()["servers"]
                assert found == []
                await c.wait_until_deleted(server_id)
            assert await count_server_resources(c, server_id) == NO_RESOURCES

    run(scenario())


def test_delete_during_failing_undo(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]
            with rules(c) as sim:
                for step in ("power_off", "power_on"):
                    sim.add_failure("*", step, "error", None, "the button is stuck")
            await act(c, server_id, "os-stop")
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not await c.db.fetch_value("SELECT 1 FROM operations WHERE state = 'undoing' AND attempt > 2"):
                    await asyncio.sleep(0.02)
            assert (await c.show(server_id))["OS-EXT-STS:task_state"] == "powering-off"
            assert (await c.delete(f"/servers/{server_id}")).status == 204
            await c.wait_until_deleted(server_id)
            assert await count_server_resources(c, server_id) == NO_RESOURCES

    run(scenario())


def test_delete_server_in_error(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            with rules(c) as sim:
                sim.add_failure("*", "spawn", "error", 1, "no")
            server_id = (await c.boot())["id"]
            assert (await c.wait_until_settled(server_id))["status"] == "ERROR"
            assert (await c.delete(f"/servers/{server_id}")).status == 204
            await c.wait_until_deleted(server_id)

    run(scenario())


def test_failed_delete_can_be_repeated(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "destroy", "error", 1, "the guest is stuck")
            await c.delete(f"/servers/{server_id}")
            shown = await c.wait_until_settled(server_id)
            assert shown["status"] == "ERROR"
            assert shown["fault"]["message"] == "The host could not destroy guest: refused by the hypervisor"
            seen = (await c.get(f"/servers/{server_id}", as_="admin")).json()["server"]
            assert "the guest is stuck" in seen["fault"]["details"]
            assert await count_server_resources(c, server_id) == {"allocations": 3, "ports": 1, "guests": 1}
            await c.delete(f"/servers/{server_id}")
            await c.wait_until_deleted(server_id)
            assert await count_server_resources(c, server_id) == NO_RESOURCES

    run(scenario())


def test_delete_waits_for_a_briefly_unreachable_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "destroy", "unreachable", 2, None)
            await c.delete(f"/servers/{server_id}")
            await c.wait_until_deleted(server_id)
            assert await count_server_resources(c, server_id) == NO_RESOURCES

    run(scenario())


def test_delete_unbinds_but_keeps_the_users_port(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            own_port_id = (await make_port(c, c.network_id, name="mine"))["id"]
            nics = [{"port": own_port_id}, {"uuid": c.network_id}]
            server_id = (await c.boot_active(networks=nics))["id"]
            assert (await show_port(c, own_port_id))["device_id"] == server_id
            await c.delete(f"/servers/{server_id}")
            await c.wait_until_deleted(server_id)
            await check_unbound(c, own_port_id)
            # Also if the server was never built.
            with rules(c) as sim:
                sim.add_failure("*", "spawn", "error", None, "no")
                server_id = (await c.boot(networks=nics))["id"]
                assert (await c.wait_until_settled(server_id))["status"] == "ERROR"
                await check_unbound(c, own_port_id)
                sim.clear()
                sim.set_latency("*", "spawn", 300.0)
                server_id = (await c.boot(networks=nics))["id"]
                await wait_for_fields(c, server_id, OS_EXT_STS__task_state="spawning")
                await c.delete(f"/servers/{server_id}")
                await c.wait_until_deleted(server_id)
                await check_unbound(c, own_port_id)
                sim.clear()
            # A port that the user has deleted is ignored.
            server_id = (await c.boot_active(networks=nics))["id"]
            assert (await c.delete(f"/ports/{own_port_id}", root=NETWORK)).status == 204
            await c.delete(f"/servers/{server_id}")
            await c.wait_until_deleted(server_id)

    run(scenario())


async def check_unbound(c: FullCloud, port_id: str) -> None:
    found = await show_port(c, port_id)
    assert (found["device_id"], found["device_owner"], found["binding:host_id"]) == ("", "", "")
    others = (await c.get("/ports?device_owner=compute:nova", as_="admin", root=NETWORK)).json()["ports"]
    assert others == []
