"""Compute's client of the network service, built in or a real Neutron: its public API and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from kilonova.http.client import Refused, Unreachable

if TYPE_CHECKING:
    from kilonova.http.client import Caller, Response

Item = dict[str, Any]
# So many ids fit into one URL that every server takes.
_IDS_A_REQUEST = 100
_NO_HEADERS: Mapping[str, str] = {}


class NetworkError(Refused):
    """The network service refused; `kind` is the type it named."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(status, message)
        self.kind = kind


class NetworkClient:
    """The caller's base is the service's, without a version. Every method may raise NetworkError or Unreachable."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # Networks

    async def available(self, project_id: str, token: str) -> list[Item]:
        """The networks a server of the project can be put on unasked: the project's own, then shared ones."""
        up = {"admin_state_up": "True"}
        own = await self._list("networks", token, {"project_id": project_id, "shared": "False", **up})
        shared = await self._list("networks", token, {"shared": "True", **up})
        return own + shared

    async def networks(self, network_ids: Sequence[str], token: str) -> list[Item]:
        """Those of the networks that exist and the token may see."""
        return await self._by("networks", "id", network_ids, token)

    async def network(self, network_id: str, token: str) -> Item | None:
        return await self._show("networks", "network", network_id, token)

    async def auto_allocate(self, project_id: str, token: str) -> Item:
        """The project's automatic network, made if need be."""
        answer = await self._call("GET", f"/v2.0/auto-allocated-topology/{quote(project_id, safe='')}", token)
        network_id = answer["auto_allocated_topology"]["id"]
        found = await self.network(network_id, token)
        if found is None:
            raise NetworkError(404, "NetworkNotFound", f"Network {network_id} could not be found.")
        return found

    async def check_auto_allocate(self, project_id: str, token: str) -> None:
        """Raise NetworkError if an automatic network could not be made."""
        path = f"/v2.0/auto-allocated-topology/{quote(project_id, safe='')}?fields=dry-run"
        await self._call("GET", path, token)

    async def subnets(self, subnet_ids: Sequence[str], token: str) -> list[Item]:
        return await self._by("subnets", "id", subnet_ids, token)

    # Ports

    async def port(self, port_id: str, token: str) -> Item | None:
        return await self._show("ports", "port", port_id, token)

    async def ports(self, port_ids: Sequence[str], token: str) -> list[Item]:
        """Those of the ports that exist and the token may see."""
        return await self._by("ports", "id", port_ids, token)

    async def ports_of(self, device_id: str, token: str) -> list[Item]:
        return await self._list("ports", token, {"device_id": device_id})

    async def create_port(self, port: Item, token: str) -> Item:
        made: Item = (await self._call("POST", "/v2.0/ports", token, {"port": port}))["port"]
        return made

    async def create_ports(self, ports: Sequence[Item], token: str) -> list[Item]:
        """All of them or, after an error, none; in the order asked for."""
        if len(ports) <= 1:
            return [await self.create_port(port, token) for port in ports]
        made: list[Item] = (await self._call("POST", "/v2.0/ports", token, {"ports": list(ports)}))["ports"]
        return made

    async def update_port(self, port_id: str, changes: Item, token: str, revision: int | None = None) -> Item:
        """With a `revision`, only the port as it was then is changed: NetworkError 412 if somebody was faster."""
        path = f"/v2.0/ports/{quote(port_id, safe='')}"
        match = {} if revision is None else {"If-Match": f"revision_number={revision}"}
        changed: Item = (await self._call("PUT", path, token, {"port": changes}, match))["port"]
        return changed

    async def delete_port(self, port_id: str, token: str) -> None:
        """A port that is gone already is fine."""
        try:
            await self._call("DELETE", f"/v2.0/ports/{quote(port_id, safe='')}", token)
        except NetworkError as error:
            if error.status != 404:
                raise

    async def delete_ports(self, port_ids: Sequence[str], token: str) -> None:
        for port_id in port_ids:
            await self.delete_port(port_id, token)

    # Bindings of ports to hosts beside the active one

    async def bindings(self, port_id: str, token: str) -> list[Item]:
        """The port's bindings; none if it is gone, or the service knows only the active one."""
        try:
            found: list[Item] = (await self._call("GET", _binding(port_id), token))["bindings"]
        except NetworkError as error:
            if error.status != 404:
                raise
            return []
        return found

    async def create_binding(self, port_id: str, binding: Item, token: str) -> Item:
        made: Item = (await self._call("POST", _binding(port_id), token, {"binding": binding}))["binding"]
        return made

    async def activate_binding(self, port_id: str, host: str, token: str) -> None:
        """What was the active binding stands by then."""
        await self._call("PUT", f"{_binding(port_id, host)}/activate", token)

    async def delete_binding(self, port_id: str, host: str, token: str) -> None:
        """A binding that is gone already is fine."""
        try:
            await self._call("DELETE", _binding(port_id, host), token)
        except NetworkError as error:
            if error.status != 404:
                raise

    # Security groups

    async def security_groups(self, project_id: str, token: str, name: str | None = None) -> list[Item]:
        """The project's groups, or those of a name: names are not unique."""
        named = {"name": name} if name is not None else {}
        return await self._list("security-groups", token, {"project_id": project_id, **named})

    async def groups(self, group_ids: Sequence[str], token: str) -> list[Item]:
        return await self._by("security-groups", "id", group_ids, token)

    # Floating addresses

    async def floating_to(self, port_ids: Sequence[str], token: str) -> list[Item]:
        """Those that lead to any of the ports."""
        return await self._by("floatingips", "port_id", port_ids, token)

    # Anything else that a proxy in front of the service needs

    async def items(self, plural: str, token: str, query: Sequence[tuple[str, str]] = ()) -> list[Item]:
        """All that the token may see and the query matches, page after page."""
        return await self._list(plural, token, query)

    async def request(self, method: str, path: str, token: str, json: Any = None) -> Any:
        """One request below /v2.0; the answer's JSON, or None if it has none."""
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
        if len(values) <= _IDS_A_REQUEST:
            return await self._list(plural, token, [(key, value) for value in values])
        parts = [values[start : start + _IDS_A_REQUEST] for start in range(0, len(values), _IDS_A_REQUEST)]
        found = await asyncio.gather(*(self._by(plural, key, part, token) for part in parts))
        return [item for part in found for item in part]

    async def _list(self, plural: str, token: str, query: Any) -> list[Item]:
        key = plural.replace("-", "_")
        path = f"/v2.0/{plural}?{urlencode(query)}"
        found: list[Item] = []
        while path:
            answer = await self._call("GET", path, token)
            found += answer[key]
            links = {link["rel"]: link["href"] for link in answer.get(f"{key}_links", ())}
            # The link may name the service by an address that only its users know.
            path = "".join(links.get("next", "").partition("/v2.0/")[1:])
        return found

    async def _call(
        self, method: str, path: str, token: str, json: Any = None, more: Mapping[str, str] = _NO_HEADERS
    ) -> Any:
        headers = {"X-Auth-Token": token, "Accept": "application/json", **more}
        answer = await self._caller.request(method, path, headers=headers, json=json)
        if answer.status >= 400:
            raise _error(answer)
        return answer.json() if answer.body else None


def _binding(port_id: str, host: str = "") -> str:
    return f"/v2.0/ports/{quote(port_id, safe='')}/bindings" + (f"/{quote(host, safe='')}" if host else "")


def _error(answer: Response) -> Exception:
    if answer.status >= 500 or answer.status == 429:
        return Unreachable(f"the network service answered {answer.status}")
    kind, message = "", f"the network service answered {answer.status}"
    try:
        told = answer.json()["NeutronError"]
        if isinstance(told, dict):
            kind, message = str(told.get("type", "")), str(told.get("message", message))
        else:
            message = str(told)
    except (ValueError, KeyError, TypeError):
        pass
    return NetworkError(answer.status, kind, message)
