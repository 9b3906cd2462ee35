"""The status of ports on hosts that make networks: that of their guests and of the host."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.hosts.messages import HostFacts, Inventory
from kilonova.hosts.registry import register
from tests.network.support import Net, net
from tests.support import run
from tests.support.cloud import put_server

GUEST = "9bd5d0a0-6b0a-4c2c-8f43-6a6f0d0f7a11"


def _facts(name: str, *, networked: bool) -> HostFacts:
    return HostFacts(
        host=name,
        hypervisor_hostname=name,
        hypervisor_type="QEMU",
        hypervisor_version=7002000,
        host_ip="192.0.2.1",
        inventory={"VCPU": Inventory(total=4, max_unit=4)},
        networked=networked,
    )


async def _status(cloud: Net, port: dict[str, Any]) -> str:
    """As all ways of looking at it say."""
    said = {
        (await cloud.show("port", port["id"]))["status"],
        (await cloud.listed("port", {"id": port["id"]}))[0]["status"],
        (await cloud.change("port", port, name="p"))["status"],
    }
    for status in ("ACTIVE", "DOWN"):
        if await cloud.listed("port", {"status": status, "id": port["id"]}):
            said.add(status)
    (found,) = said
    return found


async def _bound(cloud: Net, network: dict[str, Any], host: str) -> dict[str, Any]:
    made = await cloud.make("port", network_id=network["id"])
    changes = {"binding:host_id": host, "device_id": GUEST, "device_owner": "compute:nova"}
    return await cloud.change("port", made, as_="admin", **changes)


async def _set(cloud: Net, sql: str, *args: Any) -> None:
    async with cloud.services.db.transaction() as tx:
        await tx.execute(sql, *args)


def test_a_port_is_active_while_its_guest_is_on(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register(cloud.services.db, [_facts("one", networked=True)])
            await _set(cloud, "UPDATE services SET last_seen_at = $1", clock.now())
            network, _ = await cloud.network_with_subnet()
            port = await _bound(cloud, network, "one")
            assert await _status(cloud, port) == "DOWN"
            # While it is built.
            await put_server(cloud.services.db, GUEST, vm_state="building", power_state=0)
            assert await _status(cloud, port) == "DOWN"
            for power, status in ((1, "ACTIVE"), (3, "ACTIVE"), (4, "DOWN"), (6, "DOWN"), (7, "DOWN"), (1, "ACTIVE")):
                await _set(cloud, "UPDATE servers SET power_state = $1", power)
                assert await _status(cloud, port) == status, power
            await cloud.change("port", port, admin_state_up=False)
            assert await _status(cloud, port) == "DOWN"
            await cloud.change("port", port, admin_state_up=True)
            assert await _status(cloud, port) == "ACTIVE"
            await _set(cloud, "UPDATE services SET forced_down = $1", True)
            assert await _status(cloud, port) == "DOWN"
            await _set(cloud, "UPDATE services SET forced_down = $1, last_seen_at = $2", False, clock.now() - 3600)
            assert await _status(cloud, port) == "DOWN"

    run(scenario())


def test_a_port_on_a_simulated_host_is_active_when_it_is_bound(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register(cloud.services.db, [_facts("two", networked=False)])
            network, _ = await cloud.network_with_subnet()
            assert await _status(cloud, await _bound(cloud, network, "two")) == "ACTIVE"
            assert await _status(cloud, await _bound(cloud, network, "nobody knows it")) == "ACTIVE"

    run(scenario())
