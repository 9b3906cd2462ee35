"""Checks that servers' ports exist and are bound to the server's host, and to another host only during a move."""

from __future__ import annotations

from collections.abc import Iterator

from kilonova.doctor.facts import Facts, Finding


def findings(facts: Facts) -> Iterator[Finding]:
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
