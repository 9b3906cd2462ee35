"""Initial data of a new cloud: flavors, an image, a network, a volume type, and availability zones."""

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

_NO_ZONE = ""


async def seed(services: Services) -> None:
    """Create flavors, an image, a network and a volume type, where none exist.

    Images and networks have a project, so a cloud with a real Keystone begins without them. The image for real guests
    takes time to build: `seed_tiny_image` creates it in the background.
    """
    from kilonova.compute.flavors import model as flavors
    from kilonova.image.files import ImageFiles
    from kilonova.image.seed import seed as seed_image
    from kilonova.image.upload_cleanup import clean_up_uploads as recover_images
    from kilonova.network.seed import seed as seed_network
    from kilonova.volume.files import VolumeFiles
    from kilonova.volume.recovery import recover as recover_volumes
    from kilonova.volume.seed import seed as seed_volume

    db, config = services.db, services.config
    async with db.transaction() as tx:
        await flavors.seed(tx)
        await seed_volume(tx)
    images = config.data_dir / "images"
    if config.is_built_in("image") and config.is_built_in("identity") and config.driver != "libvirt":
        await seed_image(db, images, await _project_id(db))
    elif config.is_built_in("image"):
        await recover_images(db, ImageFiles(images))
    if config.is_built_in("network") and config.is_built_in("identity"):
        await seed_network(db, await _project_id(db))
    if config.is_built_in("volume"):
        await recover_volumes(db, VolumeFiles.of(config))


async def seed_tiny_image(services: Services) -> None:
    """Build a tiny Linux image for real guests, if there is no image yet. A failure is only logged."""
    from tempfile import TemporaryDirectory

    from kilonova.hosts.drivers.libvirt.connection import in_thread
    from kilonova.image.files import ImageFiles
    from kilonova.image.seed import create_first
    from kilonova.tiny import CannotBuild, build

    db, config = services.db, services.config
    if not (config.is_built_in("image") and config.is_built_in("identity")):
        return
    if await db.fetch_value("SELECT COUNT(*) FROM images"):
        return
    try:
        # A process that stops does not wait for the build, which may still write into the directory.
        with TemporaryDirectory(dir=services.config.data_dir, ignore_cleanup_errors=True) as directory:
            Path(directory).chmod(0o711)  # apt downloads as its own user
            built = Path(directory) / "tiny.qcow2"
            await in_thread(build, built)
            files = ImageFiles(services.config.data_dir / "images")
            await create_first(db, files, await _project_id(db), "tiny", "qcow2", await in_thread(built.read_bytes))
    except (CannotBuild, OSError) as error:
        log.warning("the tiny image cannot be built, so there is no image to boot from: %s", error)


async def _project_id(db: Database) -> str:
    return str(await db.fetch_value("SELECT id FROM projects WHERE name = 'admin' AND domain_id = 'default'"))


async def spread_hosts(db: Database, zones: Sequence[str], hosts: Sequence[str]) -> None:
    """Put each host without a zone into the smallest of these zones."""
    async with db.transaction() as tx:
        await tx.lock("aggregates")
        zone_of = await model.zone_of_hosts(tx, hosts, _NO_ZONE)
        members: dict[str, list[str]] = {zone: [] for zone in zones}
        for host in hosts:
            if zone_of[host] in members:
                members[zone_of[host]].append(host)
        for host in hosts:
            if zone_of[host] == _NO_ZONE:
                min(members.values(), key=len).append(host)
        for zone, zone_hosts in members.items():
            await model.create_zone(tx, zone, zone_hosts)
