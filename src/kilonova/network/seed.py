"""What a new cloud's network service begins with: a shared network, an external one, and a router between them."""

from __future__ import annotations

from kilonova import clock
from kilonova.network import rows
from kilonova.network.networks import model as networks
from kilonova.network.routers import model as routers
from kilonova.network.subnets import model as subnets
from kilonova.store import Database, Row, Transaction

PRIVATE_CIDR = "10.0.0.0/16"
# A range set aside for documentation: nothing real is ever reached by it.
PUBLIC_CIDR = "192.0.2.0/24"


async def seed(db: Database, project_id: str) -> str:
    """Make them unless there is a network already; the id of `private` or of the first network."""
    now = clock.now()
    async with db.transaction() as tx:
        await tx.hold("network seed")
        found = await tx.fetch_value("SELECT id FROM networks ORDER BY name <> 'private', created_at, id LIMIT 1")
        if found is not None:
            return str(found)
        private = await networks.create(
            tx, networks.draft(project_id, {"name": "private", "shared": True, "mtu": 1500}, now)
        )
        subnet = await _subnet(tx, private, "private-subnet", PRIVATE_CIDR, now)
        body = {"name": "public", "router:external": True, "is_default": True, "mtu": 1500}
        public = await networks.create(tx, networks.draft(project_id, body, now))
        await _subnet(tx, public, "public-subnet", PUBLIC_CIDR, now, enable_dhcp=False)
        router = routers.draft(project_id, {"name": "router"}, now)
        await rows.insert(tx, "routers", router)
        router = await routers.set_gateway(tx, router, public, {}, now)
        await routers.add_subnet(tx, router, subnet, private, now)
    return str(private["id"])


async def _subnet(tx: Transaction, network: Row, name: str, cidr: str, now: float, *, enable_dhcp: bool = True) -> Row:
    body = {
        "name": name,
        "network_id": network["id"],
        "ip_version": 4,
        "cidr": cidr,
        "enable_dhcp": enable_dhcp,
    }
    return await subnets.create(tx, subnets.draft(network["project_id"], body, now))
