"""Boot a new server: create its volumes, choose and claim a host, create ports, spawn the guest.

If the host fails, the next one is tried. Volumes are created first and only once.
"""

from __future__ import annotations

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.block_devices import model as devices
from kilonova.compute.host_calls import HostCallFailed
from kilonova.compute.operations.steps import choose, new_volumes, place, plugged, port_resources, ports
from kilonova.compute.operations.steps.choose import Proposal
from kilonova.compute.operations.steps.new_volumes import MAKE_VOLUMES, CreatedVolumes
from kilonova.compute.operations.steps.server import guest_of, server_of, zone_of
from kilonova.compute.servers import model, scheduling
from kilonova.compute.servers.requested_networks import RequestedInterface
from kilonova.compute.servers.scheduling import ANYWHERE, Destination
from kilonova.compute.servers.server import Interface
from kilonova.hosts.messages.verbs import Spawn
from kilonova.operations import Cancelled, Entry, Failed, Operation, Step, StepResult, Wait, transaction_step
from kilonova.store import Transaction

WAIT = StepResult("wait for volumes", bool)
MAKE_PORTS = StepResult("make ports", list[Interface])
# Steps that a server without volumes skips.
WITH_VOLUMES = frozenset({MAKE_VOLUMES.name, WAIT.name, place.CONNECT, place.COMPLETE})


class BootParams(Struct, frozen=True):
    """`security_groups` are names. `devices`: whether the server has block devices.

    `image_hashes` has the hashes of the images that volumes are created from, by image id.
    """

    networks: list[RequestedInterface]
    security_groups: list[str]
    destination: Destination | None
    devices: bool = False
    image_hashes: dict[str, str] = {}


class Boot(Operation[BootParams]):
    kind = kinds.BOOT
    action = "create"
    # A lost race for a host is a round too. `operations.max_build_attempts` limits failing hosts.
    rounds = 32

    @staticmethod
    def steps() -> tuple[Entry[Boot], ...]:
        return (
            Step(
                MAKE_VOLUMES,
                make_volumes,
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
            Step(MAKE_PORTS, make_ports, undo=drop_ports, deadline=120, task_state="networking"),
            place.connect_step("block_device_mapping"),
            Step(place.SPAWN, spawn, undo=place.destroy, deadline=600, task_state="spawning"),
            plugged.wait_for(expected_ports, task_state="spawning"),
            place.complete_step("spawning"),
            transaction_step("settle", settle, "state, interfaces and time of launch", task_state="spawning"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        # The delete that cancelled the boot runs next and needs no ERROR state.
        if not (isinstance(error, Cancelled) and await model.is_being_deleted(tx, str(self.server_id))):
            await model.fail(tx, str(self.server_id), str(error), error.fault)


def volumes_deadline(op: Operation) -> float:
    """Time limit for creating the volumes, by their size."""
    created = op.find_result(MAKE_VOLUMES)
    gigabytes = created.gigabytes if created else 0
    return max(600.0, op.services.config.compute.reimage_seconds_per_gib * (1 + gigabytes))


async def make_volumes(op: Boot) -> CreatedVolumes | None:
    return await new_volumes.create(op, op.params.image_hashes)


async def choose_host(op: Boot) -> Proposal:
    server, destination = await server_of(op), op.params.destination or ANYWHERE
    request = await scheduling.request_for(op.db, server, destination=destination, excluded=choose.tried_hosts(op))
    request = await port_resources.add(op, request, [each.port for each in op.params.networks if each.port])
    return await choose.propose(op, server, request)


async def make_ports(op: Boot) -> list[Interface]:
    host = choose.claimed_host(op)
    try:
        return await ports.create_or_bind(op, host, op.params.networks, op.params.security_groups)
    except HostCallFailed as failure:
        choose.try_next_host(op, host, failure.outcome)


async def drop_ports(op: Boot) -> None:
    await ports.release(op, [requested.port for requested in op.params.networks if requested.port])


async def spawn(op: Boot) -> None:
    found = await devices.of_server(op.db, str(op.server_id)) if op.params.devices else []
    disks = [devices.disk_of(device) for device in found if device.volume_id is not None]
    local = devices.local_disks_of(found)
    zone = await zone_of(op, choose.claimed_host(op))
    interfaces = op.result(MAKE_PORTS)
    await place.spawn(op, Spawn(guest=guest_of(await server_of(op), interfaces, disks, local, zone)))


async def expected_ports(op: Boot) -> plugged.Expected:
    return plugged.Expected(choose.claimed_host(op), op.result(MAKE_PORTS))


async def settle(op: Operation, tx: Transaction) -> None:
    interfaces = op.result(MAKE_PORTS)
    await model.finish_boot(tx, str(op.server_id), interfaces)
