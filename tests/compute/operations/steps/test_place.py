"""Steps that place a server: allocations after claim and release, hosts that cannot connect volumes, image data."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.compute.operations import boot
from kilonova.compute.operations.steps import choose, place
from kilonova.compute.operations.steps.server import guest_of
from kilonova.hosts.messages import Transfer
from kilonova.hosts.messages.verbs import Spawn
from kilonova.image.tickets import ImageTicket
from tests.compute.operations.steps.support import begin_leased_boot, get_server, list_allocations
from tests.compute.operations.steps.test_volumes import HOST, LIVE, check_host, run_action, server_with_volumes
from tests.compute.servers.support import rules
from tests.support import run
from tests.support.full_cloud import full_cloud


def test_claim_and_release_change_allocation_and_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            op = await begin_leased_boot(c)
            for _ in range(2):
                op.results[choose.CHOOSE.name] = await boot.choose_host(op)
                async with c.db.transaction() as tx:
                    op.results[choose.CLAIM.name] = await place.claim(op, tx)
                server = await get_server(c, op.server_id)
                assert (server.host, server.hypervisor_hostname) == ("sim-001", "sim-001")
                assert (op.host, choose.claimed_host(op)) == ("sim-001", "sim-001")
                assert await list_allocations(c) == {server.id: ("INSTANCE", "sim-001")}
                for _ in range(2):
                    async with c.db.transaction() as tx:
                        await place.release_claim(op, tx)
                    server = await get_server(c, op.server_id)
                    assert (server.host, server.hypervisor_hostname, op.host) == (None, None, None)
                    assert await list_allocations(c) == {}

    run(scenario())


def test_image_source_is_added_to_guest_with_image_only(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            from_volume = await begin_leased_boot(c)
            verb = Spawn(guest=guest_of(await get_server(c, from_volume.server_id), []))
            assert place.with_image_source(from_volume, verb, HOST) is verb
            from_image = await begin_leased_boot(c, image_id=c.image_id)
            verb = Spawn(guest=guest_of(await get_server(c, from_image.server_id), []))
            found = place.with_image_source(from_image, verb, HOST)
            assert found.data is not None
            assert found.data.url == f"/kilonova/v1/images/{c.image_id}/file"
            permitted = c.services.image_tickets.check(found.data.ticket)
            assert permitted == ImageTicket(c.image_id, "GET", HOST, from_image.id)
            # The disk of an unshelved server comes from its snapshot.
            other = Spawn(guest=verb.guest, data=Transfer(url="/v2/images/snapshot/file", ticket="t"))
            assert place.with_image_source(from_image, other, HOST) is other

    run(scenario())


@pytest.mark.parametrize("mode", ["error", "unreachable"])
@pytest.mark.parametrize("action, body", [("migrate", None), ("os-migrateLive", LIVE)])
def test_move_tries_next_host_if_destination_cannot_connect_volumes(
    sqlite_url: str, action: str, body: Any, mode: Any
) -> None:
    async def scenario() -> None:
        async with server_with_volumes(sqlite_url, hosts=3) as (c, server):
            others = sorted(set(c.hosts.names) - {server[HOST]})
            with rules(c) as sim:
                sim.add_failure(others[0], "look_connector", mode, None, None)
                if mode == "unreachable":
                    sim.add_failure(others[0], "describe", mode, None, None)
                shown = await run_action(c, server, action, body)
                assert shown[HOST] == others[1], shown
                sim.clear()
            await check_host(c, server, others[1])

    run(scenario())


def test_unshelve_tries_next_host_if_first_cannot_connect_volumes(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with server_with_volumes(sqlite_url, compute__shelved_offload_seconds=-1) as (c, server):
            await run_action(c, server, "shelve")
            await check_host(c, server, None)
            with rules(c) as sim:
                sim.add_failure("sim-001", "look_connector", "error", None, None)
                assert (await run_action(c, server, "unshelve"))[HOST] == "sim-002"
            await check_host(c, server, "sim-002")

    run(scenario())
