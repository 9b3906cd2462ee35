"""Refused attachments and detachments, which write nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kilonova.http.client import ClientResponse
from tests.compute.servers.support import act
from tests.compute.volume_attachments.support import (
    NEWEST,
    attach,
    attachments,
    create_multiattach_volume,
    detach,
    guest_volumes,
    path,
    request_attach,
    wait_until_idle,
)
from tests.support import run
from tests.support.cloud import fault, put_server
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.volumes import (
    InterceptedVolumeService,
    block_device,
    boot_from,
    make_volume,
    root_volume_id,
    show_volume,
    volume_action,
    wait_for_volume,
)

UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"


async def refused(c: FullCloud, answer: ClientResponse, status: int, message: str) -> None:
    assert answer.status == status, answer.body
    assert message in fault(answer)[2]
    assert await c.db.fetch_value("SELECT COUNT(*) FROM operations WHERE finished_at IS NULL") == 0


def test_unsuitable_volumes_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, other_id = (await c.boot_active())["id"], (await c.boot_active())["id"]
            taken, free, foreign = await make_volume(c), await make_volume(c), await make_volume(c, as_="other")
            await attach(c, server_id, taken)
            again = await request_attach(c, server_id, taken)
            await refused(c, again, 400, f"volume {taken} is already attached to instance {server_id}")
            elsewhere = await request_attach(c, other_id, taken)
            await refused(c, elsewhere, 400, f"volume '{taken}' status must be 'available'. Currently in 'in-use'")
            for missing in (UNKNOWN_ID, foreign):
                await refused(
                    c, await request_attach(c, server_id, missing), 404, f"Volume {missing} could not be found"
                )
            await refused(c, await request_attach(c, UNKNOWN_ID, free), 404, UNKNOWN_ID)
            await refused(c, await request_attach(c, server_id, free, as_="other"), 404, server_id)
            await refused(
                c, await request_attach(c, server_id, free, as_="reader"), 403, "os-volumes-attachments:create"
            )
            for wrong in ("vdc", "/dev/", "/dev/vdb; rm", 1):
                await refused(c, await request_attach(c, server_id, free, device=wrong), 400, "device")
            for used in ("/dev/vda", "/dev/sda", "/dev/vdb", "/dev/xvdb"):
                answer = await request_attach(c, server_id, free, device=used)
                await refused(c, answer, 409, f"The supplied device path ({used}) is in use.")
            await refused(c, await request_attach(c, server_id, free, version="2.48", tag="t"), 400, "tag")
            flag = await request_attach(c, server_id, free, version="2.78", delete_on_termination=True)
            await refused(c, flag, 400, "delete_on_termination")
            assert len(await attachments(c, server_id)) == 1
            assert (await attach(c, server_id, free, device="/dev/sdf"))["device"] == "/dev/sdf"
            assert (await attach(c, server_id, await make_volume(c)))["device"] == "/dev/vdc"

    run(scenario())


@pytest.mark.parametrize("state", ["building", "error"])
def test_unsuitable_servers_are_refused(sqlite_url: str, state: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            volume_id = await make_volume(c)
            await put_server(c.db, UNKNOWN_ID, vm_state=state, host="sim-001")
            message = f"Cannot 'attach_volume' instance {UNKNOWN_ID} while it is in vm_state {state}"
            await refused(c, await request_attach(c, UNKNOWN_ID, volume_id), 409, message)

    run(scenario())


def test_locked_servers_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, volume_id, free = (await c.boot_active())["id"], await make_volume(c), await make_volume(c)
            await attach(c, server_id, volume_id)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = TRUE")
            await refused(c, await request_attach(c, server_id, free), 409, "locked")
            await refused(c, await c.delete(path(server_id, volume_id)), 409, "locked")
            body = {"volumeAttachment": {"volumeId": volume_id, "delete_on_termination": True}}
            await refused(c, await c.put(path(server_id, volume_id), body, version=NEWEST), 409, "locked")
            assert (await request_attach(c, server_id, free, as_="project-admin")).status == 202
            await wait_until_idle(c, server_id)

    run(scenario())


def test_tags_and_multiattach_are_refused_for_offloaded_servers(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, volume_id, shared = (
                (await c.boot_active())["id"],
                await make_volume(c),
                await create_multiattach_volume(c),
            )
            await act(c, server_id, "shelve")
            assert (await c.wait_until_settled(server_id))["status"] == "SHELVED_OFFLOADED"
            old = await request_attach(c, server_id, volume_id, version="2.19")
            await refused(c, old, 409, "while it is in vm_state shelved_offloaded")
            await refused(c, await request_attach(c, server_id, volume_id, tag="t"), 400, "tags is not supported")
            await refused(c, await request_attach(c, server_id, shared), 400, "multiattach volumes is not supported")
            assert (await request_attach(c, server_id, volume_id, version="2.20")).status == 200
            await wait_until_idle(c, server_id)
            gone = await c.delete(path(server_id, volume_id), version="2.19")
            await refused(c, gone, 409, "Cannot 'detach_volume'")

    run(scenario())


def test_refused_detachments(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await boot_from(c, block_device("image", c.image_id, volume_size=1))
            server_id, root = server["id"], root_volume_id(server)
            await refused(c, await c.delete(path(server_id, root)), 403, "Cannot detach a root device volume")
            await refused(c, await c.delete(path(server_id, UNKNOWN_ID)), 404, f"volume_id not found: {UNKNOWN_ID}")
            data = await make_volume(c)
            await attach(c, server_id, data)
            await volume_action(c, data, "os-begin_detaching")
            await refused(c, await c.delete(path(server_id, data)), 400, "is being detached already")
            await volume_action(c, data, "os-roll_detaching")
            await detach(c, server_id, data)
            assert (await show_volume(c, data))["status"] == "available"
            assert await guest_volumes(c, server_id) == [root]

    run(scenario())


def test_concurrent_attach_to_two_servers_succeeds_once(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            servers = [(await c.boot_active())["id"] for _ in range(2)]
            volume_id = await make_volume(c)
            free = orjson.dumps({"volume": await show_volume(c, volume_id)})
            answers = await asyncio.gather(*(request_attach(c, server_id, volume_id) for server_id in servers))
            won, lost = sorted(zip(answers, servers, strict=True), key=lambda one: one[0].status)
            assert (won[0].status, lost[0].status) == (202, 400)
            (seen,) = (await wait_for_volume(c, volume_id, "in-use"))["attachments"]
            assert seen["server_id"] == won[1]
            await wait_until_idle(c, won[1])

            async def as_it_was(method: str, path: str, body: Any) -> ClientResponse | None:
                return ClientResponse(200, {}, free) if path.endswith(f"/volumes/{volume_id}") else None

            InterceptedVolumeService(c).hook = as_it_was
            await refused(c, await request_attach(c, lost[1], volume_id), 400, "is attached to another instance")

    run(scenario())


def test_multiattach_volume_on_several_servers(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            servers = [(await c.boot_active())["id"] for _ in range(2)]
            shared = await create_multiattach_volume(c)
            await refused(c, await request_attach(c, servers[0], shared, version="2.59"), 400, "2.60")
            for server_id in servers:
                await attach(c, server_id, shared, version="2.60")
                assert await guest_volumes(c, server_id) == [shared]
            found: list[dict[str, Any]] = (await show_volume(c, shared))["attachments"]
            assert sorted(one["server_id"] for one in found) == sorted(servers)
            await detach(c, servers[0], shared)
            assert (await show_volume(c, shared))["status"] == "in-use"
            assert await guest_volumes(c, servers[1]) == [shared]
            await detach(c, servers[1], shared)
            assert (await show_volume(c, shared))["status"] == "available"

    run(scenario())
