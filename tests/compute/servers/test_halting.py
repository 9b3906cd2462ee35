"""Pausing and suspending: what follows, what is refused meanwhile, and what else a halted server may do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compute.operations.test_silence import QUICK, all_done
from tests.compute.servers.moves import HOST, find_again, lose, newest_action
from tests.compute.servers.support import act, hypervisors, make_flavor, rules, until
from tests.support import run
from tests.support.cloud import fault
from tests.support.proves import proves
from tests.support.volumes import boot_from, device, make_volume
from tests.support.whole import Whole, whole

ACTION = "POST /servers/{server_id}/action#"
VM, POWER, TASK = "OS-EXT-STS:vm_state", "OS-EXT-STS:power_state", "OS-EXT-STS:task_state"
# Action, its opposite, what the server and its guest are in between, and the tasks of both.
PAUSED = ("pause", "unpause", ("PAUSED", "paused", 3), "paused", "pausing", "unpausing")
SUSPENDED = ("suspend", "resume", ("SUSPENDED", "suspended", 7), "suspended", "suspending", "resuming")
HALTS = pytest.mark.parametrize("halt", [PAUSED, SUSPENDED], ids=["pause", "suspend"])


async def done(c: Whole, server_id: str, action: str, body: Any = None, **options: Any) -> dict[str, Any]:
    answer = await act(c, server_id, action, body, **options)
    assert answer.status == 202, answer.body
    return await c.settled(server_id)


def seen(shown: dict[str, Any]) -> tuple[str, str, int]:
    return shown["status"], shown[VM], shown[POWER]


async def refusal(c: Whole, server_id: str, action: str, body: Any = None, **options: Any) -> str:
    status, _, message = fault(await act(c, server_id, action, body, **options))
    assert status == 409, (action, message)
    return message


@proves(*(ACTION + action for action in ("pause", "unpause", "suspend", "resume")))
def test_a_server_halts_and_goes_on(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server = await c.active(name="web")
            server_id = server["id"]
            with hypervisors(c) as sim:
                boots = sim.all_guests()[0][1].boots
            for halt, go_on, (status, *rest), power, halting, going_on in (PAUSED, SUSPENDED):
                with rules(c) as sim:
                    for action, task in ((halt, halting), (go_on, going_on)):
                        sim.add_failure("*", action, "hang", 1, None)
                        assert (await act(c, server_id, action)).status == 202
                        assert (await until(c, server_id, OS_EXT_STS__task_state=task))[TASK] == task
                        assert task in await refusal(c, server_id, "os-stop")
                        sim.clear()
                        shown = await c.settled(server_id)
                        if action == halt:
                            assert seen(shown) == (status, *rest)
                            assert (await c.guests())[server_id][1] == power
                            listed = (await c.get(f"/servers?status={status}")).json()["servers"]
                            assert [one["name"] for one in listed] == ["web"]
                assert seen(shown) == ("ACTIVE", "active", 1)
                assert (await newest_action(c, server_id))["action"] == go_on
            with hypervisors(c) as sim:
                assert sim.all_guests()[0][1].boots == boots, "it never booted"

    run(scenario())


@HALTS
def test_what_a_halted_server_cannot_do(database_url: str, halt: Any) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            action, go_on, (status, state, _), *_ = halt
            server_id = (await c.active())["id"]
            assert await refusal(c, server_id, go_on) == (
                f"Cannot '{go_on}' instance {server_id} while it is in vm_state active"
            )
            assert (await done(c, server_id, action))["status"] == status
            flavor = await make_flavor(c, "larger", ram=1024)
            for other, body in (
                (action, None),
                ("os-start", None),
                ("os-stop", None),
                ("reboot", {"type": "SOFT"}),
                ("rescue", None),
                ("resize", {"flavorRef": flavor}),
                ("rebuild", {"imageRef": c.image_id}),
                ("changePassword", {"adminPass": "x"}),
                ("unrescue", None),
                ("restore", None),
            ):
                assert (await refusal(c, server_id, other, body)).endswith(f"vm_state {state}"), other
            for other, body in (("migrate", None), ("evacuate", {})):
                assert (await refusal(c, server_id, other, body, as_="admin", version="2.96")).endswith(state)
            assert (await c.show(server_id))["status"] == status

    run(scenario())


@HALTS
def test_what_a_halted_server_can_do(database_url: str, halt: Any) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            action, _, (status, *_), power, *_ = halt
            server_id = (await c.active())["id"]
            await done(c, server_id, action)
            assert (await done(c, server_id, "createImage", {"name": "copy"}))["status"] == status
            assert (await c.guests())[server_id][1] == power
            assert seen(await done(c, server_id, "reboot", {"type": "HARD"})) == ("ACTIVE", "active", 1)
            await done(c, server_id, action)
            assert (await done(c, server_id, "shelve"))["status"] == "SHELVED_OFFLOADED"
            assert seen(await done(c, server_id, "unshelve")) == ("ACTIVE", "active", 1)
            await done(c, server_id, action)
            assert (await c.delete(f"/servers/{server_id}")).status == 204
            await c.gone(server_id)

    run(scenario())


def test_a_paused_server_moves_and_has_volumes(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            server_id = server["id"]
            await done(c, server_id, "pause")
            volume_id = await make_volume(c)
            body = {"volumeAttachment": {"volumeId": volume_id}}
            assert (await c.post(f"/servers/{server_id}/os-volume_attachments", body)).status == 200
            await c.settled(server_id)
            asked = {"host": None, "block_migration": "auto"}
            shown = await done(c, server_id, "os-migrateLive", asked, as_="admin", version="2.96")
            assert seen(shown) == ("PAUSED", "paused", 3)
            assert shown[HOST] != server[HOST]
            assert (await c.guests())[server_id] == (shown[HOST], "paused")
            assert seen(await done(c, server_id, "unpause")) == ("ACTIVE", "active", 1)

    run(scenario())


def test_no_image_of_the_volumes_of_a_paused_server(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server = await boot_from(c, device("image", c.image_id, volume_size=1))
            await done(c, server["id"], "pause")
            assert (await refusal(c, server["id"], "createImage", {"name": "x"})).endswith("vm_state paused")

    run(scenario())


@HALTS
def test_one_that_cannot_halt_goes_on(database_url: str, halt: Any) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            action, go_on, (status, *_), power, *_ = halt
            server_id = (await c.active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", action, "error", 1, "no")
            shown = await done(c, server_id, action)
            assert (shown["status"], shown["fault"]["message"]) == (
                "ACTIVE",
                f"The host could not {action} guest: refused by the hypervisor",
            )
            assert (await c.guests())[server_id][1] == "running"
            shown = await done(c, server_id, action)
            assert (shown["status"], "fault" in shown) == (status, False)
            with rules(c) as sim:
                sim.add_failure("*", go_on, "error", 1, "no")
            shown = await done(c, server_id, go_on)
            assert (shown["status"], "fault" in shown) == (status, True)
            assert (await c.guests())[server_id][1] == power
            assert (await done(c, server_id, go_on))["status"] == "ACTIVE"

    run(scenario())


def test_a_host_that_falls_silent_undoes_it_on_its_return(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1, **QUICK) as c:
            server = await c.active()
            with rules(c) as sim:
                sim.add_failure(server[HOST], "pause", "hang", 1, None)
                assert (await act(c, server["id"], "pause")).status == 202
                await until(c, server["id"], OS_EXT_STS__task_state="pausing")
            await lose(c, server[HOST])
            shown = await c.settled(server["id"])
            assert (shown["status"], "did not answer" in shown["fault"]["message"]) == ("ACTIVE", True)
            await find_again(c, server[HOST])
            await all_done(c)
            assert (await c.guests())[server["id"]][1] == "running"

    run(scenario())


@proves(ACTION + "trigger_crash_dump")
def test_a_crash_dump(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            dump = "trigger_crash_dump"
            assert fault(await act(c, server_id, dump, version="2.16"))[0] in (400, 404)
            assert (await act(c, server_id, dump, {"now": True}, version="2.17")).status == 400
            shown = await done(c, server_id, dump, version="2.17")
            assert (shown["status"], "fault" in shown) == ("ACTIVE", False)
            assert (await newest_action(c, server_id))["action"] == dump
            await done(c, server_id, "os-stop")
            assert (await refusal(c, server_id, dump, version="2.17")).endswith("vm_state stopped")

    run(scenario())


def test_a_system_gets_the_time_that_its_image_says(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, compute__shutdown_seconds=7) as c:
            made = await c.services.image.create(
                {"name": "slow", "visibility": "public", "disk_format": "raw", "container_format": "bare"}
                | {"os_shutdown_timeout": "90"},
                "admin",
            )
            await c.services.image.upload(made["id"], b"disk", "admin")
            asked: list[tuple[str, float]] = []
            call = c.hosts.call

            async def listen(host: str, command: Any, **options: Any) -> Any:
                verb = command.verb
                if hasattr(verb, "grace"):
                    asked.append((command.step, verb.grace))
                return await call(host, command, **options)

            c.hosts.call = listen  # type: ignore[method-assign]
            for image_id, grace in ((c.image_id, 7.0), (made["id"], 90.0)):
                asked.clear()
                server_id = (await c.active(imageRef=image_id, networks="none"))["id"]
                await done(c, server_id, "os-stop")
                await done(c, server_id, "os-start")
                await done(c, server_id, "rebuild", {"imageRef": image_id})
                await done(c, server_id, "migrate", as_="admin")
                await done(c, server_id, "revertResize")
                await done(c, server_id, "reboot", {"type": "HARD"})
                await done(c, server_id, "shelve")
                assert asked == [("power off", grace), *[("stop guest", grace)] * 4]
                await c.delete(f"/servers/{server_id}")
                await c.gone(server_id)
                assert len(asked) == 5

    run(scenario())


def test_a_host_that_waits_for_a_system_is_waited_for(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1, compute__shutdown_seconds=300, **QUICK) as c:
            server_id = (await c.active(networks="none"))["id"]
            with rules(c) as sim:
                sim.set_latency("*", "power_off", 1.5)
            assert (await done(c, server_id, "os-stop"))["status"] == "SHUTOFF"
            row = await c.db.fetch_one("SELECT attempt, trouble, state FROM operations WHERE kind = 'stop'")
            assert row == {"attempt": 0, "trouble": None, "state": "done"}

    run(scenario())
