"""POST /servers: everything that can be refused is refused here; then one transaction writes all or nothing."""

from __future__ import annotations

import re
import secrets
import string
from collections import Counter
from typing import Any

import orjson

from kilonova.compute.flavors import model as flavors
from kilonova.compute.keypairs import model as keypairs
from kilonova.compute.operations.boot import Boot
from kilonova.compute.quotas import model as quotas
from kilonova.compute.schemas import address, is_true
from kilonova.compute.servers import model, networks, states
from kilonova.compute.zones import model as zones
from kilonova.http import Context
from kilonova.http.errors import BadRequest, Conflict, Forbidden
from kilonova.ids import new_id
from kilonova.operations import begin
from kilonova.store import Row

FORCED_HOST = "os_compute_api:servers:create:forced_host"
ZERO_DISK = "os_compute_api:servers:create:zero_disk_flavor"
# One transaction writes them all, and others wait for it.
MOST_AT_ONCE = 1000
_ALPHABET = string.ascii_letters + string.digits


class Created:
    """What the answer to a create needs."""

    def __init__(self, servers: list[Row], reservation_id: str, password: str, groups: list[str]) -> None:
        self.servers = servers
        self.reservation_id = reservation_id
        self.password = password
        self.groups = groups


async def create(ctx: Context) -> Created:
    body = ctx.body["server"]
    if ctx.token.project_id is None:
        raise Forbidden("A server belongs to a project, and this token is of none.")
    least, most = _count(body)
    flavor = await _flavor(ctx, str(body["flavorRef"]))
    image = await _image(ctx, _image_id(body), flavor)
    key = await _key(ctx, body.get("key_name"))
    pin, destination = await _zone(ctx, body.get("availability_zone"))
    nics = await networks.requested(ctx, body["networks"])
    if most > 1 and any(nic["port"] or nic["fixed_ip"] for nic in nics):
        raise BadRequest("Unable to launch multiple instances with a single configured port or fixed IP.")
    groups = await _security_groups(ctx, body.get("security_groups", []))
    await _check_metadata(ctx, body.get("metadata", {}))
    password = body.get("adminPass") or "".join(secrets.choice(_ALPHABET) for _ in range(12))
    reservation_id = "r-" + "".join(secrets.choice("0123456789abcdefghijklmnopqrstuvwxyz") for _ in range(8))
    common = {**_record(ctx, flavor, image, key), "pinned_zone": pin, "reservation_id": reservation_id}
    params = {"networks": nics, "security_groups": groups, "destination": destination}
    each = {"instances": 1, "cores": flavor["vcpus"], "ram": flavor["ram"]}
    async with ctx.db.transaction() as tx:
        count = await quotas.fit(tx, ctx.token.project_id, ctx.services.config, each, least, most)
        servers = [{**common, **_own(ctx, body, place, count)} for place in range(count)]
        for server in servers:
            await model.insert(tx, server)
            await begin(
                tx,
                Boot,
                params=params,
                server_id=server["id"],
                project_id=server["project_id"],
                user_id=server["user_id"],
                request_id=ctx.request_id,
            )
    return Created(servers, reservation_id, password, groups)


def _count(body: dict[str, Any]) -> tuple[int, int]:
    """How many servers at least and at most; the quota decides between."""
    least = int(body.get("min_count", 1))
    most = int(body.get("max_count", least))
    if least > most:
        raise BadRequest("min_count must be <= max_count")
    if least > MOST_AT_ONCE:
        raise BadRequest(f"Invalid input for field/attribute min_count: at most {MOST_AT_ONCE} servers at once.")
    if most > 1 and "hostname" in body:
        raise BadRequest("Invalid input for field/attribute hostname: it cannot be given for several servers.")
    return least, min(most, MOST_AT_ONCE)


def _record(ctx: Context, flavor: Row, image: dict[str, Any], key: Row | None) -> Row:
    """What the servers of one request have in common; flavor, image and key are kept as they are now."""
    body = ctx.body["server"]
    hints = ctx.body.get("os:scheduler_hints", ctx.body.get("OS-SCH-HNT:scheduler_hints", {}))
    return {
        "project_id": ctx.token.project_id,
        "user_id": ctx.token.user_id,
        "vm_state": states.BUILDING,
        "power_state": states.NOSTATE,
        "flavor_id": flavor["flavor_id"],
        "vcpus": flavor["vcpus"],
        "ram": flavor["ram"],
        "flavor": orjson.dumps(_flavor_copy(flavor)).decode(),
        "image_id": image["id"],
        "image_properties": orjson.dumps(_image_properties(image)).decode(),
        "key_name": key["name"] if key else None,
        "public_key": key["public_key"] if key else None,
        "user_data": body.get("user_data"),
        "metadata": orjson.dumps(body.get("metadata", {})).decode(),
        "nics": "[]",
        "scheduler_hints": orjson.dumps(hints).decode(),
        "config_drive": is_true(body.get("config_drive", False)),
        "disk_config": body.get("OS-DCF:diskConfig", "MANUAL"),
        "access_ip_v4": address(body.get("accessIPv4")),
        "access_ip_v6": address(body.get("accessIPv6")),
        "root_device_name": "/dev/vda",
        "locked": False,
        "deleted": False,
        "created_at": ctx.now,
        "updated_at": ctx.now,
    }


def _own(ctx: Context, body: dict[str, Any], place: int, count: int) -> dict[str, Any]:
    """What tells the servers of one request apart."""
    server_id = new_id()
    name = body["name"] if count == 1 else f"{body['name']}-{place + 1}"
    return {
        "id": server_id,
        "name": name,
        "description": body.get("description") if ctx.behaves("a server's description is its own") else name,
        "hostname": body.get("hostname") or hostname_of(name, server_id),
        "launch_index": place,
    }


def hostname_of(name: str, server_id: str) -> str:
    label = re.sub(r"[^a-z0-9.-]", "", re.sub(r"[ _]", "-", name.lower())).replace(".", "-").strip("-")[:63]
    return label.strip("-") or f"server-{server_id}"


async def _flavor(ctx: Context, reference: str) -> Row:
    """Old clients send a link instead of an id."""
    flavor_id = reference.rstrip("/").rsplit("/", 1)[-1]
    flavor = await flavors.get(ctx.db, flavor_id, ctx.token)
    if flavor is None or flavor["disabled"]:
        raise BadRequest(f"Flavor {flavor_id} could not be found.")
    return flavor


def _flavor_copy(flavor: Row) -> dict[str, Any]:
    specs = flavor["extra_specs"]
    copied = {name: flavor[name] for name in ("name", "vcpus", "ram", "disk", "ephemeral", "swap")}
    return {**copied, "extra_specs": orjson.loads(specs) if isinstance(specs, str) else specs}


def _image_id(body: dict[str, Any]) -> str:
    reference = body.get("imageRef", "").rstrip("/").rsplit("/", 1)[-1]
    devices = body.get("block_device_mapping_v2", [])
    if devices:
        if reference and reference != devices[0]["uuid"]:
            raise BadRequest("Block Device Mapping is Invalid: its image is not that of imageRef.")
        reference = devices[0]["uuid"]
    if not reference:
        raise BadRequest("Invalid imageRef provided: a server boots from an image.")
    return str(reference)


async def _image(ctx: Context, image_id: str, flavor: Row) -> dict[str, Any]:
    image: dict[str, Any] | None = await ctx.services.image.show(image_id, ctx.auth_token)
    if image is None:
        raise BadRequest(f"Can not find requested image {image_id}.")
    if image["status"] != "active":
        raise BadRequest(f"Image {image_id} is not active.")
    if image["min_ram"] > flavor["ram"]:
        raise BadRequest("Flavor's memory is too small for requested image.")
    if flavor["disk"] == 0:
        ctx.authorize(ZERO_DISK)
    else:
        if image["min_disk"] > flavor["disk"]:
            raise BadRequest(
                "The created instance's disk would be too small: the image asks for more than the flavor has."
            )
        if (image["size"] or 0) > flavor["disk"] * 2**30:
            raise BadRequest("Flavor's disk is too small for requested image.")
    return image


_IMAGE_FACTS = frozenset(
    {
        *("id", "name", "status", "visibility", "tags", "owner", "file", "schema", "self", "checksum", "size"),
        *("virtual_size", "created_at", "updated_at", "protected", "os_hidden", "os_hash_algo", "os_hash_value"),
        *("direct_url", "locations", "stores", "members"),
    }
)


def _image_properties(image: dict[str, Any]) -> dict[str, str]:
    """The image's own metadata, kept with the server as it was at boot."""
    return {key: str(value) for key, value in image.items() if key not in _IMAGE_FACTS and value is not None}


async def _key(ctx: Context, name: str | None) -> Row | None:
    if name is None:
        return None
    key = await keypairs.get(ctx.db, ctx.token.user_id, name)
    if key is None:
        raise BadRequest("Invalid key_name provided.")
    return key


async def _zone(ctx: Context, asked: str | None) -> tuple[str | None, str | None]:
    """The pin, and the host of the `zone:host` form, which only some may use."""
    if asked is None:
        return None, None
    zone, _, rest = asked.partition(":")
    host = rest.partition(":")[0]
    if ":" in asked:
        ctx.authorize(FORCED_HOST)
    if host and not await ctx.db.fetch_one("SELECT 1 AS one FROM hypervisors WHERE host = $1", host):
        raise BadRequest(f"Compute host {host} could not be found.")
    known = await zones.zones(ctx.db, ctx.services.config.scheduler.default_zone)
    if zone and zone not in known:
        raise BadRequest("The requested availability zone is not available")
    return zone or None, host or None


async def _security_groups(ctx: Context, asked: list[dict[str, str]]) -> list[str]:
    names = [group["name"] for group in asked if "name" in group] or ["default"]
    if names != ["default"]:
        known = await ctx.services.network.security_groups(str(ctx.token.project_id), ctx.auth_token)
        found = Counter(group[key] for group in known for key in ("name", "id"))
        for name in names:
            if not found[name]:
                raise BadRequest(f"Security group {name} not found for project {ctx.token.project_id}.")
            if found[name] > 1:
                raise Conflict(f"Multiple security groups found matching '{name}'. Use an ID to be more specific.")
    return names


async def _check_metadata(ctx: Context, metadata: dict[str, str]) -> None:
    if not metadata:
        return
    most = (await quotas.limits(ctx.db, ctx.token.project_id, ctx.services.config))["metadata_items"]
    if 0 <= most < len(metadata):
        raise Forbidden(f"Quota exceeded for metadata items: {len(metadata)} given, {most} allowed")
