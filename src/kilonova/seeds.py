"""What a new cloud has to boot from, and the zones its hosts are spread over."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova.compute.zones import model

if TYPE_CHECKING:
    from kilonova.services import Services
    from kilonova.store import Database

log = logging.getLogger(__name__)

_NOWHERE = ""


async def seed(services: Services) -> None:
    """Flavors, an image, a network and a type of volumes, where there are none of the kind.

    An image that real guests boot takes time to build: see seed_tiny.
    """
    from kilonova.compute.flavors import model as flavors
    from kilonova.image.files import ImageFiles
    from kilonova.image.recovery import recover as recover_images
    from kilonova.image.seed import seed as seed_image
    from kilonova.network.seed import seed as seed_network
    from kilonova.volume.files import VolumeFiles
    from kilonova.volume.recovery import recover as recover_volumes
    from kilonova.volume.seed import seed as seed_volume

    db = services.db
    async with db.transaction() as tx:
        await flavors.seed(tx)
        await seed_volume(tx)
    project_id = await _project_id(db)
    images = services.config.data_dir / "images"
    if services.config.driver == "libvirt":
        await recover_images(db, ImageFiles(images))
    else:
        await seed_image(db, images, project_id)
    await seed_network(db, project_id)
    await recover_volumes(db, VolumeFiles.of(services.config))


async def seed_tiny(services: Services) -> None:
    """A tiny Linux for real guests, in a cloud that has no image yet. A machine that cannot build it goes without."""
    from tempfile import TemporaryDirectory

    from kilonova.hosts.drivers.libvirt.connection import in_thread
    from kilonova.image.files import ImageFiles
    from kilonova.image.seed import add_first
    from kilonova.tiny import CannotBuild, build

    db = services.db
    if await db.fetch_value("SELECT COUNT(*) FROM images"):
        return
    try:
        # A process that stops does not wait for it.
        with TemporaryDirectory(dir=services.config.data_dir, ignore_cleanup_errors=True) as directory:
            Path(directory).chmod(0o711)  # apt downloads as a user of its own
            built = Path(directory) / "tiny.qcow2"
            await in_thread(build, built)
            image = {"name": "tiny", "visibility": "public", "disk_format": "qcow2", "container_format": "bare"}
            files = ImageFiles(services.config.data_dir / "images")
            await add_first(db, files, await _project_id(db), image, await in_thread(built.read_bytes))
    except (CannotBuild, OSError) as error:
        log.warning("there is no image to boot from yet, the tiny one cannot be built: %s", error)


async def _project_id(db: Database) -> str:
    return str(await db.fetch_value("SELECT id FROM projects WHERE name = 'admin' AND domain_id = 'default'"))


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
