"""Deleting: at any moment, as often as one likes, and nothing of the server stays."""

from __future__ import annotations

import asyncio

from tests.compute.servers.support import NETWORK, NOTHING, act, held, holdings, make_port, port, rules, until
from tests.support import run
from tests.support.cloud import fault
from tests.support.proves import proves
from tests.support.whole import PATIENCE, Whole, whole

NOBODY = "11111111-1111-1111-1111-111111111111"


@proves("DELETE /servers/{server_id}")
def test_everything_goes_with_the_server(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            before = await held(c)
            servers = [(await c.active())["id"] for _ in range(2)]
            await act(c, servers[1], "os-stop")
            await c.settled(servers[1])
            for server_id in servers:
                answer = await c.delete(f"/servers/{server_id}")
                assert (answer.status, answer.body) == (204, b"")
            for server_id in servers:
                await c.gone(server_id)
                assert await holdings(c, server_id) == NOTHING
                for method, body in (("GET", None), ("PUT", {"server": {"name": "x"}}), ("DELETE", None)):
                    answer = await c.request(method, f"/servers/{server_id}", json=body)
                    assert fault(answer) == (404, "itemNotFound", f"Instance {server_id} could not be found.")
                assert (await act(c, server_id, "os-start")).status == 404
            after = await held(c)
            assert {**after, "operations": 0} == {**before, "operations": 0}
            assert (await c.get("/servers")).json() == {"servers": []}
            assert (await c.delete(f"/servers/{NOBODY}")).status == 404
            assert (await c.delete("/servers/no-uuid")).status == 404

    run(scenario())


def test_twice_at_once_is_one_delete(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server_id = (await c.active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "destroy", "hang", 1, None)
                answers = await asyncio.gather(*(c.delete(f"/servers/{server_id}") for _ in range(5)))
                assert {answer.status for answer in answers} == {204}
                shown = await until(c, server_id, OS_EXT_STS__task_state="deleting")
                assert shown["status"] == "ACTIVE"
                status, _, message = fault(await act(c, server_id, "os-stop"))
                assert (status, "task_state deleting" in message) == (409, True)
                sim.clear()
            await c.gone(server_id)
            kinds = await c.db.fetch("SELECT kind FROM operations WHERE server_id = $1 ORDER BY seq", server_id)
            assert [row["kind"] for row in kinds] == ["boot", "delete"]

    run(scenario())


def test_while_it_is_being_built(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            before = await held(c)
            with rules(c) as sim:
                sim.set_latency("*", "spawn", 300.0)
                waiting = (await c.boot())["id"]
                await until(c, waiting, OS_EXT_STS__task_state="spawning")
                fresh = [(await c.boot())["id"] for _ in range(3)]
                for server_id in (waiting, *fresh):
                    assert (await c.delete(f"/servers/{server_id}")).status == 204
                for server_id in (waiting, *fresh):
                    await c.gone(server_id)
            assert {**await held(c), "operations": 0} == {**before, "operations": 0}

    run(scenario())


def test_while_it_is_rebooting(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server_id = (await c.active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "reboot", "hang", 1, None)
                await act(c, server_id, "reboot", {"type": "HARD"})
                await until(c, server_id, status="HARD_REBOOT")
                assert (await c.delete(f"/servers/{server_id}")).status == 204
                found = (await c.get("/servers?status=HARD_REBOOT")).json()["servers"]
                assert found == []
                await c.gone(server_id)
            assert await holdings(c, server_id) == NOTHING

    run(scenario())


def test_while_a_failed_action_cannot_be_undone(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server_id = (await c.active())["id"]
            with rules(c) as sim:
                for step in ("power_off", "power_on"):
                    sim.add_failure("*", step, "error", None, "the button is stuck")
            await act(c, server_id, "os-stop")
            async with asyncio.timeout(PATIENCE):
                while not await c.db.fetch_value("SELECT 1 FROM operations WHERE state = 'undoing' AND attempt > 2"):
                    await asyncio.sleep(0.02)
            assert (await c.show(server_id))["OS-EXT-STS:task_state"] == "powering-off"
            assert (await c.delete(f"/servers/{server_id}")).status == 204
            await c.gone(server_id)
            assert await holdings(c, server_id) == NOTHING

    run(scenario())


def test_a_server_in_error(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            with rules(c) as sim:
                sim.add_failure("*", "spawn", "error", 1, "no")
            server_id = (await c.boot())["id"]
            assert (await c.settled(server_id))["status"] == "ERROR"
            assert (await c.delete(f"/servers/{server_id}")).status == 204
            await c.gone(server_id)

    run(scenario())


def test_a_delete_that_failed_can_be_asked_for_again(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "destroy", "error", 1, "the guest is stuck")
            await c.delete(f"/servers/{server_id}")
            shown = await c.settled(server_id)
            assert shown["status"] == "ERROR"
            assert shown["fault"]["message"] == "The host could not destroy guest: refused by the hypervisor"
            seen = (await c.get(f"/servers/{server_id}", as_="admin")).json()["server"]
            assert "the guest is stuck" in seen["fault"]["details"]
            assert await holdings(c, server_id) == {"allocations": 3, "ports": 1, "guests": 1}
            await c.delete(f"/servers/{server_id}")
            await c.gone(server_id)
            assert await holdings(c, server_id) == NOTHING

    run(scenario())


def test_it_waits_for_a_host_that_does_not_answer(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "destroy", "unreachable", 2, None)
            await c.delete(f"/servers/{server_id}")
            await c.gone(server_id)
            assert await holdings(c, server_id) == NOTHING

    run(scenario())


def test_a_port_of_the_users_own_stays(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            given = (await make_port(c, c.network_id, name="mine"))["id"]
            nics = [{"port": given}, {"uuid": c.network_id}]
            server_id = (await c.active(networks=nics))["id"]
            assert (await port(c, given))["device_id"] == server_id
            await c.delete(f"/servers/{server_id}")
            await c.gone(server_id)
            await check_unbound(c, given)
            # Also when the server never came to be.
            with rules(c) as sim:
                sim.add_failure("*", "spawn", "error", None, "no")
                server_id = (await c.boot(networks=nics))["id"]
                assert (await c.settled(server_id))["status"] == "ERROR"
                await check_unbound(c, given)
                sim.clear()
                sim.set_latency("*", "spawn", 300.0)
                server_id = (await c.boot(networks=nics))["id"]
                await until(c, server_id, OS_EXT_STS__task_state="spawning")
                await c.delete(f"/servers/{server_id}")
                await c.gone(server_id)
                await check_unbound(c, given)
                sim.clear()
            # And a port that the user deleted meanwhile does not matter.
            server_id = (await c.active(networks=nics))["id"]
            assert (await c.delete(f"/ports/{given}", root=NETWORK)).status == 204
            await c.delete(f"/servers/{server_id}")
            await c.gone(server_id)

    run(scenario())


async def check_unbound(c: Whole, port_id: str) -> None:
    found = await port(c, port_id)
    assert (found["device_id"], found["device_owner"], found["binding:host_id"]) == ("", "", "")
    others = (await c.get("/ports?device_owner=compute:nova", as_="admin", root=NETWORK)).json()["ports"]
    assert others == []
