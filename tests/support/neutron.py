"""A network service with facts that only a real Neutron has: the built-in service, whose responses are changed."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.http.client import ClientResponse, InProcess, Unreachable
from kilonova.network.client import NetworkClient
from kilonova.services import Services


class Neutron(InProcess):
    """Ports of `unplugged` hosts stay DOWN, ports cannot be bound to hosts of `unbound`.

    `requests` has all requests. With `is_down`, none is answered. `dns_names`: the service has names of ports, here by
    port. `resource_requests` has those of ports.
    """

    def __init__(self, app: Any) -> None:
        super().__init__(app, "/network")
        self.requests: list[str] = []
        self.unplugged: set[str] = set()
        self.unbound: set[str] = set()
        self.dns_names: dict[str, str] = {}
        self.resource_requests: dict[str, dict[str, Any]] = {}
        self.is_down = False

    async def request(self, method: str, path: str, **options: Any) -> ClientResponse:
        self.requests.append(f"{method} {path}")
        if self.is_down:
            raise Unreachable("the network service is down")
        body = options["json"] = orjson.loads(orjson.dumps(options.get("json")))
        if path.startswith("/v2.0/extensions"):
            return _response({"extensions": [{"alias": "dns-integration"}]})
        if path.endswith("/bindings") and body and body["binding"]["host"] in self.unbound:
            error = {"type": "PortBindingError", "message": "Binding for port could not be created or updated."}
            return _response({"NeutronError": error}, 500)
        names = [port.pop("dns_name", None) for port in _ports(body)]
        response = await super().request(method, path, **options)
        if response.status >= 400 or not path.startswith("/v2.0/ports") or not response.body:
            return response
        found = orjson.loads(response.body)
        for port, name in zip(_ports(found), names or [None] * len(_ports(found)), strict=True):
            if name is not None:
                self.dns_names[port["id"]] = name
            self._change(port)
        return _response(found, response.status)

    def _change(self, port: dict[str, Any]) -> None:
        port["dns_name"] = self.dns_names.get(port["id"], "")
        port["resource_request"] = self.resource_requests.get(port["id"])
        if port.get("binding:host_id") in self.unbound:
            port.update({"binding:vif_type": "binding_failed", "status": "DOWN"})
        elif port.get("binding:host_id") in self.unplugged:
            port["status"] = "DOWN"


def _ports(body: dict[str, Any] | None) -> list[dict[str, Any]]:
    body = body or {}
    return body.get("ports") or ([body["port"]] if "port" in body else [])


def _response(body: Any, status: int = 200) -> ClientResponse:
    return ClientResponse(status, {}, orjson.dumps(body))


def use_neutron(services: Services, app: Any) -> Neutron:
    """Let compute take the network service for a real Neutron."""
    neutron = Neutron(app)
    services.network = NetworkClient(neutron, built_in=False)
    return neutron
