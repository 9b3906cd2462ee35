"""The first networks of a new cloud: a shared network, an external one, and a router between them."""

from __future__ import annotations

from kilonova import clock
from kilonova.network import resources
from kilonova.network.addresses import Cursors
from kilonova.network.networks import model as networks
from kilonova.network.networks.model import Network
from kilonova.network.routers import model as routers
from kilonova.network.subnets import model as subnets
from kilonova.network.subnets.model import Subnet
from kilonova.store import Database, Transaction

PRIVATE_CIDR = "10.0.0.0/16"
# Reserved for documentation (RFC 5737), so that it never hides a real network.
PUBLIC_CIDR = "192.0.2.0/24"


async def seed(db: Database, project_id: str) -> str:
    """Create the networks unless there is one already. Returns the id of `private`, or of the oldest network."""
    now = clock.now()
    cursors: Cursors = {}
    async with db.transaction() as tx:
        await tx.lock("network seed")
        found = await tx.fetch_value("SELECT id FROM networks ORDER BY name <> 'private', created_at, id LIMIT 1")
        if found is not None:
            return str(found)
        private = await networks.create(
            tx, networks.new_network(project_id, {"name": "private", "shared": True, "mtu": 1500}, now)
        )
        subnet = await _create_subnet(tx, private, "private-subnet", PRIVATE_CIDR, now)
        body = {"name": "public", "router:external": True, "is_default": True, "mtu": 1500}
        public = await networks.create(tx, networks.new_network(project_id, body, now))
        await _create_subnet(tx, public, "public-subnet", PUBLIC_CIDR, now, enable_dhcp=False)
        router = routers.new_router(project_id, {"name": "router"}, now)
        await resources.insert(tx, router)
        router = await routers.set_gateway(tx, cursors, router, public, {}, now)
        await routers.add_subnet(tx, cursors, router, subnet, private, now)
    return private.id


async def _create_subnet(
    tx: Transaction, network: Network, name: str, cidr: str, now: float, *, enable_dhcp: bool = True
) -> Subnet:
    body = {
        "name": name,
        "network_id": network.id,
        "ip_version": 4,
        "cidr": cidr,
        "enable_dhcp": enable_dhcp,
    }
    return await subnets.create(tx, subnets.new_subnet(network.project_id, body, now))
