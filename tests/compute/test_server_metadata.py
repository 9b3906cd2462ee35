"""Metadata of servers: write, show, quota, and updates of guests."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.compute.servers.support import act, guest_on, rules
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.route_coverage import proves

METADATA = "/servers/{server_id}/metadata"
ITEM = METADATA + "/{key}"


def path(server_id: str, key: str = "") -> str:
    return f"/servers/{server_id}/metadata" + (f"/{key}" if key else "")


async def wait_for_guest(c: FullCloud, server: dict[str, Any], **metadata: str) -> None:
    """Wait until the guest has exactly this metadata."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while guest_on(c, server["OS-EXT-SRV-ATTR:host"], server["id"]).metadata != metadata:
            await asyncio.sleep(0.01)


@proves(*(f"{method} {METADATA}" for method in ("GET", "POST", "PUT")))
@proves(*(f"{method} {ITEM}" for method in ("GET", "PUT", "DELETE")))
def test_changes_reach_the_guest(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server = await c.boot_active(metadata={"a": "1"})
            server_id = server["id"]
            assert (await c.get(path(server_id), as_="reader")).json() == {"metadata": {"a": "1"}}
            added = await c.post(path(server_id), {"metadata": {"b": "2"}})
            assert (added.status, added.json()) == (200, {"metadata": {"a": "1", "b": "2"}})
            await wait_for_guest(c, server, a="1", b="2")
            assert (await c.get(path(server_id, "b"))).json() == {"meta": {"b": "2"}}
            changed = await c.put(path(server_id, "b"), {"meta": {"b": "3"}})
            assert (changed.status, changed.json()) == (200, {"meta": {"b": "3"}})
            assert (await c.delete(path(server_id, "a"))).status == 204
            await wait_for_guest(c, server, b="3")
            assert (await c.show(server_id))["metadata"] == {"b": "3"}
            replaced = await c.put(path(server_id), {"metadata": {"z": ""}})
            assert (replaced.status, replaced.json()) == (200, {"metadata": {"z": ""}})
            await wait_for_guest(c, server, z="")
            assert (await c.put(path(server_id), {"metadata": {}})).json() == {"metadata": {}}
            await wait_for_guest(c, server)

    run(scenario())


def test_refused_requests(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1, quota__metadata_items=2) as c:
            server_id = (await c.boot_active(metadata={"a": "1"}))["id"]
            assert fault(await c.get(path(server_id, "b"))) == (404, "itemNotFound", "Metadata item was not found")
            assert (await c.delete(path(server_id, "b"))).status == 404
            assert (await c.put(path(server_id, "b"), {"meta": {"a": "1"}})).status == 400
            assert (await c.put(path(server_id, "b"), {"meta": {"a": "1", "b": "1"}})).status == 400
            assert (await c.put(path(server_id, "b"), {"meta": {"b": "1"}, "x": 1})).status == 400
            assert (await c.post(path(server_id), {"metadata": {"k" * 256: "1"}})).status == 400
            assert (await c.post(path(server_id), {"metadata": {"b": "1", "c": "1"}})).status == 403
            assert (await c.post(path(server_id), {"metadata": {"b": "1"}})).status == 200
            assert (await c.post(path(server_id), {"metadata": {"b": "1"}}, as_="reader")).status == 403
            assert (await c.post(path(server_id), {"metadata": {"b": "1"}}, as_="other")).status == 404
            assert (await c.get(path(server_id) + "?x=1", version="2.101")).status == 200
            assert (await c.get(path(server_id) + "?x=1", version="2.102")).status == 400
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = TRUE WHERE id = $1", server_id)
            for answer in (
                await c.post(path(server_id), {"metadata": {"b": "2"}}),
                await c.put(path(server_id), {"metadata": {"b": "2"}}),
                await c.put(path(server_id, "b"), {"meta": {"b": "2"}}),
                await c.delete(path(server_id, "b")),
            ):
                assert fault(answer) == (409, "conflictingRequest", f"Instance {server_id} is locked")
            assert (await c.get(path(server_id))).json() == {"metadata": {"a": "1", "b": "1"}}
            assert (await c.delete(path(server_id, "b"), as_="admin")).status == 204

    run(scenario())


def test_refused_in_states_that_do_not_allow_changes(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET vm_state = 'error' WHERE id = $1", server_id)
            answer = await c.post(path(server_id), {"metadata": {"b": "2"}})
            words = f"Cannot 'update metadata' instance {server_id} while it is in vm_state error"
            assert fault(answer) == (409, "conflictingRequest", words)

    run(scenario())


def test_guest_is_updated_when_its_host_responds_again(sqlite_url: str) -> None:
    """Other operations on the server do not wait for the update of the guest."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await c.boot_active()
            with rules(c) as failing:
                failing.add_failure("*", "set_metadata", "unreachable", 2, None)
            assert (await c.post(path(server["id"]), {"metadata": {"b": "2"}})).status == 200
            assert (await act(c, server["id"], "os-stop")).status == 202
            assert (await c.wait_until_settled(server["id"]))["status"] == "SHUTOFF"
            assert (await c.put(f"/servers/{server['id']}", {"server": {"name": "other"}})).status == 200
            await wait_for_guest(c, server, b="2")
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while guest_on(c, server["OS-EXT-SRV-ATTR:host"], server["id"]).name != "other":
                    await asyncio.sleep(0.01)

    run(scenario())
