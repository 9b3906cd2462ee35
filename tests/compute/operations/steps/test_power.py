"""Shutdown timeouts: of the image, of the configuration, and the deadline of the step that stops the guest."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json

from kilonova.compute.operations.power import Stop
from kilonova.compute.operations.steps import power
from kilonova.compute.servers import states
from tests.compute.operations.steps.support import begin_leased, get_server
from tests.compute.operations.support import SHORT_HOST_TIMEOUT
from tests.compute.servers.actions.test_suspend import run_action
from tests.compute.servers.support import make_server, rules
from tests.support import run
from tests.support.full_cloud import full_cloud


@pytest.mark.parametrize(
    ("properties", "params"),
    [
        ({}, {}),
        ({"os_shutdown_timeout": "90"}, {"grace": 90}),
        ({"os_shutdown_timeout": "0"}, {"grace": 0}),
        ({"os_shutdown_timeout": "3600"}, {"grace": 3600}),
        ({"os_shutdown_timeout": "3601"}, {"grace": 3600}),
        ({"os_shutdown_timeout": "9" * 30}, {"grace": 3600}),
        *(({"os_shutdown_timeout": text}, {}) for text in ("", "soon", "-1", "1.5", "1e3", " 7", "\u0663", "\u00b2")),
    ],
)
def test_shutdown_timeout_of_image(properties: dict[str, str], params: dict[str, int]) -> None:
    stored = json.encode(power.stop_params(make_server(image_properties=properties)))
    assert json.decode(stored) == params


@pytest.mark.parametrize(("params", "seconds"), [({}, 7.0), ({"grace": 90}, 90.0), ({"grace": 0}, 0.0)])
def test_deadline_includes_shutdown_timeout(sqlite_url: str, params: dict[str, Any], seconds: float) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1, compute__shutdown_timeout_seconds=7) as c:
            op = await begin_leased(c, Stop, None, **params)
            assert power.shutdown_seconds(op) == seconds
            assert power.stop_deadline(op) == seconds + 300

    run(scenario())


@pytest.mark.parametrize(
    ("before", "after", "guest"),
    [
        (states.ACTIVE, states.ACTIVE, "running"),
        (states.RESCUED, states.RESCUED, "running"),
        (states.ERROR, states.ERROR, "shutdown"),
        # A stopped guest has lost the memory that it was paused or suspended with.
        (states.PAUSED, states.STOPPED, "shutdown"),
        (states.SUSPENDED, states.STOPPED, "shutdown"),
    ],
)
def test_undo_of_stop_depends_on_state(database_url: str, before: str, after: str, guest: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active(networks="none"))["id"]
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET vm_state = $2 WHERE id = $1", server_id, before)
            op = await begin_leased(c, Stop, server_id)
            await power.stop(op, await get_server(c, server_id), "power off")
            assert (await c.guests())[server_id][1] == "shutdown"
            for _ in range(2):
                await power.start_again(op, "power off")
                assert (await get_server(c, server_id)).vm_state == after
                assert (await c.guests())[server_id][1] == guest

    run(scenario())


def test_shutdown_timeout_of_the_image_is_sent_to_the_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, compute__shutdown_timeout_seconds=7) as c:
            made = await c.services.image.create(
                {"name": "slow", "visibility": "public", "disk_format": "raw", "container_format": "bare"}
                | {"os_shutdown_timeout": "90"},
                "admin",
            )
            await c.services.image.upload(made.id, b"disk", "admin")
            graces: list[tuple[str, float]] = []
            call = c.hosts.call

            async def record_grace(host: str, command: Any, **options: Any) -> Any:
                verb = command.verb
                if hasattr(verb, "grace"):
                    graces.append((command.step, verb.grace))
                return await call(host, command, **options)

            c.hosts.call = record_grace  # type: ignore[method-assign]
            for image_id, grace in ((c.image_id, 7.0), (made.id, 90.0)):
                graces.clear()
                server_id = (await c.boot_active(imageRef=image_id, networks="none"))["id"]
                await run_action(c, server_id, "os-stop")
                await run_action(c, server_id, "os-start")
                await run_action(c, server_id, "rebuild", {"imageRef": image_id})
                await run_action(c, server_id, "migrate", as_="admin")
                await run_action(c, server_id, "revertResize")
                await run_action(c, server_id, "reboot", {"type": "HARD"})
                await run_action(c, server_id, "shelve")
                assert graces == [("power off", grace), *[("stop guest", grace)] * 4]
                await c.delete(f"/servers/{server_id}")
                await c.wait_until_deleted(server_id)
                assert len(graces) == 5

    run(scenario())


def test_stop_waits_for_a_guest_that_shuts_down_slowly(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, compute__shutdown_timeout_seconds=300, **SHORT_HOST_TIMEOUT) as c:
            server_id = (await c.boot_active(networks="none"))["id"]
            with rules(c) as sim:
                sim.set_latency("*", "power_off", 1.5)
            assert (await run_action(c, server_id, "os-stop"))["status"] == "SHUTOFF"
            row = await c.db.fetch_one("SELECT attempt, trouble, state FROM operations WHERE kind = 'stop'")
            assert row == {"attempt": 0, "trouble": None, "state": "done"}

    run(scenario())
