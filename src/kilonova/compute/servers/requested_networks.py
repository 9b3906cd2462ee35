"""Resolves the requested networks of a new server, with the network service."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context
from kilonova.http.errors import BadRequest, Conflict, Forbidden
from kilonova.network.client import NetworkError

ATTACH = "os_compute_api:servers:create:attach_network"
EXTERNAL = "network:attach_external_network"
# Neutron's rule. Compute checks it, because compute's service user creates the ports.
CHOOSE_ADDRESS = "create_port:fixed_ips:ip_address"

# `networks` of a request of a microversion before 2.37 without that key.
NOT_REQUESTED = None


async def resolve(ctx: Context, requested: Any) -> list[dict[str, Any]]:
    """One entry per interface: a network, perhaps with an address, or an existing port."""
    if requested == "none":
        return []
    if requested == "auto" or requested is NOT_REQUESTED or requested == []:
        return await default_networks(ctx, allocate=requested == "auto")
    ctx.authorize(ATTACH)
    return await resolve_list(ctx, requested)


async def default_networks(ctx: Context, *, allocate: bool) -> list[dict[str, Any]]:
    """The project's only network. With `allocate` the boot creates one if there is none."""
    known = await ctx.services.network.available_networks(ctx.token.project_id or "", ctx.auth_token)
    found = [network for network in known if not network["router:external"]]
    if len(found) > 1:
        raise Conflict("Multiple possible networks found, use a Network ID to be more specific.")
    if found:
        return [_entry(found[0])]
    if not allocate:
        return []
    try:
        await ctx.services.network.check_auto_allocate(ctx.token.project_id or "", ctx.auth_token)
    except NetworkError as error:
        raise BadRequest(f"Unable to automatically allocate a network for the project: {error}") from None
    return [{"network_id": None, "label": "", "port": None, "fixed_ip": None, "tag": None}]


async def resolve_list(ctx: Context, requested: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of named networks and ports."""
    wanted = {entry["uuid"] for entry in requested if entry.get("uuid") and not entry.get("port")}
    networks = {
        network["id"]: network
        for network in (await ctx.services.network.networks(sorted(wanted), ctx.auth_token) if wanted else [])
    }
    for missing in sorted(wanted - networks.keys()):
        raise BadRequest(f"Network {missing} could not be found.")
    for network in networks.values():
        if network["router:external"] and not network["shared"] and not ctx.may(EXTERNAL):
            raise Forbidden(f"It is not allowed to create an interface on external network {network['id']}")
    for entry in requested:
        if entry.get("fixed_ip") and entry.get("uuid") in networks:
            _authorize_address(ctx, networks[entry["uuid"]])
    found = []
    for place, entry in enumerate(requested):
        if entry.get("port"):
            found.append(await _port(ctx, entry))
        elif entry.get("uuid"):
            found.append(
                {**_entry(networks[entry["uuid"]]), "fixed_ip": entry.get("fixed_ip"), "tag": entry.get("tag")}
            )
        else:
            raise BadRequest(f"Invalid input for field/attribute server.networks[{place}]: give a uuid or a port.")
    ports = [entry["port"] for entry in found if entry["port"]]
    if len(set(ports)) != len(ports):
        raise BadRequest("Invalid input for field/attribute server.networks: a port is listed twice.")
    return found


def _authorize_address(ctx: Context, network: dict[str, Any]) -> None:
    target = {"project_id": ctx.token.project_id, "network:project_id": network["project_id"]}
    if not ctx.may(CHOOSE_ADDRESS, target):
        raise Forbidden(f"It is not allowed to choose an address on network {network['id']} of another project.")


async def _port(ctx: Context, entry: dict[str, Any]) -> dict[str, Any]:
    port = await ctx.services.network.port(entry["port"], ctx.auth_token)
    if port is None:
        raise BadRequest(f"Port id {entry['port']} could not be found.")
    if port["device_id"]:
        raise Conflict(f"Port {entry['port']} is still in use.")
    if not port["fixed_ips"]:
        raise BadRequest(f"Port {entry['port']} requires a FixedIP in order to be used.")
    if entry.get("fixed_ip"):
        raise BadRequest(
            "Invalid input for field/attribute fixed_ip: it cannot be set for a port, which has its own addresses."
        )
    found = await ctx.services.network.networks([port["network_id"]], ctx.auth_token)
    label = found[0]["name"] if found else port["network_id"]
    return {
        "network_id": port["network_id"],
        "label": label,
        "port": port["id"],
        "fixed_ip": None,
        "tag": entry.get("tag"),
    }


def _entry(network: dict[str, Any]) -> dict[str, Any]:
    if not network["subnets"]:
        raise BadRequest(f"Network {network['id']} requires a subnet in order to boot instances on.")
    return {"network_id": network["id"], "label": network["name"], "port": None, "fixed_ip": None, "tag": None}
