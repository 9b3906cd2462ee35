"""Client of the network service, built in or a real Neutron. It uses only the public API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from kilonova.http.client import Refused, Unreachable

if TYPE_CHECKING:
    from kilonova.http.client import Caller, ClientResponse

Item = dict[str, Any]
# Keeps the URL within the length that every server accepts.
_IDS_PER_REQUEST = 100
_NO_HEADERS: Mapping[str, str] = {}


class NetworkError(Refused):
    """The network service refused a request; `kind` is the `type` of its error."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(status, message)
        self.kind = kind


class NetworkClient:
    """The caller's base URL has no version. Every method may raise NetworkError or Unreachable."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # Networks

    async def available_networks(self, project_id: str, token: str) -> list[Item]:
        """The networks of a server whose request names none: the project's own, then shared ones."""
        up = {"admin_state_up": "True"}
        own = await self._list("networks", token, {"project_id": project_id, "shared": "False", **up})
        shared = await self._list("networks", token, {"shared": "True", **up})
        return own + shared

    async def networks(self, network_ids: Sequence[str], token: str) -> list[Item]:
        """The networks with these ids, without those that are missing or hidden from the token."""
        return await self._by("networks", "id", network_ids, token)

    async def network(self, network_id: str, token: str) -> Item | None:
        return await self._show("networks", "network", network_id, token)

    async def auto_allocate(self, project_id: str, token: str) -> Item:
        """The project's auto-allocated network, created if missing."""
        response = await self._call("GET", f"/v2.0/auto-allocated-topology/{quote(project_id, safe='')}", token)
        network_id = response["auto_allocated_topology"]["id"]
        found = await self.network(network_id, token)
        if found is None:
            raise NetworkError(404, "NetworkNotFound", f"Network {network_id} could not be found.")
        return found

    async def check_auto_allocate(self, project_id: str, token: str) -> None:
        """Raise NetworkError if `auto_allocate` would fail."""
        path = f"/v2.0/auto-allocated-topology/{quote(project_id, safe='')}?fields=dry-run"
        await self._call("GET", path, token)

    async def subnets(self, subnet_ids: Sequence[str], token: str) -> list[Item]:
        return await self._by("subnets", "id", subnet_ids, token)

    # Ports

    async def port(self, port_id: str, token: str) -> Item | None:
        return await self._show("ports", "port", port_id, token)

    async def ports(self, port_ids: Sequence[str], token: str) -> list[Item]:
        """The ports with these ids, without those that are missing or hidden from the token."""
        return await self._by("ports", "id", port_ids, token)

    async def ports_of_device(self, device_id: str, token: str) -> list[Item]:
        return await self._list("ports", token, {"device_id": device_id})

    async def create_port(self, port: Item, token: str) -> Item:
        created: Item = (await self._call("POST", "/v2.0/ports", token, {"port": port}))["port"]
        return created

    async def create_ports(self, ports: Sequence[Item], token: str) -> list[Item]:
        """Create all ports or, on an error, none. Returns them in the given order."""
        if len(ports) <= 1:
            return [await self.create_port(port, token) for port in ports]
        created: list[Item] = (await self._call("POST", "/v2.0/ports", token, {"ports": list(ports)}))["ports"]
        return created

    async def update_port(self, port_id: str, changes: Item, token: str, revision: int | None = None) -> Item:
        """Update a port. With a `revision`, NetworkError 412 if the port has another revision by now."""
        path = f"/v2.0/ports/{quote(port_id, safe='')}"
        headers = {} if revision is None else {"If-Match": f"revision_number={revision}"}
        changed: Item = (await self._call("PUT", path, token, {"port": changes}, headers))["port"]
        return changed

    async def delete_port(self, port_id: str, token: str) -> None:
        """Delete a port. A missing port is no error."""
        try:
            await self._call("DELETE", f"/v2.0/ports/{quote(port_id, safe='')}", token)
        except NetworkError as error:
            if error.status != 404:
                raise

    async def delete_ports(self, port_ids: Sequence[str], token: str) -> None:
        for port_id in port_ids:
            await self.delete_port(port_id, token)

    # Port bindings

    async def bindings(self, port_id: str, token: str) -> list[Item]:
        """The port's bindings; empty if the port is missing or the service does not have the extension."""
        try:
            found: list[Item] = (await self._call("GET", _binding_path(port_id), token))["bindings"]
        except NetworkError as error:
            if error.status != 404:
                raise
            return []
        return found

    async def create_binding(self, port_id: str, binding: Item, token: str) -> Item:
        created: Item = (await self._call("POST", _binding_path(port_id), token, {"binding": binding}))["binding"]
        return created

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

    async def security_groups(self, project_id: str, token: str, name: str | None = None) -> list[Item]:
        """The project's groups, or only those with this name: names are not unique."""
        named = {"name": name} if name is not None else {}
        return await self._list("security-groups", token, {"project_id": project_id, **named})

    async def groups(self, group_ids: Sequence[str], token: str) -> list[Item]:
        return await self._by("security-groups", "id", group_ids, token)

    # Floating IPs

    async def floating_ips_of_ports(self, port_ids: Sequence[str], token: str) -> list[Item]:
        """The floating IPs that are associated with any of the ports."""
        return await self._by("floatingips", "port_id", port_ids, token)

    # Generic requests, for compute's network proxy APIs

    async def items(self, plural: str, token: str, query: Sequence[tuple[str, str]] = ()) -> list[Item]:
        """All items that the query matches, from all pages."""
        return await self._list(plural, token, query)

    async def request(self, method: str, path: str, token: str, json: Any = None) -> Any:
        """Send one request below /v2.0. Returns the JSON of the response, or None if it has no body."""
        return await self._call(method, f"/v2.0{path}", token, json)

    async def _show(self, plural: str, singular: str, item_id: str, token: str) -> Item | None:
        try:
            found: Item = (await self._call("GET", f"/v2.0/{plural}/{quote(item_id, safe='')}", token))[singular]
        except NetworkError as error:
            if error.status == 404:
                return None
            raise
        return found

    async def _by(self, plural: str, key: str, values: Sequence[str], token: str) -> list[Item]:
        if not values:
            return []
        if len(values) <= _IDS_PER_REQUEST:
            return await self._list(plural, token, [(key, value) for value in values])
        parts = [values[start : start + _IDS_PER_REQUEST] for start in range(0, len(values), _IDS_PER_REQUEST)]
        found = await asyncio.gather(*(self._by(plural, key, part, token) for part in parts))
        return [item for part in found for item in part]

    async def _list(self, plural: str, token: str, query: Any) -> list[Item]:
        key = plural.replace("-", "_")
        path = f"/v2.0/{plural}?{urlencode(query)}"
        found: list[Item] = []
        while path:
            response = await self._call("GET", path, token)
            found += response[key]
            links = {link["rel"]: link["href"] for link in response.get(f"{key}_links", ())}
            # The link may have the service's public address, which need not be reachable from here.
            path = "".join(links.get("next", "").partition("/v2.0/")[1:])
        return found

    async def _call(
        self, method: str, path: str, token: str, json: Any = None, extra_headers: Mapping[str, str] = _NO_HEADERS
    ) -> Any:
        headers = {"X-Auth-Token": token, "Accept": "application/json", **extra_headers}
        response = await self._caller.request(method, path, headers=headers, json=json)
        if response.status >= 400:
            raise _error(response)
        return response.json() if response.body else None


def _binding_path(port_id: str, host: str = "") -> str:
    return f"/v2.0/ports/{quote(port_id, safe='')}/bindings" + (f"/{quote(host, safe='')}" if host else "")


def _error(response: ClientResponse) -> Exception:
    if response.status >= 500 or response.status == 429:
        return Unreachable(f"the network service answered {response.status}")
    kind, message = "", f"the network service answered {response.status}"
    try:
        fault = response.json()["NeutronError"]
        if isinstance(fault, dict):
            kind, message = str(fault.get("type", "")), str(fault.get("message", message))
        else:
            message = str(fault)
    except (ValueError, KeyError, TypeError):
        pass
    return NetworkError(response.status, kind, message)
