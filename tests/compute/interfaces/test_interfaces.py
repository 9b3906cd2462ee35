"""Interfaces of servers: attach, show, detach."""

from __future__ import annotations

import asyncio

from tests.compute.interfaces.support import (
    NEWEST,
    addresses,
    attach,
    guest_ports,
    interfaces,
    path,
    request_attach,
    wait_until_idle,
)
from tests.compute.servers.support import NETWORK, act, guest_on, make_network, make_port, rules, show_port
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.full_cloud import TIMEOUT_SECONDS, full_cloud
from tests.support.route_coverage import proves

INTERFACES = "/servers/{server_id}/os-interface"
INTERFACE = INTERFACES + "/{port_id}"


@proves(f"POST {INTERFACES}", f"GET {INTERFACES}", f"GET {INTERFACE}", f"DELETE {INTERFACE}")
def test_attach_and_detach(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            network_id = await make_network(c, "second")
            before = await interfaces(c, server_id)
            shown = await attach(c, server_id, net_id=network_id, fixed_ips=[{"ip_address": "10.9.0.77"}], tag="data")
            port_id = shown["port_id"]
            (address,) = shown["fixed_ips"]
            assert (address["ip_address"], set(address)) == ("10.9.0.77", {"ip_address", "subnet_id"})
            assert (shown["net_id"], shown["tag"], shown["port_state"]) == (network_id, "data", "ACTIVE")
            one = await c.get(path(server_id, port_id), version=NEWEST, as_="reader")
            assert one.json()["interfaceAttachment"] == shown
            listed = await interfaces(c, server_id)
            assert len(listed) == 2
            assert all(each in listed for each in (*before, shown))
            made = await show_port(c, port_id)
            assert (made["device_id"], made["binding:host_id"]) == (server_id, "sim-001")
            assert made["project_id"] == DEMO
            assert "10.9.0.77" in await addresses(c, server_id)
            assert port_id in guest_ports(c, server_id)
            nic = next(nic for nic in guest_on(c, "sim-001", server_id).nics if nic.port_id == port_id)
            assert (nic.mac, nic.addresses, nic.tag) == (shown["mac_addr"], ["10.9.0.77"], "data")

            gone = await c.delete(path(server_id, port_id), version=NEWEST)
            assert (gone.status, gone.body) == (202, b"")
            await wait_until_idle(c)
            assert await interfaces(c, server_id) == before
            assert (await c.get(f"/ports/{port_id}", as_="admin", root=NETWORK)).status == 404
            assert port_id not in guest_ports(c, server_id)
            assert "10.9.0.77" not in await addresses(c, server_id)
            assert (await c.get(path(server_id, port_id))).status == 404
            assert (await c.delete(path(server_id, port_id))).status == 404

    run(scenario())


def test_attach_existing_port(sqlite_url: str) -> None:
    """The port is unbound by a detach or the server's deletion, and can be attached again at once."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            first, second = (await c.boot_active())["id"], (await c.boot_active())["id"]
            port_id = (await make_port(c, await make_network(c, "second")))["id"]
            assert "tag" not in await attach(c, first, version="2.69", port_id=port_id)
            taken = await request_attach(c, second, port_id=port_id)
            assert fault(taken) == (409, "conflictingRequest", f"Port {port_id} is still in use.")
            assert (await request_attach(c, first, port_id=port_id)).status == 409
            assert (await c.delete(path(first, port_id))).status == 202
            await wait_until_idle(c)
            assert (await show_port(c, port_id))["device_id"] == ""
            await attach(c, second, port_id=port_id)
            await c.delete(f"/servers/{second}")
            await c.wait_until_deleted(second)
            assert ((await show_port(c, port_id))["device_id"], guest_ports(c, first).count(port_id)) == ("", 0)

    run(scenario())


def test_attach_without_network_uses_the_only_network(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active(networks="none"))["id"]
            answer = await c.post(path(server_id), {})
            assert answer.json()["interfaceAttachment"]["net_id"] == c.network_id
            await make_network(c, "second")
            assert (await c.post(path(server_id), {})).status == 409

    run(scenario())


def test_refused_requests(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            network_id = await make_network(c, "second")
            port_id = (await make_port(c, network_id))["id"]
            nobody = "00000000-0000-4000-8000-000000000000"
            wrong = [
                (400, {"net_id": network_id, "port_id": port_id}),
                (400, {"fixed_ips": [{"ip_address": "10.9.0.7"}]}),
                (400, {"net_id": network_id, "fixed_ips": []}),
                (400, {"net_id": network_id, "fixed_ips": [{"ip_address": "10.77.0.7"}]}),
                (400, {"net_id": network_id, "tag": "a/b"}),
                (400, {"net_id": network_id, "unknown": 1}),
                (404, {"net_id": nobody}),
                (404, {"port_id": nobody}),
            ]
            before = (await c.show(server_id))["addresses"]
            for status, keys in wrong:
                answer = await request_attach(c, server_id, **keys)
                assert answer.status == status, (keys, answer.body)
            await attach(c, server_id, net_id=network_id, fixed_ips=[{"ip_address": "10.9.0.9"}])
            again = await request_attach(c, server_id, net_id=network_id, fixed_ips=[{"ip_address": "10.9.0.9"}])
            assert again.status == 409, again.body
            assert (await request_attach(c, server_id, net_id=network_id, tag="x", version="2.48")).status == 400
            assert (await request_attach(c, server_id, net_id=network_id, as_="reader")).status == 403
            assert (await request_attach(c, server_id, net_id=network_id, as_="other")).status == 404
            quota = {"quota": {"port": 0}}
            assert (await c.put(f"/quotas/{DEMO}", quota, as_="admin", root=NETWORK)).status == 200
            full = await request_attach(c, server_id, net_id=network_id)
            assert full.status == 403, full.body
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = TRUE WHERE id = $1", server_id)
            assert (await request_attach(c, server_id, port_id=port_id)).status == 409
            assert (await c.delete(path(server_id, guest_ports(c, server_id)[0]))).status == 409
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = FALSE, vm_state = 'error' WHERE id = $1", server_id)
            assert (await request_attach(c, server_id, port_id=port_id)).status == 409
            assert len(guest_ports(c, server_id)) == 2
            assert len((await c.show(server_id))["addresses"]) == len(before) + 1
            held = await c.db.fetch_value("SELECT COUNT(*) FROM ports WHERE device_owner LIKE 'compute:%'")
            assert held == 2

    run(scenario())


def test_host_that_fails_to_attach(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            with rules(c) as failing:
                failing.add_failure("*", "attach_nic", "error", 1, "no slots")
            answer = await request_attach(c, server_id, net_id=await make_network(c, "second"))
            status, _, message = fault(answer)
            assert status == 500
            assert message.startswith(f"Failed to attach network adapter device to {server_id}: The host could not")
            await wait_until_idle(c)
            assert len(await interfaces(c, server_id)) == len(guest_ports(c, server_id)) == 1
            shown = await c.show(server_id)
            assert (shown["status"], "no slots" in shown["fault"]["details"]) == ("ACTIVE", True)

    run(scenario())


def test_interfaces_move_with_their_server(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            server_id = (await c.boot_active())["id"]
            port_id = (await attach(c, server_id, net_id=await make_network(c, "second")))["port_id"]
            assert (await act(c, server_id, "migrate", as_="admin")).status == 202
            moved = await c.wait_until_settled(server_id)
            assert moved["status"] == "VERIFY_RESIZE"
            host = moved["OS-EXT-SRV-ATTR:host"]
            assert (await show_port(c, port_id))["binding:host_id"] == host
            assert port_id in guest_ports(c, server_id, host)

    run(scenario())


def test_deleted_port_is_detached(sqlite_url: str) -> None:
    """The network service sends the event network-vif-deleted."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            port_id = (await attach(c, server_id, net_id=await make_network(c, "second")))["port_id"]
            assert (await c.delete(f"/ports/{port_id}", root=NETWORK)).status == 204
            event = {"name": "network-vif-deleted", "server_uuid": server_id, "tag": port_id}
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while port_id in guest_ports(c, server_id):
                    await asyncio.sleep(0.01)
            await wait_until_idle(c)
            assert len((await c.show(server_id))["addresses"]) == 1
            again = await c.post("/os-server-external-events", {"events": [event]}, as_="service")
            assert (again.status, again.json()["events"][0]["code"]) == (200, 200)

    run(scenario())
