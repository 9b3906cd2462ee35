"""The network service alone on a real database, reached over HTTP inside the process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from kilonova.compute.status import ComputeStatus
from kilonova.config import Config
from kilonova.hosts.messages import HostFacts, Inventory, NetworkPlan, WiredPort
from kilonova.hosts.registry import register
from kilonova.http.client import ClientResponse
from kilonova.network import build
from kilonova.policy import Policy
from kilonova.services import Services
from tests.support.cloud import Cloud, Tokens
from tests.support.databases import opened

PLURALS = {
    "network": "networks",
    "subnet": "subnets",
    "port": "ports",
    "router": "routers",
    "trunk": "trunks",
    "floatingip": "floatingips",
    "security_group": "security-groups",
    "security_group_rule": "security-group-rules",
}
EXPECTED = {"POST": 201, "DELETE": 204}


class Net(Cloud):
    async def call(self, method: str, path: str, json: Any = None, as_: str | None = "member") -> ClientResponse:
        return await self.request(method, path, root="/network/v2.0", json=json, as_=as_)

    async def ok(self, method: str, path: str, json: Any = None, as_: str = "member") -> Any:
        response = await self.call(method, path, json, as_)
        assert response.status == EXPECTED.get(method, 200), response.body
        return response.json() if response.body else None

    async def refused(self, method: str, path: str, json: Any = None, as_: str | None = "member") -> tuple[int, str]:
        """The status and type of the error."""
        response = await self.call(method, path, json, as_)
        error = response.json()["NeutronError"]
        assert error["message"]
        return response.status, error["type"]

    async def create(self, kind: str, as_: str = "member", **attributes: Any) -> dict[str, Any]:
        created: dict[str, Any] = (await self.ok("POST", f"/{PLURALS[kind]}", {kind: attributes}, as_))[kind]
        return created

    async def update(self, kind: str, item: dict[str, Any], as_: str = "member", **attributes: Any) -> dict[str, Any]:
        path = f"/{PLURALS[kind]}/{item['id']}"
        changed: dict[str, Any] = (await self.ok("PUT", path, {kind: attributes}, as_))[kind]
        return changed

    async def show(self, kind: str, item_id: str, as_: str = "member") -> dict[str, Any]:
        shown: dict[str, Any] = (await self.ok("GET", f"/{PLURALS[kind]}/{item_id}", as_=as_))[kind]
        return shown

    async def list_all(self, kind: str, query: Any = (), as_: str = "member") -> list[dict[str, Any]]:
        plural = PLURALS[kind]
        found: list[dict[str, Any]] = (await self.ok("GET", f"/{plural}?{urlencode(query)}", as_=as_))[
            plural.replace("-", "_")
        ]
        return found

    async def names(self, kind: str, query: Any = (), as_: str = "member") -> list[str]:
        return [item["name"] for item in await self.list_all(kind, query, as_)]

    async def network_with_subnet(
        self, cidr: str = "10.1.0.0/24", as_: str = "member", **subnet: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        network = await self.create("network", as_, name="n")
        version = 6 if ":" in cidr else 4
        return network, await self.create(
            "subnet", as_, network_id=network["id"], cidr=cidr, ip_version=version, **subnet
        )


@asynccontextmanager
async def net(database_url: str) -> AsyncIterator[Net]:
    services = Services()
    services.config = Config()
    services.policy = Policy()
    services.tokens = Tokens()
    async with opened(database_url) as db:
        services.db = db
        services.compute_status = ComputeStatus(db, services.config)
        yield Net(services, [build()])


def host_facts(name: str, *, networked: bool, address: str = "192.0.2.1") -> HostFacts:
    return HostFacts(
        host=name,
        hypervisor_hostname=name,
        hypervisor_type="QEMU",
        hypervisor_version=7002000,
        host_ip=address,
        inventory={"VCPU": Inventory(total=4, max_unit=4)},
        networked=networked,
    )


async def register_hosts(cloud: Net, *names: str) -> None:
    """Register networked hosts, and a simulated one."""
    networked = [
        host_facts(name, address=f"192.0.2.{number}", networked=True) for number, name in enumerate(names, start=1)
    ]
    await register(cloud.services.db, [*networked, host_facts("simulated", address="192.0.2.99", networked=False)])


async def create_bound_port(cloud: Net, network: dict[str, Any], host: str, **attributes: Any) -> dict[str, Any]:
    port = await cloud.create("port", network_id=network["id"], **attributes)
    changes = {"binding:host_id": host, "device_id": f"guest of {port['id']}", "device_owner": "compute:nova"}
    return await cloud.update("port", port, as_="admin", **changes)


async def create_external_network(cloud: Net, cidr: str = "192.0.2.0/28") -> dict[str, Any]:
    network = await cloud.create("network", "admin", name="public", **{"router:external": True})
    await cloud.create("subnet", "admin", network_id=network["id"], ip_version=4, cidr=cidr, enable_dhcp=False)
    return network


def planned_port(plan: NetworkPlan, port: dict[str, Any]) -> WiredPort:
    (found,) = [one for network in plan.networks for one in network.ports if one.id == port["id"]]
    return found
