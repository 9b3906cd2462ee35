"""Checks that servers' ports exist and are bound to the server's host, and to another host only during a move."""

from __future__ import annotations

from collections.abc import Iterator

from kilonova.config import Config
from kilonova.doctor.external_services import reading
from kilonova.doctor.facts import CheckedPort, Facts, Finding, Ports, StandbyBinding
from kilonova.network.client import NetworkClient
from kilonova.store import Reader

_OWNER = "compute:"


def findings(facts: Facts) -> Iterator[Finding]:
    if facts.ports is None:
        return
    for port in facts.ports.values():
        if port.device_id not in facts.servers and port.device_id not in facts.busy:
            yield Finding("port without server", port.id, f"bound to {port.device_id or 'nothing'}")
    for server in facts.idle_servers():
        where = server.host or ""
        for nic in server.nics:
            bound = facts.ports.get(nic.port_id)
            if bound is None or bound.device_id != server.id:
                yield Finding("server's port missing", server.id, f"{server.label} has no port {nic.port_id}")
            elif bound.host_id != where:
                detail = f"bound to {bound.host_id or 'none'}, and {server.label} is on {where or 'none'}"
                yield Finding("port on the wrong host", bound.id, detail)
    for binding in facts.standby:
        if binding.device_id not in facts.busy:
            yield Finding("standby binding without move", binding.port_id, f"to {binding.host}")


async def read_built_in(db: Reader) -> Ports:
    """Read the built-in network service from the database; works also while no process serves it."""
    ports = [CheckedPort(**row) for row in await db.fetch(_PORTS)]
    standby = [StandbyBinding(**row) for row in await db.fetch(_STANDBY)]
    return Ports({port.id: port for port in ports}, standby, built_in=True)


async def read_external(config: Config) -> Ports:
    """Read an external network service with a token of the service user. Raises Unavailable."""
    async with reading(config, "network") as (caller, auth):
        return await read_from_api(NetworkClient(caller), auth.token)


async def read_from_api(client: NetworkClient, token: str) -> Ports:
    listed = await client.all_ports(token)
    ports = [
        CheckedPort(port.id, port.device_id, port.binding_host_id or "")
        for port in listed
        if port.device_owner.startswith(_OWNER)
    ]
    return Ports({port.id: port for port in ports}, [], built_in=False)


_PORTS = f"SELECT id, device_id, host_id FROM ports WHERE device_owner LIKE '{_OWNER}%' ORDER BY id"
_STANDBY = f"""
SELECT b.port_id, b.host, p.device_id FROM standby_bindings b JOIN ports p ON p.id = b.port_id
WHERE p.device_owner LIKE '{_OWNER}%' ORDER BY b.port_id, b.host
"""
