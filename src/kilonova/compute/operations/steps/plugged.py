"""The wait for a server's ports: a real Neutron reports ports as plugged when the guest's host has connected them.

Hosts connect ports while they build or start a guest, so the wait follows the step that does. Its reports are hints:
they may get lost, come twice or early, so the wait reads the ports. See docs/decisions/0027-plugged-ports.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kilonova import clock
from kilonova.compute.servers.server import Interface
from kilonova.http.client import Unreachable
from kilonova.identity.client import IdentityError
from kilonova.network.client import NetworkError, Port
from kilonova.operations import Failed, Operation, Wait

if TYPE_CHECKING:
    from kilonova.services import Services

log = logging.getLogger(__name__)
Op = TypeVar("Op", bound=Operation)

WAIT = "wait for ports"
ACTIVE = "ACTIVE"
POLL_SECONDS = 10.0
# Less than the time that the engine gives a poll after the deadline of the wait.
READ_SECONDS = 5.0
# A port that Neutron has reported as plugged counts after this time, even if it is not ACTIVE: Neutron fails to update
# the status if the host is faster than the request that binds the port.
TRUST_SECONDS = 5.0
# An operation that began with another setting may still have the wait.
_NO_TIME = 0.001
_REPORTED = "SELECT key FROM operation_events WHERE key = ANY($1) AND created_at >= $2 AND created_at <= $3"


class Expected(NamedTuple):
    """The host that plugs the interfaces."""

    host: str
    interfaces: list[Interface]


def wait_for(
    expected: Callable[[Op], Awaitable[Expected | None]],
    *,
    always_continues: bool = False,
    task_state: str | None = None,
) -> Wait[Op]:
    """`expected` returns None if the guest does not run, so that no host plugs its interfaces.

    `always_continues`: the operation does not fail, whatever the setting, because nothing would be better if it did.
    """

    async def poll(op: Op) -> bool | None:
        found = await expected(op)
        return True if found is None or not await _unplugged(op, found) else None

    async def expire(op: Op) -> bool:
        found = await expected(op)
        missing = ", ".join(port.id for port in await _unplugged(op, found)) if found else ""
        host, seconds = found.host if found else "", _seconds(op)
        if op.services.config.network.vif_plugging_is_fatal and not always_continues:
            message = f"The network ports were not plugged within {seconds:g} s"
            raise Failed(message, fault=f"{host}: {missing or 'the network service does not answer'}: {message}")
        log.warning("%s: ports of server %s were not plugged within %g s: %s", host, op.server_id, seconds, missing)
        return True

    return Wait(
        WAIT,
        key=lambda op: event_key(str(op.server_id)),
        deadline=_seconds,
        poll=poll,
        poll_every=POLL_SECONDS,
        poll_first=True,
        is_hint=True,
        expire=expire,
        task_state=task_state,
    )


def steps_to_skip(services: Services) -> frozenset[str]:
    """The step, where there is nothing to wait for: the built-in service plugs ports before guests start."""
    is_needed = not services.network.built_in and services.config.network.vif_plugging_timeout_seconds > 0
    return frozenset() if is_needed else frozenset({WAIT})


def event_key(server_id: str) -> str:
    return f"ports of {server_id}"


def port_event_key(server_id: str, port_id: str) -> str:
    """The key of a stored report that the port is plugged."""
    return f"plugged port of {server_id}: {port_id}"


def _seconds(op: Operation) -> float:
    return max(op.services.config.network.vif_plugging_timeout_seconds, _NO_TIME)


async def _unplugged(op: Operation, expected: Expected) -> list[Port]:
    """The ports that the host has yet to plug. Ports that have been deleted or unbound since do not count.

    While the network service does not answer, none can be known to be plugged: the wait polls again.
    """
    port_ids = [interface.port_id for interface in expected.interfaces]
    if not port_ids:
        return []
    try:
        async with asyncio.timeout(READ_SECONDS):
            ports = await op.services.network.ports(port_ids, await op.services.identity.token())
    except (Unreachable, NetworkError, IdentityError, TimeoutError) as error:
        log.warning("the ports of server %s cannot be read: %s", op.server_id, str(error) or "no answer in time")
        return [Port(id=port_id, network_id="", mac_address="") for port_id in port_ids]
    missing = [port for port in ports if _is_awaited(port) and not _is_plugged(port, expected.host)]
    reported = await _reported(op, missing)
    return [port for port in missing if port.id not in reported]


async def _reported(op: Operation, ports: list[Port]) -> set[str]:
    """The ports on the right host that Neutron has reported as plugged some time ago, during the operation."""
    if not ports:
        return set()
    keys = {port_event_key(str(op.server_id), port.id): port.id for port in ports}
    rows = await op.db.fetch(_REPORTED, sorted(keys), op.created_at, clock.now() - TRUST_SECONDS)
    return {keys[row["key"]] for row in rows}


def _is_awaited(port: Port) -> bool:
    return port.is_bound and port.admin_state_up


def _is_plugged(port: Port, host: str) -> bool:
    return port.status == ACTIVE and port.binding_host_id == host
