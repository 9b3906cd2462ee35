"""What compute sets at the ports of a server, and removes when it releases a port of the user."""

from __future__ import annotations

from collections.abc import Callable

from kilonova.compute.host_calls import HostCallFailed
from kilonova.compute.operations.steps.choose import CLAIM, Claim
from kilonova.compute.operations.steps.server import server_of, zone_of
from kilonova.hosts.transport import HostCallError
from kilonova.network.client import BINDING_FAILED, DNS_INTEGRATION, Port
from kilonova.operations import Operation

Changes = dict[str, object]
# The value of ALLOCATION for a port: the provider's uuid, or that of each group. None: the port needs no resources.
AllocationOf = Callable[[Port], object]

# `device_owner` of ports at the built-in service, and of ports that no host has yet.
OWNER = "compute:nova"
# The key of `binding:profile` by which Neutron learns from which resource providers a port's resources come.
ALLOCATION = "allocation"


class PortNotBound(HostCallError):
    """The network service cannot connect the port to the host."""

    public = "its network could not be bound"


def check_bound(port: Port, host: str) -> None:
    """Raises HostCallFailed, so that the operation can try the next host."""
    if host and port.binding_vif_type == BINDING_FAILED:
        raise not_bound(port.id, host)


def not_bound(port_id: str, host: str) -> HostCallFailed:
    outcome = PortNotBound(host, f"port {port_id}: binding failed")
    return HostCallFailed(f"Port {port_id} cannot be bound to the host", outcome)


async def device_owner(op: Operation, host: str) -> str:
    """`compute:` and the zone of the host. The built-in service does not look at it."""
    return OWNER if op.services.network.built_in or not host else f"compute:{await zone_of(op, host)}"


async def dns_name(op: Operation, token: str) -> str:
    """The name of the server in Neutron's DNS; empty without it."""
    network = op.services.network
    if network.built_in or not await network.has_extension(DNS_INTEGRATION, token):
        return ""
    return dns_label((await server_of(op)).hostname)


def dns_label(hostname: str) -> str:
    """The first label of a hostname, which may be fully qualified: Neutron adds the domain of the network."""
    return hostname.partition(".")[0]


def claimed_providers(claim: Claim) -> AllocationOf:
    """For ports at the host of the claim."""

    def allocation_of(port: Port) -> object:
        if port.resource_request is None:
            return None
        suffixes = (group.id for group in port.resource_request.request_groups)
        groups = {suffix: claim.providers[suffix] for suffix in suffixes if suffix in claim.providers}
        return groups or claim.providers.get(port.id)

    return allocation_of


def former_providers(claim: Claim) -> AllocationOf:
    """For ports at the host that the server had before the claim."""
    return lambda port: claim.former.get(port.id)


def present_providers(port: Port) -> object:
    return (port.binding_profile or {}).get(ALLOCATION)


def default_providers(op: Operation) -> AllocationOf:
    """For ports at the host that the operation has claimed, or else at the one that they have."""
    claim = op.find_result(CLAIM)
    return present_providers if claim is None else claimed_providers(claim)


def profile_changes(port: Port, allocation: object) -> Changes:
    """The user's keys of the profile stay."""
    present = port.binding_profile or {}
    profile = {name: value for name, value in present.items() if name != ALLOCATION}
    if allocation is not None:
        profile[ALLOCATION] = allocation
    return {} if profile == present else {"binding:profile": profile}


async def changes_for_host(op: Operation, port: Port, host: str, allocation_of: AllocationOf) -> Changes:
    """What differs at a port that moves to the host, beside its binding."""
    if op.services.network.built_in:
        return {}
    if not host:
        return profile_changes(port, None)
    owner = await device_owner(op, host)
    changes: Changes = {} if owner == port.device_owner else {"device_owner": owner}
    return changes | profile_changes(port, allocation_of(port))


def changes_to_release(port: Port, hostname: str) -> Changes:
    """The changes that unbind a port of the user. `hostname` is that of the server."""
    changes: Changes = {"device_id": "", "device_owner": "", "binding:host_id": "", **profile_changes(port, None)}
    if port.dns_name and port.dns_name == dns_label(hostname):
        changes["dns_name"] = ""
    return changes


def dns_changes(port: Port, name: str) -> Changes:
    """A port that has a name in the DNS keeps it."""
    return {"dns_name": name} if name and not port.dns_name else {}
