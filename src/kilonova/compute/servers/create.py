"""Creates servers: checks the whole request first, then inserts servers and boot operations in one transaction."""

from __future__ import annotations

import re
import secrets
import string
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import structs

from kilonova.compute.api import api
from kilonova.compute.block_devices import model as block_devices
from kilonova.compute.block_devices import requests
from kilonova.compute.block_devices.requested_device import RequestedDevice
from kilonova.compute.flavors import lookup as flavors
from kilonova.compute.flavors.model import Flavor
from kilonova.compute.keypairs import model as keypairs
from kilonova.compute.keypairs.model import KeyPair
from kilonova.compute.operations.boot import WITH_VOLUMES, Boot, BootParams
from kilonova.compute.operations.steps import plugged
from kilonova.compute.quotas import model as quotas
from kilonova.compute.quotas.source import Source, find_source
from kilonova.compute.server_groups import model as groups
from kilonova.compute.server_tags import model as tags
from kilonova.compute.servers import (
    model,
    personality,
    requested_destination,
    requested_networks,
    scheduling,
    states,
    trusted_certificates,
)
from kilonova.compute.servers.scheduling import Destination, group_of
from kilonova.compute.servers.server import EmbeddedFlavor, File, Server
from kilonova.compute.volume_attachments.checks import check_not_attached_elsewhere
from kilonova.compute.volume_checks import zone_for_volumes
from kilonova.http import Context
from kilonova.http.errors import BadRequest, Conflict, Forbidden
from kilonova.http.parameter_types import is_true, normalize_address
from kilonova.ids import new_id
from kilonova.operations import begin
from kilonova.scheduler import Request
from kilonova.scheduler.requirements import host_requirements
from kilonova.store import Reader, Transaction

# One transaction inserts all servers of a request, and blocks others meanwhile.
MAX_SERVERS_PER_REQUEST = 1000
OWN_DESCRIPTION = api.behaviour("a server's description is its own")
_ALPHABET = string.ascii_letters + string.digits
_RESERVATION_ALPHABET = string.digits + string.ascii_lowercase


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A checked request for servers. Quota is checked later, and nothing is inserted yet."""

    # What all servers of the request have in common.
    template: Server
    least: int
    most: int
    quota: Source
    # Quota usage of one server.
    each: dict[str, int]
    # Parameters of the boot operations.
    params: BootParams
    # Block devices of one server, without those that flavor and image imply.
    devices: list[RequestedDevice]
    destination: Destination
    group_id: str | None
    password: str
    security_groups: list[str]


@dataclass(frozen=True)
class Created:
    """The created servers, for the response."""

    servers: list[Server]
    reservation_id: str
    password: str
    groups: list[str]


async def create(ctx: Context) -> Created:
    prepared = await prepare(ctx)
    without = frozenset() if any(device.is_volume for device in prepared.devices) else WITH_VOLUMES
    without |= plugged.steps_to_skip(ctx.services)
    async with ctx.db.transaction() as tx:
        servers = await build_servers(ctx, tx, prepared)
        for server in servers:
            await model.insert(tx, server)
            await _insert_devices(tx, server, prepared.devices)
            await tags.add(tx, server.id, ctx.body["server"].get("tags", []))
        if prepared.group_id is not None:
            await groups.join(tx, prepared.group_id, [server.id for server in servers])
        for server in servers:
            await begin(
                tx,
                Boot,
                params=prepared.params,
                server_id=server.id,
                project_id=server.project_id,
                user_id=server.user_id,
                request_id=ctx.request_id,
                without=without,
            )
    return Created(servers, prepared.template.reservation_id, prepared.password, prepared.security_groups)


async def scheduler_requests(ctx: Context) -> list[Request]:
    """The requests to the scheduler, for a dry run. Raises the errors of `create` and inserts nothing."""
    prepared = await prepare(ctx)
    async with ctx.db.transaction() as tx:
        servers = await build_servers(ctx, tx, prepared)
    # Servers of one request have equal requests.
    request = await scheduling.request_for(ctx.db, servers[0], destination=prepared.destination)
    return [request] * len(servers)


async def prepare(ctx: Context) -> Prepared:
    """Check the request without writing anything."""
    body = ctx.body["server"]
    if ctx.token.project_id is None:
        raise Forbidden("A server needs a project, and this token has no project scope.")
    requested_destination.authorize(ctx, body)
    least, most = _count(body)
    flavor = await flavors.get_referenced(ctx, ctx.db, str(body["flavorRef"]))
    disks = await requests.resolve(ctx, body, flavor, most)
    check_needs(flavor.flavor_id, flavor, disks.image_properties, root_disk=disks.image_id is not None)
    trusted = body.get("trusted_image_certificates")
    trusted_certificates.check(ctx, trusted, trusted_certificates.CREATE, volume_backed=disks.image_id is None)
    key = await find_key(ctx, body.get("key_name"))
    pin, destination = await requested_destination.requested_destination(ctx, body)
    pin = zone_for_volumes(ctx, disks.volumes, pin)
    nics = await requested_networks.resolve(ctx, body["networks"])
    if most > 1 and any(nic.port or nic.fixed_ip for nic in nics):
        raise BadRequest("Unable to launch multiple instances with a single configured port or fixed IP.")
    security_groups = await _security_groups(ctx, body.get("security_groups", []))
    await check_metadata(ctx, body.get("metadata", {}))
    await personality.check(ctx, body.get("personality", []))
    quota = await find_source(ctx.services, ctx.token.project_id)
    return Prepared(
        template=_template(ctx, flavor, disks, key, pin),
        least=least,
        most=most,
        quota=quota,
        each=quota.needed(flavor, disks.image_properties, root_disk=disks.image_id is not None),
        params=BootParams(
            networks=nics,
            security_groups=security_groups,
            destination=destination,
            devices=bool(disks.devices),
            image_hashes=disks.source_hashes,
        ),
        devices=disks.devices,
        destination=destination,
        group_id=await _group(ctx, ctx.db, group_of(_hints(ctx))),
        password=body.get("adminPass") or new_password(),
        security_groups=security_groups,
    )


def new_password() -> str:
    """A random password for the response. Guests do not get it."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(12))


async def build_servers(ctx: Context, tx: Transaction, prepared: Prepared) -> list[Server]:
    """As many servers as quota and server group allow. Locks the project's quota until `tx` ends."""
    project_id, user_id = prepared.template.project_id, prepared.template.user_id
    quota, least = prepared.quota, prepared.least
    count = await quotas.count_within_quota(tx, project_id, quota, prepared.each, least, prepared.most, user_id=user_id)
    if prepared.group_id is not None:
        await groups.lock_members(tx, prepared.group_id)
        await _group(ctx, tx, prepared.group_id)
        count = await groups.count_within_quota(tx, prepared.group_id, project_id, user_id, quota, least, count)
    return [_numbered(ctx, prepared.template, place, count) for place in range(count)]


async def _group(ctx: Context, reader: Reader, group_id: str | None) -> str | None:
    if group_id is not None:
        group = await groups.get(reader, group_id)
        if group is None or group.project_id != ctx.token.project_id:
            raise BadRequest(f"Instance group {group_id} could not be found.")
    return group_id


def _count(body: Mapping[str, str | float]) -> tuple[int, int]:
    """`min_count` and `max_count`; the quota decides between them."""
    least = int(body.get("min_count", 1))
    most = int(body.get("max_count", least))
    if least > most:
        raise BadRequest("min_count must be <= max_count")
    if least > MAX_SERVERS_PER_REQUEST:
        raise BadRequest(
            f"Invalid input for field/attribute min_count: at most {MAX_SERVERS_PER_REQUEST} servers at once."
        )
    if most > 1 and "hostname" in body:
        raise BadRequest("Invalid input for field/attribute hostname: it cannot be given for several servers.")
    return least, min(most, MAX_SERVERS_PER_REQUEST)


def _template(
    ctx: Context, flavor: Flavor, disks: requests.RequestedDisks, key: KeyPair | None, pinned_zone: str | None
) -> Server:
    """A server without name and id, with copies of flavor, image properties and key."""
    body = ctx.body["server"]
    return Server(
        id="",
        project_id=str(ctx.token.project_id),
        user_id=ctx.token.user_id,
        name=body["name"],
        hostname="",
        vm_state=states.BUILDING,
        power_state=states.NOSTATE,
        flavor_id=flavor.flavor_id,
        flavor=flavor.embed(),
        vcpus=flavor.vcpus,
        ram=flavor.ram,
        image_properties=disks.image_properties,
        metadata=body.get("metadata", {}),
        nics=[],
        scheduler_hints=_hints(ctx),
        config_drive=is_true(body.get("config_drive", False)),
        disk_config=body.get("OS-DCF:diskConfig", "MANUAL"),
        reservation_id="r-" + "".join(secrets.choice(_RESERVATION_ALPHABET) for _ in range(8)),
        launch_index=0,
        created_at=ctx.now,
        updated_at=ctx.now,
        pinned_zone=pinned_zone,
        image_id=disks.image_id,
        image_hash=disks.image_hash,
        key_name=key.name if key else None,
        public_key=key.public_key if key else None,
        user_data=body.get("user_data"),
        personality=[File(**file) for file in body.get("personality", [])] or None,
        access_ip_v4=normalize_address(body.get("accessIPv4")),
        access_ip_v6=normalize_address(body.get("accessIPv6")),
        root_device_name=disks.root_device_name,
        trusted_certificates=body.get("trusted_image_certificates") or None,
    )


def _hints(ctx: Context) -> dict[str, object]:
    hints: dict[str, object] = ctx.body.get("os:scheduler_hints", ctx.body.get("OS-SCH-HNT:scheduler_hints", {}))
    return hints


def _numbered(ctx: Context, template: Server, place: int, count: int) -> Server:
    """The server at this place of the request's servers."""
    body, server_id = ctx.body["server"], new_id()
    name = template.name if count == 1 else f"{template.name}-{place + 1}"
    return structs.replace(
        template,
        id=server_id,
        name=name,
        description=body.get("description") if ctx.has_behaviour(OWN_DESCRIPTION) else name,
        hostname=body.get("hostname") or hostname_of(name, server_id),
        launch_index=place,
    )


async def _insert_devices(tx: Transaction, server: Server, devices: list[RequestedDevice]) -> None:
    # In a fixed order, so that two requests for the same volumes do not deadlock.
    shared = {device.volume_id: device.multiattach for device in devices if device.volume_id}
    for volume_id in sorted(shared):
        await check_not_attached_elsewhere(tx, server.id, volume_id, multiattach=shared[volume_id])
    if devices:
        await block_devices.insert(tx, [device.record(server.id, server.created_at) for device in devices])


def hostname_of(name: str, server_id: str) -> str:
    label = re.sub(r"[^a-z0-9.-]", "", re.sub(r"[ _]", "-", name.lower())).replace(".", "-").strip("-")[:63]
    return label.strip("-") or f"server-{server_id}"


def check_needs(
    flavor_id: str, flavor: Flavor | EmbeddedFlavor, image_properties: dict[str, str], *, root_disk: bool = True
) -> None:
    """Check that the requirements of flavor and image are valid."""
    try:
        host_requirements(flavor, image_properties, root_disk=root_disk)
    except ValueError as error:
        raise BadRequest(f"Flavor {flavor_id} cannot be placed: {error}") from None


async def find_key(ctx: Context, name: str | None) -> KeyPair | None:
    if name is None:
        return None
    key = await keypairs.get(ctx.db, ctx.token.user_id, name)
    if key is None:
        raise BadRequest("Invalid key_name provided.")
    return key


async def _security_groups(ctx: Context, requested: list[dict[str, str]]) -> list[str]:
    names = [group["name"] for group in requested if "name" in group] or ["default"]
    if names != ["default"]:
        known = await ctx.services.network.security_groups(str(ctx.token.project_id), ctx.auth_token)
        found = Counter(name for group in known for name in (group.name, group.id))
        for name in names:
            if not found[name]:
                raise BadRequest(f"Security group {name} not found for project {ctx.token.project_id}.")
            if found[name] > 1:
                raise Conflict(f"Multiple security groups found matching '{name}'. Use an ID to be more specific.")
    return names


async def check_metadata(ctx: Context, metadata: dict[str, str]) -> None:
    if metadata:
        source = await find_source(ctx.services, ctx.token.project_id)
        await check_metadata_within(ctx, ctx.db, source, metadata)


async def check_metadata_within(ctx: Context, reader: Reader, source: Source, metadata: dict[str, str]) -> None:
    limits = await quotas.limits(reader, ctx.token.project_id, source, ctx.token.user_id)
    most = limits["metadata_items"]
    if 0 <= most < len(metadata):
        raise Forbidden(f"Quota exceeded for metadata items: {len(metadata)} given, {most} allowed")
