"""Server actions on fixed and floating IPs, before 2.44."""

from __future__ import annotations

from typing import Any

from tests.compute.interfaces.support import addresses
from tests.compute.servers.support import NETWORK, act, guest_on, make_network, show_port
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

ACTION = "POST /servers/{server_id}/action#"
OLD = "2.43"
UNKNOWN_ADDRESS = "198.51.100.1"


async def run_action(c: FullCloud, server_id: str, action: str, as_: str = "member", **body: Any) -> Any:
    return await act(c, server_id, action, body, version=OLD, as_=as_)


async def server_on_network(c: FullCloud, **keys: Any) -> tuple[str, str]:
    """A server on a new network, and the network."""
    network_id = await make_network(c, "own", **keys)
    return (await c.boot_active(networks=[{"uuid": network_id}]))["id"], network_id


@proves(*(ACTION + name for name in ("addFixedIp", "removeFixedIp")))
def test_add_and_remove_fixed_ip(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id, network_id = await server_on_network(c)
            (first,) = await addresses(c, server_id)
            added = await run_action(c, server_id, "addFixedIp", networkId=network_id)
            assert (added.status, added.body) == (202, b"")
            both = await addresses(c, server_id)
            assert len(both) == 2
            (nic,) = guest_on(c, "sim-001", server_id).nics
            known = (await show_port(c, nic.port_id))["fixed_ips"]
            assert sorted(address["ip_address"] for address in known) == both

            assert (await run_action(c, server_id, "removeFixedIp", address=first)).status == 202
            (left,) = await addresses(c, server_id)
            assert left in both
            assert left != first
            assert [address["ip_address"] for address in (await show_port(c, nic.port_id))["fixed_ips"]] == [left]

    run(scenario())


def test_refused_fixed_ips(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            # The gateway has one of the subnet's two addresses.
            server_id, network_id = await server_on_network(c, cidr="10.9.0.0/30")
            full = await run_action(c, server_id, "addFixedIp", networkId=network_id)
            assert full.status == 400
            assert "No more addresses" in fault(full)[2]
            assert (await run_action(c, server_id, "addFixedIp", networkId="elsewhere")).status == 404
            assert (await run_action(c, server_id, "removeFixedIp", address=UNKNOWN_ADDRESS)).status == 400
            assert (await run_action(c, server_id, "removeFixedIp", address="no address")).status == 400
            assert (await run_action(c, server_id, "addFixedIp", as_="reader", networkId=network_id)).status == 403
            assert (await run_action(c, server_id, "addFixedIp", as_="other", networkId=network_id)).status == 404
            for action, body in (
                ("addFixedIp", {"networkId": network_id}),
                ("removeFixedIp", {"address": UNKNOWN_ADDRESS}),
            ):
                assert (await act(c, server_id, action, body, version="2.44")).status == 404
            assert (await act(c, server_id, "lock")).status == 202
            assert (await run_action(c, server_id, "addFixedIp", networkId=network_id)).status == 409
            assert len(await addresses(c, server_id)) == 1

    run(scenario())


async def create_floating_ip(c: FullCloud) -> dict[str, Any]:
    external = (await c.get("/networks?router:external=true", root=NETWORK)).json()["networks"][0]["id"]
    made = await c.post("/floatingips", {"floatingip": {"floating_network_id": external}}, root=NETWORK)
    assert made.status == 201, made.body
    found: dict[str, Any] = made.json()["floatingip"]
    return found


async def associated_address(c: FullCloud, made: dict[str, Any]) -> Any:
    shown = (await c.get(f"/floatingips/{made['id']}", root=NETWORK)).json()["floatingip"]
    return shown["fixed_ip_address"]


async def add_router(c: FullCloud, network_id: str, made: dict[str, Any]) -> None:
    """Add a router between the network and that of the floating IP."""
    gateway = {"network_id": made["floating_network_id"]}
    router = await c.post("/routers", {"router": {"external_gateway_info": gateway}}, root=NETWORK)
    assert router.status == 201, router.body
    (subnet_id,) = (await c.get(f"/networks/{network_id}", root=NETWORK)).json()["network"]["subnets"]
    path = f"/routers/{router.json()['router']['id']}/add_router_interface"
    assert (await c.put(path, {"subnet_id": subnet_id}, root=NETWORK)).status == 200


@proves(*(ACTION + name for name in ("addFloatingIp", "removeFloatingIp")))
def test_add_and_remove_floating_ip(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, network_id = await server_on_network(c)
            other_id = (await c.boot_active(networks=[{"uuid": network_id}]))["id"]
            made = await create_floating_ip(c)
            address = made["floating_ip_address"]
            assert (await run_action(c, server_id, "addFloatingIp", address=address)).status == 400  # no router
            await add_router(c, network_id, made)
            (fixed,) = await addresses(c, server_id)

            assert (await run_action(c, server_id, "addFloatingIp", address=address)).status == 202
            assert await associated_address(c, made) == fixed
            elsewhere = await run_action(c, other_id, "removeFloatingIp", address=address)
            assert fault(elsewhere)[:2] == (409, "conflictingRequest")
            assert (await run_action(c, server_id, "removeFloatingIp", address=address)).status == 202
            assert await associated_address(c, made) is None
            assert (await run_action(c, server_id, "removeFloatingIp", address=address)).status == 409

            assert (await run_action(c, server_id, "addFloatingIp", address=address, fixed_address=fixed)).status == 202
            assert await associated_address(c, made) == fixed
            wrong = await run_action(c, server_id, "addFloatingIp", address=address, fixed_address=UNKNOWN_ADDRESS)
            assert fault(wrong)[2] == "Specified fixed address not assigned to instance"
            assert (await run_action(c, server_id, "addFloatingIp", address=UNKNOWN_ADDRESS)).status == 404
            assert (await act(c, server_id, "addFloatingIp", {"address": address}, version="2.44")).status == 404

    run(scenario())
