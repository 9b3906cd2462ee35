"""Client of the network service, built in or a real Neutron. It uses only the public API."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode

from msgspec import Struct, field
from msgspec.json import Decoder

from kilonova.http.client import Refused, Unreachable, valid_response
from kilonova.network.resource_kind import ResourceKind

if TYPE_CHECKING:
    from kilonova.http.client import Caller, ClientResponse

T = TypeVar("T")
Attributes = Mapping[str, object]
# Values of `binding:vif_type` of ports that have no host, and whose host the service cannot connect.
UNBOUND, BINDING_FAILED = "unbound", "binding_failed"
# The type of the error 500 for a host that the service cannot connect.
PORT_BINDING_ERROR = "PortBindingError"
DNS_INTEGRATION = "dns-integration"
Query = Sequence[tuple[str, str]]
# Keeps the URL within the length that every server accepts.
_IDS_PER_REQUEST = 100
_EXTENSIONS_SECONDS = 600.0
_PAGE_SIZE = 1000


class NetworkError(Refused):
    """The network service refused a request; `kind` is the `type` of its error."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(status, message)
        self.kind = kind


# Resources with the attributes that compute reads. A Neutron without an extension omits its attributes, and so does the
# policy of a token that may not see them. Some plugins of Neutron show attributes of extensions as null.


class Network(Struct, frozen=True):
    id: str
    name: str = ""
    project_id: str = ""
    shared: bool = False
    external: bool = field(name="router:external", default=False)
    is_default: bool | None = False
    subnets: list[str] = []
    mtu: int | None = 0
    port_security_enabled: bool | None = True


class HostRoute(Struct, frozen=True):
    destination: str
    nexthop: str


class Subnet(Struct, frozen=True, omit_defaults=True):
    id: str
    ip_version: int
    cidr: str = ""
    gateway_ip: str | None = None
    enable_dhcp: bool = True
    dns_nameservers: list[str] = []
    host_routes: list[HostRoute] = []
    ipv6_address_mode: str | None = None


class FixedIp(Struct, frozen=True):
    subnet_id: str
    ip_address: str


class ResourceRequestGroup(Struct, frozen=True):
    """Resources that one provider of the port's host must have. Without the extension for groups, `id` is empty."""

    id: str = ""
    resources: dict[str, int] = {}
    required: list[str] = []


class ResourceRequestGroups(Struct, frozen=True):
    """`resource_request` of a port, in the form with groups (`request_groups`) or without (`resources`)."""

    request_groups: list[ResourceRequestGroup] = []
    same_subtree: list[str] = []
    resources: dict[str, int] = {}
    required: list[str] = []


class Port(Struct, frozen=True):
    id: str
    network_id: str
    mac_address: str
    project_id: str = ""
    status: str = ""
    device_id: str = ""
    device_owner: str = ""
    fixed_ips: list[FixedIp] = []
    security_groups: list[str] = []
    port_security_enabled: bool | None = True
    binding_host_id: str | None = field(name="binding:host_id", default="")
    binding_vif_type: str | None = field(name="binding:vif_type", default="")
    binding_vnic_type: str = field(name="binding:vnic_type", default="normal")
    binding_vif_details: dict[str, object] | None = field(name="binding:vif_details", default_factory=dict)
    binding_profile: dict[str, object] | None = field(name="binding:profile", default_factory=dict)
    admin_state_up: bool = True
    dns_name: str | None = None
    ip_allocation: str | None = None
    # Which of the two forms it has depends on Neutron's extension port-resource-request-groups.
    resource_request: ResourceRequestGroups | None = None
    revision_number: int | None = None

    @property
    def is_bound(self) -> bool:
        """Whether the service could bind the port to its host. Compute plugs no other ports."""
        return self.binding_vif_type not in ("", None, UNBOUND, BINDING_FAILED)


class Binding(Struct, frozen=True):
    host: str
    status: str = ""
    vif_type: str = ""
    vif_details: dict[str, object] | None = {}
    vnic_type: str = "normal"


class SecurityGroupRule(Struct, frozen=True):
    id: str
    security_group_id: str
    direction: str
    ethertype: str | None = None
    protocol: str | None = None
    port_range_min: int | None = None
    port_range_max: int | None = None
    remote_ip_prefix: str | None = None
    remote_group_id: str | None = None


class SecurityGroup(Struct, frozen=True):
    id: str
    name: str
    project_id: str = ""
    description: str | None = None
    rules: list[SecurityGroupRule] = field(name="security_group_rules", default_factory=list)


class FloatingIp(Struct, frozen=True):
    id: str
    floating_network_id: str
    floating_ip_address: str
    fixed_ip_address: str | None = None
    port_id: str | None = None


class _Extension(Struct, frozen=True):
    alias: str


class _Topology(Struct, frozen=True):
    id: str


class _TopologyBody(Struct, frozen=True):
    auto_allocated_topology: _Topology


_topology = valid_response("network")(Decoder(_TopologyBody).decode)

_NETWORK = ResourceKind("network", "networks", Network, list[Network])
_SUBNET = ResourceKind("subnet", "subnets", Subnet, list[Subnet])
_PORT = ResourceKind("port", "ports", Port, list[Port])
_BINDING = ResourceKind("binding", "bindings", Binding, list[Binding])
_GROUP = ResourceKind("security_group", "security_groups", SecurityGroup, list[SecurityGroup])
_RULE = ResourceKind("security_group_rule", "security_group_rules", SecurityGroupRule, list[SecurityGroupRule])
_EXTENSION = ResourceKind("extension", "extensions", _Extension, list[_Extension])
_FLOATING_IP = ResourceKind("floatingip", "floatingips", FloatingIp, list[FloatingIp])


class NetworkClient:
    """The caller's base URL has no version. Every method may raise NetworkError or Unreachable.

    The built-in service wires bound ports itself: `built_in` tells whether compute has to pass on how ports are bound,
    to wait until they are plugged, and to store the details of interfaces that it shows.

    A real Neutron that has just started denies the existence of everything for a moment: lists are empty, and single
    objects are not found. So what should exist is requested again once the service shows security groups.
    """

    def __init__(self, caller: Caller, *, built_in: bool = True) -> None:
        self._caller = caller
        self.built_in = built_in
        self._extensions: frozenset[str] = frozenset()
        self._extensions_due = -math.inf

    async def has_extension(self, alias: str, token: str) -> bool:
        """Whether the service has the extension. The answer may be some minutes old."""
        if time.monotonic() >= self._extensions_due:
            found = await self._list(_EXTENSION, token)
            self._extensions = frozenset(extension.alias for extension in found)
            self._extensions_due = time.monotonic() + _EXTENSIONS_SECONDS
        return alias in self._extensions

    # Networks

    async def available_networks(self, project_id: str, token: str) -> list[Network]:
        """The networks of a server whose request names none: the project's own, then shared ones."""
        up = ("admin_state_up", "True")

        async def find() -> list[Network]:
            own = await self._list(_NETWORK, token, [("project_id", project_id), ("shared", "False"), up])
            return own + await self._list(_NETWORK, token, [("shared", "True"), up])

        return await self._at_least(1, find, token)

    async def all_networks(self, token: str) -> list[Network]:
        """All networks that the token can see."""
        return await self._list(_NETWORK, token)

    async def external_networks(self, token: str) -> list[Network]:
        return await self._list(_NETWORK, token, [("router:external", "True")])

    async def networks(self, network_ids: Sequence[str], token: str) -> list[Network]:
        """The networks with these ids, without those that are missing or hidden from the token."""
        return await self._by(_NETWORK, "id", network_ids, token)

    async def network(self, network_id: str, token: str) -> Network | None:
        return await self._find(_NETWORK, network_id, token)

    async def auto_allocate(self, project_id: str, token: str) -> Network:
        """The project's auto-allocated network, created if missing."""
        body = await self._call("GET", f"/v2.0/auto-allocated-topology/{quote(project_id, safe='')}", token)
        network_id = _topology(body).auto_allocated_topology.id
        found = await self.network(network_id, token)
        if found is None:
            raise NetworkError(404, "NetworkNotFound", f"Network {network_id} could not be found.")
        return found

    async def check_auto_allocate(self, project_id: str, token: str) -> None:
        """Raise NetworkError if `auto_allocate` would fail."""
        path = f"/v2.0/auto-allocated-topology/{quote(project_id, safe='')}?fields=dry-run"
        await self._call("GET", path, token)

    async def subnets(self, subnet_ids: Sequence[str], token: str) -> list[Subnet]:
        return await self._by(_SUBNET, "id", subnet_ids, token)

    # Ports

    async def port(self, port_id: str, token: str) -> Port | None:
        return await self._find(_PORT, port_id, token)

    async def ports(self, port_ids: Sequence[str], token: str) -> list[Port]:
        """The ports with these ids, without those that are missing or hidden from the token."""
        return await self._by(_PORT, "id", port_ids, token)

    async def ports_of_device(self, device_id: str, project_id: str, token: str, *, expected: int = 1) -> list[Port]:
        """The project's ports of a device. Every user can name any device, so other projects' ports do not count.

        `expected`: how many ports there should be. With 0, none is an answer that is not doubted.
        """
        query = [("device_id", device_id), ("project_id", project_id)]
        return await self._at_least(expected, lambda: self._list(_PORT, token, query), token)

    async def ports_with_address(self, network_id: str, address: str, token: str) -> list[Port]:
        """The ports of the network that have this address."""
        return await self._list(_PORT, token, [("network_id", network_id), ("fixed_ips", f"ip_address={address}")])

    async def all_ports(self, token: str) -> list[Port]:
        """All ports that the token can see, with device and host only, in pages."""
        names = ("id", "network_id", "mac_address", "device_id", "device_owner", "binding:host_id")
        query = [*(("fields", name) for name in names), ("limit", str(_PAGE_SIZE))]
        return await self._at_least(1, lambda: self._list(_PORT, token, query), token)

    async def create_port(self, port: Attributes, token: str) -> Port:
        return await self._create(_PORT, port, token)

    async def create_ports(self, ports: Sequence[Attributes], token: str) -> list[Port]:
        """Create all ports or, on an error, none. Returns them in the given order."""
        if len(ports) <= 1:
            return [await self.create_port(port, token) for port in ports]
        return _PORT.many(await self._call("POST", _PORT.path, token, {"ports": list(ports)}))

    async def update_port(self, port_id: str, changes: Attributes, token: str, revision: int | None = None) -> Port:
        """Update a port. With a `revision`, NetworkError 412 if the port has another revision by now."""
        return await self._update(_PORT, port_id, changes, token, revision)

    async def delete_port(self, port_id: str, token: str) -> None:
        """Delete a port. A missing port is no error."""
        try:
            await self._delete(_PORT, port_id, token)
        except NetworkError as error:
            if error.status != 404:
                raise

    async def delete_ports(self, port_ids: Sequence[str], token: str) -> None:
        for port_id in port_ids:
            await self.delete_port(port_id, token)

    # Port bindings

    async def bindings(self, port_id: str, token: str) -> list[Binding]:
        """The port's bindings; empty if the port is missing or the service does not have the extension."""
        try:
            return _BINDING.many(await self._call("GET", _binding_path(port_id), token))
        except NetworkError as error:
            if error.status != 404:
                raise
            return []

    async def create_binding(self, port_id: str, binding: Attributes, token: str) -> Binding:
        return _BINDING.one(await self._call("POST", _binding_path(port_id), token, {"binding": binding}))

    async def activate_binding(self, port_id: str, host: str, token: str) -> None:
        """Make a binding the active one. The previously active binding becomes inactive."""
        await self._call("PUT", f"{_binding_path(port_id, host)}/activate", token)

    async def delete_binding(self, port_id: str, host: str, token: str) -> None:
        """Delete a binding. A missing binding is no error."""
        try:
            await self._call("DELETE", _binding_path(port_id, host), token)
        except NetworkError as error:
            if error.status != 404:
                raise

    # Security groups

    async def security_groups(self, project_id: str | None, token: str) -> list[SecurityGroup]:
        """The project's groups, or without a project all groups that the token can see."""
        query = [("project_id", project_id)] if project_id else ()
        return await self._at_least(1, lambda: self._list(_GROUP, token, query), token)

    async def groups(self, group_ids: Sequence[str], token: str) -> list[SecurityGroup]:
        return await self._by(_GROUP, "id", group_ids, token)

    async def security_group(self, group_id: str, token: str) -> SecurityGroup:
        return await self._show(_GROUP, group_id, token)

    async def create_security_group(self, group: Attributes, token: str) -> SecurityGroup:
        return await self._create(_GROUP, group, token)

    async def update_security_group(self, group_id: str, changes: Attributes, token: str) -> SecurityGroup:
        return await self._update(_GROUP, group_id, changes, token)

    async def delete_security_group(self, group_id: str, token: str) -> None:
        await self._delete(_GROUP, group_id, token)

    async def create_rule(self, rule: Attributes, token: str) -> SecurityGroupRule:
        return await self._create(_RULE, rule, token)

    async def delete_rule(self, rule_id: str, token: str) -> None:
        await self._delete(_RULE, rule_id, token)

    # Floating IPs

    async def floating_ips(self, project_id: str | None, token: str) -> list[FloatingIp]:
        """The project's floating IPs, or without a project all that the token can see."""
        return await self._list(_FLOATING_IP, token, [("project_id", project_id)] if project_id else ())

    async def floating_ips_with_address(self, address: str, token: str) -> list[FloatingIp]:
        return await self._list(_FLOATING_IP, token, [("floating_ip_address", address)])

    async def floating_ips_of_ports(self, port_ids: Sequence[str], token: str) -> list[FloatingIp]:
        """The floating IPs that are associated with any of the ports."""
        return await self._by(_FLOATING_IP, "port_id", port_ids, token)

    async def floating_ip(self, floating_ip_id: str, token: str) -> FloatingIp:
        return await self._show(_FLOATING_IP, floating_ip_id, token)

    async def create_floating_ip(self, network_id: str, token: str) -> FloatingIp:
        return await self._create(_FLOATING_IP, {"floating_network_id": network_id}, token)

    async def update_floating_ip(self, floating_ip_id: str, changes: Attributes, token: str) -> FloatingIp:
        return await self._update(_FLOATING_IP, floating_ip_id, changes, token)

    async def delete_floating_ip(self, floating_ip_id: str, token: str) -> None:
        await self._delete(_FLOATING_IP, floating_ip_id, token)

    # Requests for resources of any kind

    async def _find(self, kind: ResourceKind[T], item_id: str, token: str) -> T | None:
        try:
            return await self._show(kind, item_id, token)
        except NetworkError as error:
            if error.status == 404:
                return None
            raise

    async def _show(self, kind: ResourceKind[T], item_id: str, token: str) -> T:
        return kind.one(await self._call("GET", _path(kind, item_id), token))

    async def _create(self, kind: ResourceKind[T], item: Attributes, token: str) -> T:
        return kind.one(await self._call("POST", kind.path, token, {kind.singular: item}))

    async def _update(
        self, kind: ResourceKind[T], item_id: str, changes: Attributes, token: str, revision: int | None = None
    ) -> T:
        headers = {} if revision is None else {"If-Match": f"revision_number={revision}"}
        return kind.one(await self._call("PUT", _path(kind, item_id), token, {kind.singular: changes}, headers))

    async def _delete(self, kind: ResourceKind[T], item_id: str, token: str) -> None:
        await self._call("DELETE", _path(kind, item_id), token)

    async def _by(self, kind: ResourceKind[T], key: str, values: Sequence[str], token: str) -> list[T]:
        if not values:
            return []
        if len(values) <= _IDS_PER_REQUEST:
            query = [(key, value) for value in values]
            return await self._at_least(
                len(values) if key == "id" else 0, lambda: self._list(kind, token, query), token
            )
        parts = [values[start : start + _IDS_PER_REQUEST] for start in range(0, len(values), _IDS_PER_REQUEST)]
        found = await asyncio.gather(*(self._by(kind, key, part, token) for part in parts))
        return [item for part in found for item in part]

    async def _list(self, kind: ResourceKind[T], token: str, query: Query = ()) -> list[T]:
        """All items that the query matches, from all pages."""
        found, path = kind.page(await self._call("GET", f"{kind.path}?{urlencode(query)}", token))
        while path:
            page, path = kind.page(await self._call("GET", path, token))
            found += page
        return found

    async def _at_least(self, count: int, find: Callable[[], Awaitable[list[T]]], token: str) -> list[T]:
        """The found objects. If there are fewer, requests them again once the service has started."""
        found = await find()
        if len(found) >= count or self.built_in:
            return found
        await self._check_started(token)
        return await find()

    async def _check_started(self, token: str) -> None:
        """Raise Unreachable if the service shows no security group. Each project has one by default."""
        path = f"{_GROUP.path}?fields=id&fields=name&limit=1"
        response = await self._caller.request("GET", path, headers=_headers(token))
        if response.status == 404:
            return  # the service has no security groups
        if response.status >= 400:
            raise _error(response)
        if not _GROUP.page(response.body)[0]:
            raise Unreachable("the network service has not started completely")

    async def _call(
        self,
        method: str,
        path: str,
        token: str,
        json: Attributes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        sent = {**_headers(token), **(headers or {})}
        response = await self._caller.request(method, path, headers=sent, json=json)
        if response.status == 404 and not self.built_in:
            await self._check_started(token)
            response = await self._caller.request(method, path, headers=sent, json=json)
        if response.status >= 400:
            raise _error(response)
        return response.body


def _headers(token: str) -> dict[str, str]:
    return {"X-Auth-Token": token, "Accept": "application/json"}


def _path(kind: ResourceKind[T], item_id: str) -> str:
    return f"{kind.path}/{quote(item_id, safe='')}"


def _binding_path(port_id: str, host: str = "") -> str:
    return f"/v2.0/ports/{quote(port_id, safe='')}/bindings" + (f"/{quote(host, safe='')}" if host else "")


def _error(response: ClientResponse) -> Exception:
    kind, message = "", f"the network service answered {response.status}"
    try:
        fault = response.json()["NeutronError"]
        if isinstance(fault, dict):
            kind, message = str(fault.get("type", "")), str(fault.get("message", message))
        else:
            message = str(fault)
    except (ValueError, KeyError, TypeError):
        pass
    if (response.status >= 500 and kind != PORT_BINDING_ERROR) or response.status == 429:
        return Unreachable(f"the network service answered {response.status}")
    return NetworkError(response.status, kind, message)
