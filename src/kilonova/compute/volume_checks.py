"""Checks of volumes for a server: encryption, and the availability zone if `volume.cross_az_attach` is off."""

from __future__ import annotations

from collections.abc import Iterable

from kilonova.compute.block_devices import model as devices
from kilonova.compute.servers.server import Server
from kilonova.compute.zones import model as zones
from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.store import Reader
from kilonova.volume.client import Volume


def encryption_error(volume_id: str) -> str:
    return f"Invalid volume: volume {volume_id} is encrypted, and encrypted volumes are not supported yet."


def check_not_encrypted(volume: Volume) -> None:
    if volume.encrypted:
        raise BadRequest(encryption_error(volume.id))


async def check_zone(ctx: Context, reader: Reader, server: Server, volume: Volume) -> None:
    """Check that the volume is in the zone of the server, or for a server without a host in its pinned zone."""
    config = ctx.services.config
    if config.volume.cross_az_attach:
        return
    zone = server.pinned_zone
    if server.host is not None:
        zone = (await zones.zone_of_hosts(reader, [server.host], config.scheduler.default_zone))[server.host]
    if zone is not None and volume.availability_zone != zone:
        raise BadRequest(
            f"Invalid volume: Instance {server.id} and volume {volume.id} are not in the same availability_zone."
            f" Instance is in {zone}. Volume is in {volume.availability_zone}"
        )


def zone_for_volumes(ctx: Context, volumes: Iterable[Volume], requested: str | None) -> str | None:
    """The zone of a new server with these volumes: the requested one, or that of the volumes."""
    if ctx.services.config.volume.cross_az_attach:
        return requested
    zone = requested
    for volume in volumes:
        zone = zone or volume.availability_zone
        if volume.availability_zone != zone:
            where = "the requested availability zone is" if requested else "another volume of the server is in zone"
            raise BadRequest(
                f"Invalid volume: volume {volume.id} is in availability zone {volume.availability_zone},"
                f" and {where} {zone}"
            )
    return zone


async def check_new_zone(ctx: Context, reader: Reader, server: Server, zone: str | None) -> None:
    """Check that a server with volumes stays in the zone of its volumes, which it is pinned to."""
    if ctx.services.config.volume.cross_az_attach or zone == server.pinned_zone:
        return
    if server.pinned_zone is not None and await devices.volumes_of(reader, server.id):
        raise BadRequest(
            f"Instance {server.id} cannot leave availability zone {server.pinned_zone} for {zone or 'any zone'}:"
            " its volumes are there"
        )
