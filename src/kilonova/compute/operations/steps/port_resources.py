"""Resources that ports need of their host, such as bandwidth: Neutron derives them from the QoS policy of a port."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from kilonova.compute.operations.steps.network_errors import network_errors, refusal
from kilonova.compute.servers.server import Interface
from kilonova.network.client import Port, ResourceRequestGroup
from kilonova.operations import Failed, Operation
from kilonova.placement.candidates.model import RequestGroup
from kilonova.scheduler import Request


async def add(op: Operation, request: Request, port_ids: Sequence[str]) -> Request:
    """The request with a numbered group for each group of resources that the ports need."""
    network = op.services.network
    if network.built_in or not port_ids:
        return request
    async with network_errors():
        ports = await network.ports(port_ids, await op.services.identity.token())
    groups = {suffix: _group(group) for port in ports for suffix, group in _groups(port).items()}
    subtrees = tuple(
        frozenset(port.resource_request.same_subtree)
        for port in ports
        if port.resource_request and port.resource_request.same_subtree
    )
    if not groups:
        return request
    return structs.replace(
        request, groups={**request.groups, **groups}, same_subtree=(*request.same_subtree, *subtrees)
    )


def check_none(port: Port) -> None:
    """Fail for a port whose resources are not allocated: only ports that a new server names are known in time."""
    if _groups(port) and not (port.binding_profile or {}).get("allocation"):
        message = (
            f"Port {port.id} needs resources of its host by its QoS policy (resource_request). Create the port first,"
            " and name it in the request that creates the server."
        )
        raise Failed(message, fault=refusal(400, "PortResourceRequest", message))


async def allocated(op: Operation, interface: Interface) -> dict[str, dict[str, int]]:
    """The resources that are claimed for the interface's port, by provider and class. A deleted port tells none."""
    if interface.allocation is None:
        return {}
    async with network_errors():
        port = await op.services.network.port(interface.port_id, await op.services.identity.token())
    found: dict[str, dict[str, int]] = {}
    for suffix, group in _groups(port).items() if port else ():
        providers = interface.allocation
        uuid = providers.get(suffix) if isinstance(providers, dict) else providers
        amounts = found.setdefault(str(uuid), {})
        for name, amount in group.resources.items():
            amounts[name] = amounts.get(name, 0) + amount
    return found


def _groups(port: Port) -> dict[str, ResourceRequestGroup]:
    """The groups by suffix: the id of the group, or of the port where Neutron has no groups."""
    request = port.resource_request
    if request is None:
        return {}
    if request.request_groups:
        return {group.id: group for group in request.request_groups if group.resources}
    return {port.id: ResourceRequestGroup(port.id, request.resources, request.required)} if request.resources else {}


def _group(group: ResourceRequestGroup) -> RequestGroup:
    return RequestGroup(
        resources=group.resources, required=tuple(frozenset((trait,)) for trait in sorted(group.required))
    )
