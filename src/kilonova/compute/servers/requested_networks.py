"""Resolves the requested networks of a new server, with the network service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from kilonova.http import Context
from kilonova.http.errors import BadRequest, Conflict, Forbidden
from kilonova.network.client import Network, NetworkError, Port

ATTACH = "os_compute_api:servers:create:attach_network"
EXTERNAL = "network:attach_external_network"
# Neutron's rule. Compute checks it, because compute's service user creates the ports.
CHOOSE_ADDRESS = "create_port:fixed_ips:ip_address"

# `networks` of a request of a microversion before 2.37 without that key.
NOT_REQUESTED = None


class RequestedInterface(Struct, frozen=True):
    """A network, perhaps with an address, or an existing port. Without a network, the boot allocates one."""

    network_id: str | None
    label: str
    port: str | None = None
    fixed_ip: str | None = None
    tag: str | None = None


# An entry of `networks` in a request: `uuid` or `port`, perhaps `fixed_ip` and `tag`.
RequestedNetwork = Mapping[str, str | None]


async def resolve(ctx: Context, requested: str | Sequence[RequestedNetwork] | None) -> list[RequestedInterface]:
    """One entry per interface."""
    if requested == "none":
        return []
    if isinstance(requested, str) or not requested:
        return await default_networks(ctx, allocate=requested == "auto")
    ctx.authorize(ATTACH)
    return await resolve_list(ctx, requested, ctx.token.project_id or "")


async def default_networks(ctx: Context, *, allocate: bool) -> list[RequestedInterface]:
    """The project's only network. With `allocate` the boot creates one if there is none."""
    known = await ctx.services.network.available_networks(ctx.token.project_id or "", ctx.auth_token)
    found = [network for network in known if not network.external]
    if len(found) > 1:
        raise Conflict("Multiple possible networks found, use a Network ID to be more specific.")
    if found:
        return [_interface_on(found[0])]
    if not allocate:
        return []
    try:
        await ctx.services.network.check_auto_allocate(ctx.token.project_id or "", ctx.auth_token)
    except NetworkError as error:
        raise BadRequest(f"Unable to automatically allocate a network for the project: {error}") from None
    return [RequestedInterface(network_id=None, label="")]


async def resolve_list(
    ctx: Context, requested: Sequence[RequestedNetwork], project_id: str
) -> list[RequestedInterface]:
    """The interfaces on named networks and ports. The ports must belong to the server's project."""
    wanted = {network_id for entry in requested if (network_id := entry.get("uuid")) and not entry.get("port")}
    networks = {network.id: network for network in await ctx.services.network.networks(sorted(wanted), ctx.auth_token)}
    for missing in sorted(wanted - networks.keys()):
        raise BadRequest(f"Network {missing} could not be found.")
    for network in networks.values():
        if network.external and not network.shared and not ctx.may(EXTERNAL):
            raise Forbidden(f"It is not allowed to create an interface on external network {network.id}")
    for entry in requested:
        if (address := entry.get("fixed_ip")) and (chosen := networks.get(entry.get("uuid") or "")):
            _authorize_address(ctx, chosen)
            await _check_free(ctx, chosen, address)
    found = []
    for place, entry in enumerate(requested):
        if port_id := entry.get("port"):
            found.append(await _interface_of_port(ctx, port_id, entry, project_id))
        elif network_id := entry.get("uuid"):
            interface = _interface_on(networks[network_id])
            found.append(structs.replace(interface, fixed_ip=entry.get("fixed_ip"), tag=entry.get("tag")))
        else:
            raise BadRequest(f"Invalid input for field/attribute networks[{place}]: give a uuid or a port.")
    ports = [interface.port for interface in found if interface.port]
    if len(set(ports)) != len(ports):
        raise BadRequest("Invalid input for field/attribute networks: a port is listed twice.")
    return found


def _authorize_address(ctx: Context, network: Network) -> None:
    target = {"project_id": ctx.token.project_id, "network:project_id": network.project_id}
    if not ctx.may(CHOOSE_ADDRESS, target):
        raise Forbidden(f"It is not allowed to choose an address on network {network.id} of another project.")


async def _check_free(ctx: Context, network: Network, address: str) -> None:
    """Raise BadRequest if another port has the address. The built-in service says so when the port is created."""
    if ctx.services.network.built_in:
        return
    token = await ctx.services.identity.token()
    if await ctx.services.network.ports_with_address(network.id, address, token):
        raise BadRequest(f"Fixed IP address {address} is already in use.")


async def _interface_of_port(
    ctx: Context, port_id: str, entry: RequestedNetwork, project_id: str
) -> RequestedInterface:
    port = await ctx.services.network.port(port_id, ctx.auth_token)
    if port is None:
        raise BadRequest(f"Port id {port_id} could not be found.")
    if port.project_id != project_id:
        raise BadRequest(f"Port {port_id} is not usable: it belongs to another project than the server.")
    if port.device_id:
        raise Conflict(f"Port {port_id} is still in use.")
    if not (port.fixed_ips or _may_lack_addresses(ctx, port)):
        raise BadRequest(f"Port {port_id} requires a FixedIP in order to be used.")
    if entry.get("fixed_ip"):
        raise BadRequest(
            "Invalid input for field/attribute fixed_ip: it cannot be set for a port, which has its own addresses."
        )
    found = await ctx.services.network.networks([port.network_id], ctx.auth_token)
    label = found[0].name if found else port.network_id
    return RequestedInterface(port.network_id, label, port.id, tag=entry.get("tag"))


def _may_lack_addresses(ctx: Context, port: Port) -> bool:
    """Whether the user wants no address, or Neutron chooses one when the port is bound."""
    return not ctx.services.network.built_in and port.ip_allocation in ("none", "deferred")


def _interface_on(network: Network) -> RequestedInterface:
    if not network.subnets:
        raise BadRequest(f"Network {network.id} requires a subnet in order to boot instances on.")
    return RequestedInterface(network.id, network.name)
