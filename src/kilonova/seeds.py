"""What a new cloud has to boot from, and the zones its hosts are spread over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kilonova.compute.zones import model

if TYPE_CHECKING:
    from kilonova.services import Services
    from kilonova.store import Database

_NOWHERE = ""


async def seed(services: Services) -> None:
    """Flavors, an image, a network and a type of volumes, where there are none of the kind."""
    from kilonova.compute.flavors import model as flavors
    from kilonova.image.seed import seed as seed_image
    from kilonova.network.seed import seed as seed_network
    from kilonova.volume.files import VolumeFiles
    from kilonova.volume.recovery import recover as recover_volumes
    from kilonova.volume.seed import seed as seed_volume

    db = services.db
    async with db.transaction() as tx:
        await flavors.seed(tx)
        await seed_volume(tx)
    project_id = str(await db.fetch_value("SELECT id FROM projects WHERE name = 'admin' AND domain_id = 'default'"))
    await seed_image(db, services.config.data_dir / "images", project_id)
    await seed_network(db, project_id)
    await recover_volumes(db, VolumeFiles.of(services.config))


async def spread(db: Database, zones: Sequence[str], hosts: Sequence[str]) -> None:
    """Put every host that is in no zone into the smallest of these. A host that is in one stays there."""
    async with db.transaction() as tx:
        await tx.hold("aggregates")
        known = await model.zone_of_hosts(tx, hosts, _NOWHERE)
        members: dict[str, list[str]] = {zone: [] for zone in zones}
        for host in hosts:
            if known[host] in members:
                members[known[host]].append(host)
        for host in hosts:
            if known[host] == _NOWHERE:
                min(members.values(), key=len).append(host)
        for zone, joining in members.items():
            await model.create_zone(tx, zone, joining)
