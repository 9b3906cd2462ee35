"""Boot a new server: create its volumes, choose and claim a host, create ports, spawn the guest.

If the host fails, the next one is tried. Volumes are created first and only once.
"""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import convert

from kilonova import clock
from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.steps import choose, new_volumes, place, ports
from kilonova.compute.operations.steps.server import guest_of, server_of, zone_of
from kilonova.compute.servers import model, scheduling, states
from kilonova.compute.servers.scheduling import Destination
from kilonova.hosts.messages.verbs import Spawn
from kilonova.operations import Cancelled, Failed, Operation, Step, Wait, transaction_step
from kilonova.operations.definition import Entry
from kilonova.store import Transaction

MAKE_VOLUMES, WAIT = "make volumes", "wait for volumes"
# Steps that a server without volumes skips.
WITH_VOLUMES = frozenset({MAKE_VOLUMES, WAIT, place.CONNECT, place.COMPLETE})


class Boot(Operation):
    """`params`: `networks` (one entry per interface), `security_groups` (names), `destination` (or null for any),
    `devices` (whether the server has block devices).
    """

    kind = "boot"
    action = "create"
    # A lost race for a host is a round too. `operations.max_build_attempts` limits failing hosts.
    rounds = 32

    @staticmethod
    def steps() -> tuple[Entry, ...]:
        return (
            Step(
                MAKE_VOLUMES,
                new_volumes.create,
                undo=new_volumes.delete_created,
                deadline=600,
                task_state="block_device_mapping",
            ),
            Wait(
                WAIT,
                key=lambda op: f"volumes of {op.server_id}",
                deadline=volumes_deadline,
                poll=new_volumes.are_ready,
                poll_every=1.0,
                poll_first=True,
                task_state="block_device_mapping",
            ),
            *choose.first_steps(choose_host, place.claim, place.release_claim, task_state="scheduling"),
            Step("make ports", make_ports, undo=drop_ports, deadline=120, task_state="networking"),
            place.connect_step("block_device_mapping"),
            Step(place.SPAWN, spawn, undo=place.destroy, deadline=600, task_state="spawning"),
            place.complete_step("spawning"),
            transaction_step("settle", settle, "state, interfaces and time of launch", task_state="spawning"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        # The delete that cancelled the boot runs next and needs no ERROR state.
        if not (isinstance(error, Cancelled) and await model.is_being_deleted(tx, str(self.server_id))):
            await model.fail(tx, str(self.server_id), str(error), error.fault)


def volumes_deadline(op: Operation) -> float:
    """Time limit for creating the volumes, by their size."""
    made: int = op.results.get(MAKE_VOLUMES, {}).get("gigabytes", 0)
    per_gigabyte: float = op.services.config.compute.reimage_seconds_per_gib
    return max(600.0, per_gigabyte * (1 + made))


async def choose_host(op: Operation) -> dict[str, Any]:
    server = await server_of(op)
    destination = convert(op.params["destination"] or {}, Destination)
    request = await scheduling.request_for(op.db, server, destination=destination, excluded=choose.tried_hosts(op))
    return await choose.propose(op, server, request)


async def make_ports(op: Operation) -> list[dict[str, Any]]:
    return await ports.create_or_bind(op, choose.claimed_host(op), op.params["networks"], op.params["security_groups"])


async def drop_ports(op: Operation) -> None:
    given = [entry["port"] for entry in op.params["networks"] if entry["port"]]
    await ports.release(op, given)


async def spawn(op: Operation) -> None:
    found = await devices.of_server(op.db, str(op.server_id)) if op.params.get("devices") else []
    disks = [devices.disk_of(device) for device in found if device["volume_id"] is not None]
    local = devices.local_disks_of(found)
    zone = await zone_of(op, choose.claimed_host(op))
    guest = guest_of(await server_of(op), op.results["make ports"], disks, local, zone)
    await place.spawn(op, Spawn(guest=guest))


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
