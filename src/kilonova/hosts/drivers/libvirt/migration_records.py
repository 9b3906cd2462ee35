"""Records of live migrations in progress, and their reconciliation with libvirt.

The source writes `leaving` to the guest's directory. The destination writes `arriving` to the slot, and to the guest's
new directory until the guest has arrived. The slot holds the spec. The disks are created at their final path, because
the files of a running guest cannot be renamed. libvirt knows which host has the guest. Every process can reconcile the
records with libvirt, so a migration survives a restart of the agents.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from kilonova.hosts.drivers.base import DriverError, NoSuchSlot
from kilonova.hosts.drivers.libvirt import layout as names
from kilonova.hosts.drivers.libvirt import move_tickets
from kilonova.hosts.drivers.libvirt.connection import Event
from kilonova.hosts.drivers.libvirt.hypervisor import lookup_domain, write_file
from kilonova.hosts.messages import Guest, MigrationState
from kilonova.ids import new_id

if TYPE_CHECKING:
    import libvirt

    from kilonova.hosts.drivers.libvirt.disk_transfer import Peer
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

log = logging.getLogger(__name__)

INCOMING_FILE, OUTGOING_FILE = "arriving", "leaving"
# Marks directories that are being removed; no guest id starts with a dot.
_REMOVED_PREFIX = ".gone-"
_NETWORK_TIMEOUT_SECONDS = 45.0
_RESUME_RETRY_SECONDS = 0.2
# Limits how long listing all guests waits for other hosts.
_RECONCILE_TIMEOUT_SECONDS = 2.0
_PEER_TIMEOUT_SECONDS = 15.0

T = TypeVar("T")


class IncomingGuest(msgspec.Struct, frozen=True):
    """`shared`: both hosts see the guest's directory. `moved`: the names of the disks that are copied."""

    slot: str
    source: str
    shared: bool
    moved: list[str] = []


class OutgoingGuest(msgspec.Struct, frozen=True):
    """`running`: the guest was running when the migration began."""

    slot: str
    destination: str
    shared: bool
    running: bool
    reach: dict[str, str] = {}


class PreparedDestination(msgspec.Struct, frozen=True):
    """What the source needs from the destination. `domain`: the XML of the guest's domain there."""

    domain: str
    shared: bool
    moved: list[str] = []


# Records


def read_record(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        log.error("%s cannot be read: %s", path, error)
        return None


def write_record(path: Path, content: IncomingGuest | OutgoingGuest) -> None:
    write_file(path, msgspec.json.encode(content))


def find_incoming(hv: Hypervisor, guest_id: str, slot: str) -> IncomingGuest | None:
    if not hv.owns(guest_id, slot):
        return None
    return read_record(hv.layout.slot_directory(guest_id, slot) / INCOMING_FILE, IncomingGuest)


def find_outgoing(hv: Hypervisor, guest_id: str) -> OutgoingGuest | None:
    if not hv.owns(guest_id):
        return None
    return read_record(hv.layout.guest_directory(guest_id) / OUTGOING_FILE, OutgoingGuest)


# Requests of other hosts


async def describe_destination(hv: Hypervisor, guest_id: str, slot: str) -> PreparedDestination:
    """Describe the prepared destination, as soon as it has the guest's networks."""
    from kilonova.hosts.drivers.libvirt import domain

    guest, incoming = hv.find_spec(guest_id, slot), find_incoming(hv, guest_id, slot)
    if guest is None or incoming is None:
        raise NoSuchSlot(guest_id, slot, hv.host)
    built_in = [nic.port_id for nic in guest.nics if not nic.vif_type]
    if built_in and hv.networks is not None:
        await hv.networks.wait_for_ports(built_in, _NETWORK_TIMEOUT_SECONDS)
    return PreparedDestination(domain.domain_xml(hv, guest), incoming.shared, incoming.moved)


async def has_arrived(hv: Hypervisor, guest_id: str, *, or_never: bool = False) -> bool:
    """`or_never`: reject the guest if it has not arrived yet."""
    if or_never:
        await reject_incoming(hv, guest_id)
    await reconcile_guest(hv, guest_id)
    return hv.find_spec(guest_id) is not None and await hv.find_domain(guest_id) is not None


# Reconciliation


async def reconcile(hv: Hypervisor) -> None:
    """Reconcile the records of all migrating guests with libvirt. Does not wait long for other hosts."""
    migrating = incoming_guest_ids(hv)
    migrating.update(guest_id for guest_id in hv.layout.guest_ids() if find_outgoing(hv, guest_id) is not None)
    for guest_id in migrating - hv.reconciling.keys():
        task = hv.reconciling[guest_id] = asyncio.create_task(reconcile_guest(hv, guest_id))
        task.add_done_callback(partial(_log_failure, hv, guest_id))
    if hv.reconciling:
        await asyncio.wait(hv.reconciling.values(), timeout=_RECONCILE_TIMEOUT_SECONDS)


def _log_failure(hv: Hypervisor, guest_id: str, task: asyncio.Task[None]) -> None:
    del hv.reconciling[guest_id]
    if not task.cancelled() and task.exception() is not None:
        log.warning("cannot determine which host has guest %s: %s", guest_id, task.exception())


async def reconcile_guest(hv: Hypervisor, guest_id: str) -> None:
    """Raises DriverError if the guest's host cannot be determined."""
    for slot_guest_id, slot in list(hv.layout.slots()):
        if (
            slot_guest_id == guest_id
            and find_incoming(hv, guest_id, slot) is not None
            and await hv.connection.call(_has_arrived_domain, guest_id)
        ):
            _complete_arrival(hv, guest_id, slot)
    outgoing = find_outgoing(hv, guest_id)
    if outgoing is None or guest_id in hv.migrating_out:
        return  # the running migration reconciles it
    if await hv.find_domain(guest_id) is None:
        if await is_at_destination(hv, guest_id, outgoing):
            await complete_departure(hv, guest_id)
    elif not await hv.connection.call(is_migrating_out, guest_id) and not await restore_at_source(hv, guest_id):
        await try_confirm_arrival(hv, guest_id, outgoing)
        await complete_departure(hv, guest_id)


async def restore_at_source(hv: Hypervisor, guest_id: str) -> bool:
    """Restore a guest whose migration has ended, unless the destination has it. Returns whether it is on this host.

    A running guest has not left. A paused guest may run at the destination if this host's libvirt ended at the last
    moment. So the destination is asked, and rejects the guest from then on if it does not have it. Raises DriverError,
    passing, if the destination does not respond.
    """
    outgoing, power = find_outgoing(hv, guest_id), await hv.power(guest_id)
    if power is None:
        return False  # libvirt removes the domain only after the destination has it
    if outgoing is not None and power != "running" and await _destination_has_guest(hv, guest_id, outgoing):
        await hv.undefine(guest_id)
        return False
    await _cancel_departure(hv, guest_id)
    return True


async def _destination_has_guest(hv: Hypervisor, guest_id: str, outgoing: OutgoingGuest) -> bool:
    try:
        peer = destination_peer(hv, guest_id, outgoing)
        return bool(await peer.get_json(f"/arrived/{guest_id}?or=never", seconds=_PEER_TIMEOUT_SECONDS))
    except DriverError as error:
        peer_error = error
    try:
        return await hv.connection.run(_has_arrived_at, outgoing.reach.get("migration", ""), guest_id, True)
    except DriverError:
        message = f"guest {guest_id} is paused, and its destination {outgoing.destination} does not report whether it"
        raise DriverError(f"{message} has the guest: {peer_error.message}", passing=True) from None


async def watch_arrivals(hv: Hypervisor) -> None:
    """Reconcile incoming guests as soon as libvirt reports them, until cancelled."""
    guest_ids: asyncio.Queue[str] = asyncio.Queue()

    def on_event(event: Event) -> None:
        if event.kind == "lifecycle":
            guest_ids.put_nowait(event.guest_id)

    unsubscribe = hv.connection.on_event(on_event)
    try:
        while True:
            guest_id = await guest_ids.get()
            try:
                if guest_id in incoming_guest_ids(hv):
                    await reconcile_guest(hv, guest_id)
            except (DriverError, OSError) as error:
                log.warning("cannot determine whether guest %s has arrived: %s", guest_id, error)
    finally:
        unsubscribe()


def incoming_guest_ids(hv: Hypervisor) -> set[str]:
    return {guest_id for guest_id, slot in hv.layout.slots() if find_incoming(hv, guest_id, slot) is not None}


async def _cancel_departure(hv: Hypervisor, guest_id: str) -> None:
    """Delete the record of a guest that has not left, and resume it if it was running."""
    outgoing = find_outgoing(hv, guest_id)
    if outgoing is None:
        return
    (hv.layout.guest_directory(guest_id) / OUTGOING_FILE).unlink(missing_ok=True)
    if outgoing.running:
        await hv.connection.call(_resume, guest_id)


async def is_at_destination(hv: Hypervisor, guest_id: str, outgoing: OutgoingGuest) -> bool:
    """Whether the destination's agent or its libvirt reports the guest. False also if neither responds."""
    with contextlib.suppress(DriverError):
        return await _confirm_arrival(hv, guest_id, outgoing)
    with contextlib.suppress(DriverError):
        return await hv.connection.run(_has_arrived_at, outgoing.reach.get("migration", ""), guest_id, False)
    return False


async def try_confirm_arrival(hv: Hypervisor, guest_id: str, outgoing: OutgoingGuest) -> bool:
    """Whether the destination reports the guest, and so has copied its console log. False if it does not respond."""
    with contextlib.suppress(DriverError):
        return await _confirm_arrival(hv, guest_id, outgoing)
    return False


async def _confirm_arrival(hv: Hypervisor, guest_id: str, outgoing: OutgoingGuest) -> bool:
    """Ask the destination whether it has the guest. If it has, it copies the console log from this host."""
    has_log = not outgoing.shared and hv.disks_url and hv.layout.file(guest_id, names.CONSOLE_LOG).exists()
    peer = destination_peer(hv, guest_id, outgoing)
    return bool(await peer.get_json(f"/arrived/{guest_id}" + ("?log=1" if has_log else "")))


def destination_peer(hv: Hypervisor, guest_id: str, outgoing: OutgoingGuest) -> Peer:
    """The destination's agent, which accepts the ticket of this migration."""
    from kilonova.hosts.drivers.libvirt.disk_transfer import Peer

    key = move_tickets.key_of(move_tickets.find(hv, guest_id, "leaving", outgoing.slot))
    return Peer(hv, outgoing.destination, outgoing.reach.get("disks", ""), key)


def _complete_arrival(hv: Hypervisor, guest_id: str, slot: str) -> None:
    """Make this host the owner of the guest. Must not await, so that other tasks see the state before or after."""
    guest, incoming = hv.find_spec(guest_id, slot), find_incoming(hv, guest_id, slot)
    if guest is None or incoming is None:
        return
    # The owner first: the source must no longer treat the files as its own.
    hv.set_owner(guest_id)
    hv.write_spec(guest)
    for name in (OUTGOING_FILE, INCOMING_FILE):
        (hv.layout.guest_directory(guest_id) / name).unlink(missing_ok=True)
    shutil.rmtree(hv.layout.slot_directory(guest_id, slot))


async def complete_departure(hv: Hypervisor, guest_id: str, guest: Guest | None = None) -> None:
    """The guest has left this host: release its devices, give shared files to the destination, and remove others.

    The destination may have taken over shared files, with the spec and the record of the departure, already. `guest`
    is the spec that the guest had here.
    """
    if await hv.find_domain(guest_id) is None and guest_id not in incoming_guest_ids(hv):
        await hv.release_devices(guest_id, guest)
    outgoing = find_outgoing(hv, guest_id)
    if outgoing is None:
        return
    directory = hv.layout.guest_directory(guest_id)
    if outgoing.shared:
        (directory / OUTGOING_FILE).unlink(missing_ok=True)
        write_file(directory / names.OWNER, outgoing.destination.encode())
    else:
        await remove_directory(hv, directory)


async def remove_directory(hv: Hypervisor, directory: Path) -> None:
    """Remove the directory. It vanishes at once by a rename; deleting its files may take a while."""
    renamed = hv.layout.root / f"{_REMOVED_PREFIX}{new_id()}"
    try:
        directory.rename(renamed)
    except FileNotFoundError:
        return
    await hv.connection.run(_remove_files, renamed)


async def resume_removals(hv: Hypervisor) -> None:
    """Remove the directories that a killed agent was removing. Runs once at the agent's start."""
    for directory in hv.layout.root.glob(f"{_REMOVED_PREFIX}*"):
        try:
            await hv.connection.run(_remove_files, directory)
        except OSError as error:
            log.warning("cannot remove %s, the directory of a removed guest: %s", directory, error)


async def reject_incoming(hv: Hypervisor, guest_id: str) -> None:
    """Reject the incoming guest unless it has arrived."""
    await hv.connection.call(_destroy_incoming, guest_id)


# In threads


def _remove_files(directory: Path) -> None:
    """Ignores missing files: another host that shares the storage may remove them at the same time."""

    def skip_missing(function: object, path: str, error: tuple[type[BaseException], BaseException, object]) -> None:
        if not isinstance(error[1], FileNotFoundError):
            raise error[1]

    shutil.rmtree(directory, onerror=skip_missing)


def _has_arrived_domain(connection: libvirt.virConnect, guest_id: str) -> bool:
    """Whether the incoming migration of the domain has completed. The domain may have stopped since."""
    import libvirt

    domain = lookup_domain(connection, guest_id)
    if domain is None or not domain.isPersistent():
        return False
    state, reason = domain.state()
    return (state, reason) not in (
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY),
        (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY),
    )


def _destroy_incoming(connection: libvirt.virConnect, guest_id: str) -> None:
    """Destroy the incoming domain. One that arrives at this moment stays defined, shut down."""
    import libvirt

    domain = lookup_domain(connection, guest_id)
    if domain is None or _has_arrived_domain(connection, guest_id):
        return
    with contextlib.suppress(libvirt.libvirtError):
        domain.destroy()


def _has_arrived_at(uri: str, guest_id: str, reject: bool) -> bool:
    """Whether the guest has arrived at the other libvirt. `reject`: reject it there if it has not."""
    import libvirt

    if not uri:
        raise DriverError("the other host reports no libvirt URI")
    other = libvirt.open(uri)
    try:
        if reject:
            _destroy_incoming(other, guest_id)
        return _has_arrived_domain(other, guest_id)
    finally:
        other.close()


def migration_progress(connection: libvirt.virConnect, guest_id: str) -> MigrationState | None:
    import libvirt

    domain = lookup_domain(connection, guest_id)
    if domain is None:
        return None
    try:
        found = domain.jobStats()
    except libvirt.libvirtError:
        return None  # not running, or incoming
    if found.get("operation") != libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT:
        return None
    if found.get("type") in (
        libvirt.VIR_DOMAIN_JOB_NONE,
        libvirt.VIR_DOMAIN_JOB_COMPLETED,
        libvirt.VIR_DOMAIN_JOB_FAILED,
    ):
        return None

    def done(kind: str) -> int:
        # `…_processed` counts data that was sent several times, so progress is computed from `…_remaining`.
        return max(0, int(found.get(f"{kind}_total", 0)) - int(found.get(f"{kind}_remaining", 0)))

    return MigrationState(
        memory_total=found.get("memory_total", 0),
        memory_processed=done("memory"),
        disk_total=found.get("disk_total", 0),
        disk_processed=done("disk"),
    )


def is_migrating_out(connection: libvirt.virConnect, guest_id: str) -> bool:
    return migration_progress(connection, guest_id) is not None


def _resume(connection: libvirt.virConnect, guest_id: str) -> None:
    """Resume a guest that was paused for its migration."""
    import libvirt

    domain = lookup_domain(connection, guest_id)
    for _ in range(10):
        if domain is None or domain.state()[0] != libvirt.VIR_DOMAIN_PAUSED:
            return
        try:
            domain.resume()
        except libvirt.libvirtError:
            time.sleep(_RESUME_RETRY_SECONDS)  # libvirt still cleans up the migration
