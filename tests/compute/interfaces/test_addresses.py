"""Addresses of servers by actions: fixed ones come and go, floating ones lead to them."""

from __future__ import annotations

from typing import Any

from tests.compute.interfaces.support import addresses
from tests.compute.servers.support import NETWORK, act, guest_on, make_network, port
from tests.support import run
from tests.support.cloud import fault
from tests.support.proves import proves
from tests.support.whole import Whole, whole

ACTION = "POST /servers/{server_id}/action#"
OLD = "2.43"
NOWHERE = "198.51.100.1"


async def old(c: Whole, server_id: str, action: str, as_: str = "member", **body: Any) -> Any:
    return await act(c, server_id, action, body, version=OLD, as_=as_)


async def on_network(c: Whole, **keys: Any) -> tuple[str, str]:
    """A server on a network of its own, and the network."""
    network_id = await make_network(c, "own", **keys)
    return (await c.active(networks=[{"uuid": network_id}]))["id"], network_id


@proves(*(ACTION + name for name in ("addFixedIp", "removeFixedIp")))
def test_fixed_addresses_come_and_go(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id, network_id = await on_network(c)
            (first,) = await addresses(c, server_id)
            added = await old(c, server_id, "addFixedIp", networkId=network_id)
            assert (added.status, added.body) == (202, b"")
            both = await addresses(c, server_id)
            assert len(both) == 2
            (nic,) = guest_on(c, "sim-001", server_id).nics
            known = (await port(c, nic.port_id))["fixed_ips"]
            assert sorted(address["ip_address"] for address in known) == both

            assert (await old(c, server_id, "removeFixedIp", address=first)).status == 202
            (left,) = await addresses(c, server_id)
            assert left in both
            assert left != first
            assert [address["ip_address"] for address in (await port(c, nic.port_id))["fixed_ips"]] == [left]

    run(scenario())


def test_fixed_addresses_that_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            # Of its two addresses the gateway has one.
            server_id, network_id = await on_network(c, cidr="10.9.0.0/30")
            full = await old(c, server_id, "addFixedIp", networkId=network_id)
            assert full.status == 400
            assert "No more addresses" in fault(full)[2]
            assert (await old(c, server_id, "addFixedIp", networkId="elsewhere")).status == 404
            assert (await old(c, server_id, "removeFixedIp", address=NOWHERE)).status == 400
            assert (await old(c, server_id, "removeFixedIp", address="no address")).status == 400
            assert (await old(c, server_id, "addFixedIp", as_="reader", networkId=network_id)).status == 403
            assert (await old(c, server_id, "addFixedIp", as_="other", networkId=network_id)).status == 404
            for action, body in (("addFixedIp", {"networkId": network_id}), ("removeFixedIp", {"address": NOWHERE})):
                assert (await act(c, server_id, action, body, version="2.44")).status == 404
            assert (await act(c, server_id, "lock")).status == 202
            assert (await old(c, server_id, "addFixedIp", networkId=network_id)).status == 409
            assert len(await addresses(c, server_id)) == 1

    run(scenario())


async def floating(c: Whole) -> dict[str, Any]:
    external = (await c.get("/networks?router:external=true", root=NETWORK)).json()["networks"][0]["id"]
    made = await c.post("/floatingips", {"floatingip": {"floating_network_id": external}}, root=NETWORK)
    assert made.status == 201, made.body
    found: dict[str, Any] = made.json()["floatingip"]
    return found


async def leads(c: Whole, made: dict[str, Any]) -> Any:
    shown = (await c.get(f"/floatingips/{made['id']}", root=NETWORK)).json()["floatingip"]
    return shown["fixed_ip_address"]


async def routed(c: Whole, network_id: str, made: dict[str, Any]) -> None:
    """The network has a router to where the floating address is from."""
    gateway = {"network_id": made["floating_network_id"]}
    router = await c.post("/routers", {"router": {"external_gateway_info": gateway}}, root=NETWORK)
    assert router.status == 201, router.body
    (subnet_id,) = (await c.get(f"/networks/{network_id}", root=NETWORK)).json()["network"]["subnets"]
    path = f"/routers/{router.json()['router']['id']}/add_router_interface"
    assert (await c.put(path, {"subnet_id": subnet_id}, root=NETWORK)).status == 200


@proves(*(ACTION + name for name in ("addFloatingIp", "removeFloatingIp")))
def test_floating_addresses_lead_to_servers(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id, network_id = await on_network(c)
            other_id = (await c.active(networks=[{"uuid": network_id}]))["id"]
            made = await floating(c)
            address = made["floating_ip_address"]
            assert (await old(c, server_id, "addFloatingIp", address=address)).status == 400  # no way there
            await routed(c, network_id, made)
            (fixed,) = await addresses(c, server_id)

            assert (await old(c, server_id, "addFloatingIp", address=address)).status == 202
            assert await leads(c, made) == fixed
            elsewhere = await old(c, other_id, "removeFloatingIp", address=address)
            assert fault(elsewhere)[:2] == (409, "conflictingRequest")
            assert (await old(c, server_id, "removeFloatingIp", address=address)).status == 202
            assert await leads(c, made) is None
            assert (await old(c, server_id, "removeFloatingIp", address=address)).status == 409

            assert (await old(c, server_id, "addFloatingIp", address=address, fixed_address=fixed)).status == 202
            assert await leads(c, made) == fixed
            wrong = await old(c, server_id, "addFloatingIp", address=address, fixed_address=NOWHERE)
            assert fault(wrong)[2] == "Specified fixed address not assigned to instance"
            assert (await old(c, server_id, "addFloatingIp", address=NOWHERE)).status == 404
            assert (await act(c, server_id, "addFloatingIp", {"address": address}, version="2.44")).status == 404

    run(scenario())
