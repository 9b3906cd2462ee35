"""Guests on their way between two hosts while they run: who has left, and who has come.

Before a guest leaves, its directory says so (`leaving`); before it comes, its slot does (`arriving`), and at first its
new directory too. The slot holds what the guest is. Its disks are from the beginning where they stay, since those of a
running guest are not to be renamed. libvirt decides where it is: whoever looks draws the conclusion, so that it does
not matter which process was there when it happened.
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
from kilonova.hosts.drivers.libvirt.connection import Event
from kilonova.hosts.drivers.libvirt.hypervisor import look_up, write
from kilonova.hosts.messages import MigrationState
from kilonova.ids import new_id

if TYPE_CHECKING:
    import libvirt

    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

log = logging.getLogger(__name__)

ARRIVING, LEAVING = "arriving", "leaving"
# Directories on their way out; no guest's id begins so.
_GONE = ".gone-"
_WIRED_SECONDS = 45.0
_RESUME_EVERY = 0.2
# So long whoever wants to see all guests waits for what another host has to say of one.
_SETTLE_SECONDS = 2.0
_ASK_SECONDS = 15.0

T = TypeVar("T")


class Arriving(msgspec.Struct, frozen=True):
    """`shared`: whether the guest's directory is one for both hosts. `moved`: the names of the disks that come too."""

    slot: str
    source: str
    shared: bool
    moved: list[str] = []


class Leaving(msgspec.Struct, frozen=True):
    """`running`: whether the guest ran when it began to leave."""

    slot: str
    destination: str
    shared: bool
    running: bool
    reach: dict[str, str] = {}


class Welcome(msgspec.Struct, frozen=True):
    """What the source has to know of the destination: the guest's domain as it is built there."""

    domain: str
    shared: bool
    moved: list[str] = []


# What is written down


def read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        log.error("%s cannot be read: %s", path, error)
        return None


def note(path: Path, content: Arriving | Leaving) -> None:
    write(path, msgspec.json.encode(content))


def arriving(hv: Hypervisor, guest_id: str, slot: str) -> Arriving | None:
    if not hv.owns(guest_id, slot):
        return None
    return read(hv.layout.slot(guest_id, slot) / ARRIVING, Arriving)


def leaving(hv: Hypervisor, guest_id: str) -> Leaving | None:
    if not hv.owns(guest_id):
        return None
    return read(hv.layout.guest(guest_id) / LEAVING, Leaving)


# What other hosts ask


async def expected(hv: Hypervisor, guest_id: str, slot: str) -> Welcome:
    """Once the networks of the guest are here."""
    from kilonova.hosts.drivers.libvirt import domain

    guest, coming = hv.find_spec(guest_id, slot), arriving(hv, guest_id, slot)
    if guest is None or coming is None:
        raise NoSuchSlot(guest_id, slot, hv.host)
    if guest.nics and hv.wiring is not None:
        await hv.wiring.wired([nic.port_id for nic in guest.nics], _WIRED_SECONDS)
    return Welcome(domain.document(hv, guest), coming.shared, coming.moved)


async def has_arrived(hv: Hypervisor, guest_id: str, *, or_never: bool = False) -> bool:
    """`or_never`: one that has not does not come any more."""
    if or_never:
        await turn_away(hv, guest_id)
    await settle_guest(hv, guest_id)
    return hv.find_spec(guest_id) is not None and await hv.find_domain(guest_id) is not None


# Drawing the conclusion


async def settle(hv: Hypervisor) -> None:
    """Have the files say what libvirt says, for all guests that come or go. Other hosts are not waited for for long."""
    moving = expected_guests(hv)
    moving.update(guest_id for guest_id in hv.layout.guests() if leaving(hv, guest_id) is not None)
    for guest_id in moving - hv.settling.keys():
        task = hv.settling[guest_id] = asyncio.create_task(settle_guest(hv, guest_id))
        task.add_done_callback(partial(_settled, hv, guest_id))
    if hv.settling:
        await asyncio.wait(hv.settling.values(), timeout=_SETTLE_SECONDS)


def _settled(hv: Hypervisor, guest_id: str, task: asyncio.Task[None]) -> None:
    del hv.settling[guest_id]
    if not task.cancelled() and task.exception() is not None:
        log.warning("it is not known where guest %s is: %s", guest_id, task.exception())


async def settle_guest(hv: Hypervisor, guest_id: str) -> None:
    """Raises DriverError where it cannot be known."""
    for one, slot in list(hv.layout.slots()):
        if one == guest_id and arriving(hv, guest_id, slot) is not None and await hv.connection.ask(_is_here, guest_id):
            _arrive(hv, guest_id, slot)
    gone = leaving(hv, guest_id)
    if gone is None or guest_id in hv.carried:
        return  # who has it leave, draws the conclusion
    if await hv.find_domain(guest_id) is None:
        if await is_at_destination(hv, guest_id, gone):
            await depart(hv, guest_id)
    elif not await hv.connection.ask(is_leaving, guest_id) and not await has_stayed(hv, guest_id):
        await is_told(hv, guest_id, gone)
        await depart(hv, guest_id)


async def has_stayed(hv: Hypervisor, guest_id: str) -> bool:
    """Whether a guest that is not moved any more is here: then it is as it was before. Raises DriverError, passing.

    One that runs has not left. One that stands still may run at the destination, if this host's libvirt ended in the
    last moment: so that one is asked, and takes the guest no more if it has not got it.
    """
    gone, power = leaving(hv, guest_id), await hv.power(guest_id)
    if power is None:
        return False  # libvirt removes a domain only when the destination has it
    if gone is not None and power != "running" and await _has_been_taken(hv, guest_id, gone):
        await hv.undefine(guest_id)
        return False
    await stay(hv, guest_id)
    return True


async def _has_been_taken(hv: Hypervisor, guest_id: str, gone: Leaving) -> bool:
    from kilonova.hosts.drivers.libvirt.peers import Peer

    try:
        peer = Peer(hv, gone.destination, gone.reach.get("disks", ""))
        return bool(await peer.find(f"/arrived/{guest_id}?or=never", seconds=_ASK_SECONDS))
    except DriverError as error:
        trouble = error
    try:
        return await hv.connection.run(_settle_at, gone.reach.get("migration", ""), guest_id)
    except DriverError:
        message = f"guest {guest_id} stands still, and {gone.destination}, where it was going, does not say whether it"
        raise DriverError(f"{message} is there: {trouble.message}", passing=True) from None


async def watch(hv: Hypervisor) -> None:
    """Until cancelled: whoever comes is at home at once."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    def hear(event: Event) -> None:
        if event.kind == "lifecycle":
            heard.put_nowait(event.guest_id)

    stop = hv.connection.on_event(hear)
    try:
        while True:
            guest_id = await heard.get()
            try:
                if guest_id in expected_guests(hv):
                    await settle_guest(hv, guest_id)
            except (DriverError, OSError) as error:
                log.warning("guest %s may have come, but: %s", guest_id, error)
    finally:
        stop()


def expected_guests(hv: Hypervisor) -> set[str]:
    return {guest_id for guest_id, slot in hv.layout.slots() if arriving(hv, guest_id, slot) is not None}


async def stay(hv: Hypervisor, guest_id: str) -> None:
    """The guest has not left: it is as it was before."""
    gone = leaving(hv, guest_id)
    if gone is None:
        return
    (hv.layout.guest(guest_id) / LEAVING).unlink(missing_ok=True)
    if gone.running:
        await hv.connection.ask(_go_on, guest_id)


async def is_at_destination(hv: Hypervisor, guest_id: str, gone: Leaving) -> bool:
    """Whether the destination, or its libvirt, says that it has the guest. False also if nobody can be asked."""
    with contextlib.suppress(DriverError):
        return await _tell_arrival(hv, guest_id, gone)
    with contextlib.suppress(DriverError):
        return await hv.connection.run(_runs_at, gone.reach.get("migration", ""), guest_id)
    return False


async def is_told(hv: Hypervisor, guest_id: str, gone: Leaving) -> bool:
    """Whether the destination says that it has the guest, and so what the guest has written to its console here."""
    with contextlib.suppress(DriverError):
        return await _tell_arrival(hv, guest_id, gone)
    return False


async def _tell_arrival(hv: Hypervisor, guest_id: str, gone: Leaving) -> bool:
    """Ask the destination whether it has the guest, which then gets what the guest has written to its console here."""
    from kilonova.hosts.drivers.libvirt.peers import Peer

    peer = Peer(hv, gone.destination, gone.reach.get("disks", ""))
    has_log = not gone.shared and hv.disks_url and hv.layout.file(guest_id, names.CONSOLE).exists()
    return bool(await peer.find(f"/arrived/{guest_id}" + (f"?from={hv.disks_url}" if has_log else "")))


def _arrive(hv: Hypervisor, guest_id: str, slot: str) -> None:
    """In one go: whoever else looks meanwhile finds it before or after."""
    guest, coming = hv.find_spec(guest_id, slot), arriving(hv, guest_id, slot)
    if guest is None or coming is None:
        return
    # First whose it is: the source must not take the files for its own any more.
    hv.take(guest_id)
    hv.write_spec(guest)
    for name in (LEAVING, ARRIVING):
        (hv.layout.guest(guest_id) / name).unlink(missing_ok=True)
    shutil.rmtree(hv.layout.slot(guest_id, slot))


async def depart(hv: Hypervisor, guest_id: str) -> None:
    """The guest is here no more. Files that both hosts see are the destination's now; others go."""
    gone = leaving(hv, guest_id)
    if gone is None:
        return
    directory = hv.layout.guest(guest_id)
    if gone.shared:
        (directory / LEAVING).unlink(missing_ok=True)
        write(directory / names.OWNER, gone.destination.encode())
    else:
        await remove(hv, directory)


async def remove(hv: Hypervisor, directory: Path) -> None:
    """At once for everybody who looks; the files themselves may take a while."""
    grave = hv.layout.root / f"{_GONE}{new_id()}"
    try:
        directory.rename(grave)
    except FileNotFoundError:
        return
    await hv.connection.run(_remove_files, grave)


async def recover(hv: Hypervisor) -> None:
    """Removes the files of directories that an agent was removing when it was killed. For when an agent starts."""
    for directory in hv.layout.root.glob(f"{_GONE}*"):
        try:
            await hv.connection.run(_remove_files, directory)
        except OSError as error:
            log.warning("the files of a removed guest in %s cannot be removed: %s", directory, error)


async def turn_away(hv: Hypervisor, guest_id: str) -> None:
    """Whoever is just coming does not, unless it has come."""
    await hv.connection.ask(_turn_away, guest_id)


# In threads


def _remove_files(directory: Path) -> None:
    """Another host that shares the storage may be removing the same files."""

    def skip_missing(function: object, path: str, trouble: tuple[type[BaseException], BaseException, object]) -> None:
        if not isinstance(trouble[1], FileNotFoundError):
            raise trouble[1]

    shutil.rmtree(directory, onerror=skip_missing)


def _is_here(connection: libvirt.virConnect, guest_id: str) -> bool:
    """Whether the domain is this host's, and not only being received. One that has ended since counts as well."""
    import libvirt

    domain = look_up(connection, guest_id)
    if domain is None or not domain.isPersistent():
        return False
    state, reason = domain.state()
    return (state, reason) not in (
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY),
        (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY),
    )


def _turn_away(connection: libvirt.virConnect, guest_id: str) -> None:
    """One that came in this very moment stays as a guest without power, which is what it is then."""
    import libvirt

    domain = look_up(connection, guest_id)
    if domain is None or _is_here(connection, guest_id):
        return
    with contextlib.suppress(libvirt.libvirtError):
        domain.destroy()


def _settle_at(uri: str, guest_id: str) -> bool:
    """Whether the guest is at the other libvirt; if not, it does not come any more."""
    import libvirt

    if not uri:
        raise DriverError("the other host does not say where its libvirt is")
    other = libvirt.open(uri)
    try:
        _turn_away(other, guest_id)
        return _is_here(other, guest_id)
    finally:
        other.close()


def _runs_at(uri: str, guest_id: str) -> bool:
    import libvirt

    if not uri:
        return False
    other = libvirt.open(uri)
    try:
        return _is_here(other, guest_id)
    finally:
        other.close()


def look(connection: libvirt.virConnect, guest_id: str) -> MigrationState | None:
    import libvirt

    domain = look_up(connection, guest_id)
    if domain is None:
        return None
    try:
        found = domain.jobStats()
    except libvirt.libvirtError:
        return None  # it does not run, or is just coming
    if found.get("operation") != libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT:
        return None
    if found.get("type") in (
        libvirt.VIR_DOMAIN_JOB_NONE,
        libvirt.VIR_DOMAIN_JOB_COMPLETED,
        libvirt.VIR_DOMAIN_JOB_FAILED,
    ):
        return None

    def done(what: str) -> int:
        # What is processed counts only what was sent, and that again and again; what remains tells how far it is.
        return max(0, int(found.get(f"{what}_total", 0)) - int(found.get(f"{what}_remaining", 0)))

    return MigrationState(
        memory_total=found.get("memory_total", 0),
        memory_processed=done("memory"),
        disk_total=found.get("disk_total", 0),
        disk_processed=done("disk"),
    )


def is_leaving(connection: libvirt.virConnect, guest_id: str) -> bool:
    return look(connection, guest_id) is not None


def _go_on(connection: libvirt.virConnect, guest_id: str) -> None:
    """A guest that was halted to make it move is not to stay so."""
    import libvirt

    domain = look_up(connection, guest_id)
    for _ in range(10):
        if domain is None or domain.state()[0] != libvirt.VIR_DOMAIN_PAUSED:
            return
        try:
            domain.resume()
        except libvirt.libvirtError:
            time.sleep(_RESUME_EVERY)  # the end of the migration is still being dealt with
