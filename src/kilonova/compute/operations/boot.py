"""Boot: a new server gets its volumes, a host, ports and a guest; a host that cannot build it is left for the next.

The volumes come first: they are made once, whatever host the server comes to in the end.
"""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import convert

from kilonova import clock
from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations import choosing, landing, new_volumes, ports
from kilonova.compute.operations.common import guest_of, server_of, zone_of
from kilonova.compute.servers import model, placing, states
from kilonova.compute.servers.placing import Destination
from kilonova.hosts.messages import Spawn
from kilonova.operations import Cancelled, Failed, Operation, Step, Wait
from kilonova.operations.table import Entry
from kilonova.store import Transaction

MAKE_VOLUMES, WAIT = "make volumes", "wait for volumes"
# Those that a server without volumes does not need.
WITH_VOLUMES = frozenset({MAKE_VOLUMES, WAIT, landing.CONNECT, landing.COMPLETE})


class Boot(Operation):
    """`params`: `networks` (one entry per interface), `security_groups` (names), `destination` (or null for any),
    `devices` (whether the server has block devices).
    """

    kind = "boot"
    action = "create"
    # Losing a race for a host is a round too; how many hosts may fail to build the server is configured.
    rounds = 32

    @staticmethod
    def steps() -> tuple[Entry, ...]:
        return (
            Step(
                MAKE_VOLUMES,
                new_volumes.make,
                undo=new_volumes.unmake,
                deadline=600,
                task_state="block_device_mapping",
            ),
            Wait(
                WAIT,
                key=lambda op: f"volumes of {op.server_id}",
                deadline=patience,
                poll=new_volumes.ready,
                poll_every=1.0,
                polls_first=True,
                task_state="block_device_mapping",
            ),
            *choosing.first_steps(choose, landing.take, landing.give_back, task_state="scheduling"),
            Step("make ports", make_ports, undo=drop_ports, deadline=120, task_state="networking"),
            landing.connect_step("block_device_mapping"),
            Step(landing.SPAWN, spawn, undo=landing.destroy, deadline=600, task_state="spawning"),
            landing.complete_step("spawning"),
            Step(
                "settle",
                settle,
                undo=None,
                why="one transaction: state, interfaces and time of launch",
                deadline=30,
                transaction=True,
                task_state="spawning",
            ),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        # The deletion that has cancelled it comes next, and takes the server as it is.
        if not (isinstance(error, Cancelled) and await model.is_being_deleted(tx, str(self.server_id))):
            await model.fail(tx, str(self.server_id), str(error), error.fault)


def patience(op: Operation) -> float:
    """As long as the volume service has for putting an image onto a volume, by the size of the volumes."""
    made: int = op.results.get(MAKE_VOLUMES, {}).get("gigabytes", 0)
    per_gigabyte: float = op.services.config.compute.reimage_seconds
    return max(600.0, per_gigabyte * (1 + made))


async def choose(op: Operation) -> dict[str, Any]:
    server = await server_of(op)
    destination = convert(op.params["destination"] or {}, Destination)
    request = await placing.request_for(op.db, server, destination=destination, excluded=choosing.tried(op))
    return await choosing.plan(op, server, request)


async def make_ports(op: Operation) -> list[dict[str, Any]]:
    return await ports.make(op, choosing.claimed(op), op.params["networks"], op.params["security_groups"])


async def drop_ports(op: Operation) -> None:
    given = [entry["port"] for entry in op.params["networks"] if entry["port"]]
    await ports.drop(op, given)


async def spawn(op: Operation) -> None:
    found = await devices.of_server(op.db, str(op.server_id)) if op.params.get("devices") else []
    disks = [devices.disk_of(device) for device in found if device["volume_id"] is not None]
    local = devices.local_disks_of(found)
    zone = await zone_of(op, choosing.claimed(op))
    guest = guest_of(await server_of(op), op.results["make ports"], disks, local, zone)
    await landing.spawn(op, Spawn(guest=guest))


async def settle(op: Operation, tx: Transaction) -> None:
    now = clock.now()
    await tx.execute(
        "UPDATE servers SET vm_state = $2, power_state = $3, nics = $4, launched_at = $5, updated_at = $5"
        " WHERE id = $1",
        op.server_id,
        states.ACTIVE,
        states.RUNNING,
        orjson.dumps(op.results["make ports"]).decode(),
        now,
    )
