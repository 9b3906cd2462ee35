"""Live migration: libvirt of the source speaks to that of the destination, and goes on if this process ends."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
import time
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import msgspec

from kilonova.hosts.drivers.base import DriverError, MissingGuest, NotRunning
from kilonova.hosts.drivers.libvirt import arrivals
from kilonova.hosts.drivers.libvirt.arrivals import Leaving, Welcome
from kilonova.hosts.drivers.libvirt.hypervisor import look_up
from kilonova.hosts.drivers.libvirt.peers import Peer
from kilonova.hosts.drivers.libvirt.reconnecting import command
from kilonova.hosts.messages import MigrationState

if TYPE_CHECKING:
    import libvirt

    from kilonova.config import Libvirt
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

_LOOK_EVERY = 0.5
_ABORT_EVERY = 0.2
_UNTHROTTLED_MB = 1 << 20
_WELCOME_SECONDS = 60.0
_LEAVE_SECONDS = 15.0
# How libvirt calls what it copies disks into.
_COPIES = ("-format", "-storage")


async def migrate_live(
    hv: Hypervisor, guest_id: str, destination: str, slot: str, block: bool | None, reach: dict[str, str]
) -> None:
    await _joined(hv, guest_id)
    await arrivals.settle_guest(hv, guest_id)
    if hv.find_spec(guest_id) is None:
        # Whoever's the files are that may be here, they are not this host's to give.
        gone = Leaving(slot=slot, destination=destination, shared=True, running=True, reach=reach)
        if await arrivals.is_at_destination(hv, guest_id, gone):
            return
        raise MissingGuest(guest_id)
    power = await hv.power(guest_id)
    if power not in ("running", "paused"):
        raise NotRunning(guest_id)
    peer = Peer(hv, destination, reach.get("disks", ""))
    asked = await peer.ask(f"/expected/{guest_id}/{slot}", seconds=_WELCOME_SECONDS)
    welcome = msgspec.json.decode(asked, type=Welcome)
    gone = Leaving(slot=slot, destination=destination, shared=welcome.shared, running=power == "running", reach=reach)
    hv.carried.add(guest_id)
    try:
        await _move(hv, guest_id, welcome, gone)
    finally:
        hv.carried.discard(guest_id)


async def _move(hv: Hypervisor, guest_id: str, welcome: Welcome, gone: Leaving) -> None:
    arrivals.note(hv.layout.guest(guest_id) / arrivals.LEAVING, gone)
    try:
        await _carry(hv, guest_id, welcome, gone)
    except DriverError as error:
        # It may have come there nevertheless, in the last moment.
        if await _afterwards(hv, guest_id):
            message = f"guest {guest_id} could not be moved to {gone.destination}: {error.message}"
            raise DriverError(message, passing=error.passing) from error
        return
    except asyncio.CancelledError:
        await _afterwards(hv, guest_id)
        raise
    await _take_leave(hv, guest_id, gone)


async def stop(hv: Hypervisor, guest_id: str) -> None:
    """Also of one that an earlier process has begun."""
    await hv.connection.ask(_abort, guest_id)
    while await look(hv, guest_id) is not None:
        await asyncio.sleep(_ABORT_EVERY)
        await hv.connection.ask(_abort, guest_id)
    if arrivals.leaving(hv, guest_id) is not None:
        await _afterwards(hv, guest_id)


async def hurry(hv: Hypervisor, guest_id: str) -> None:
    """Until it has ended: disks come first and then memory, each as slow as configured."""
    how = hv.config.libvirt.force_complete
    while await look(hv, guest_id) is not None:
        await hv.connection.ask(_hurry, guest_id, how)
        await asyncio.sleep(_LOOK_EVERY)


async def look(hv: Hypervisor, guest_id: str) -> MigrationState | None:
    return await hv.connection.ask(arrivals.look, guest_id)


async def _joined(hv: Hypervisor, guest_id: str) -> None:
    """Until a migration that an earlier process has begun has ended."""
    try:
        while await look(hv, guest_id) is not None:
            await asyncio.sleep(_LOOK_EVERY)
    except asyncio.CancelledError:
        await stop(hv, guest_id)
        raise


async def _carry(hv: Hypervisor, guest_id: str, welcome: Welcome, gone: Leaving) -> None:
    ended = threading.Event()
    settings = hv.config.libvirt
    try:
        await hv.connection.run(
            _migrate,
            hv.connection.uri,
            guest_id,
            settings,
            welcome,
            gone.reach,
            ended,
            stop=lambda: _abort_until(hv.connection.opened, guest_id, ended),
        )
    finally:
        ended.set()


async def _afterwards(hv: Hypervisor, guest_id: str) -> bool:
    """After a migration that has not succeeded, or of which nobody knows: whether the guest is here, as it was."""
    if await arrivals.has_stayed(hv, guest_id):
        return True
    if (gone := arrivals.leaving(hv, guest_id)) is not None:
        await _take_leave(hv, guest_id, gone)
    return False


async def _take_leave(hv: Hypervisor, guest_id: str, gone: Leaving) -> None:
    """What the guest has said here goes along: a destination that cannot be told just now is given a while."""
    end = time.monotonic() + (0.0 if gone.shared else _LEAVE_SECONDS)
    while not await arrivals.is_told(hv, guest_id, gone) and time.monotonic() < end:
        await asyncio.sleep(_LOOK_EVERY)
    await arrivals.depart(hv, guest_id)


# What the destination has otherwise


def destination_document(source: str, welcome: Welcome) -> str:
    """The domain as it runs, with what the destination's own has for paths, ways to volumes, bridges and screens.

    All else, the places of devices above all, is as the guest knows it.
    """
    domain, there = ET.fromstring(source), ET.fromstring(welcome.domain)
    for disk in domain.findall("devices/disk"):
        other = _matching_disk(disk, there)
        if other is not None:
            _take_over(disk, other, ("source", "backingStore", "auth"))
            for name in ("type",):
                if other.get(name) is not None:
                    disk.set(name, str(other.get(name)))
    for nic in domain.findall("devices/interface"):
        other = _matching_nic(nic, there)
        if other is not None:
            nic.set("type", other.get("type", "bridge"))
            _take_over(nic, other, ("source", "target"))
    _replace_all(domain, there, "graphics")
    remembered, other_place = domain.find("os/nvram"), there.findtext("os/nvram")
    if remembered is not None and other_place:
        remembered.text = other_place
    for kind in ("serial", "console"):
        for number, one in enumerate(domain.findall(f"devices/{kind}")):
            others = there.findall(f"devices/{kind}")
            if number < len(others):
                _take_over(one, others[number], ("log",))
    return ET.tostring(domain, encoding="unicode")


def _matching_disk(disk: ET.Element, there: ET.Element) -> ET.Element | None:
    """By the volume's id where there is one, else by the name of the device."""
    serial = disk.findtext("serial")
    others = there.findall("devices/disk")
    if serial:
        found = next((other for other in others if other.findtext("serial") == serial), None)
        if found is not None:
            return found
    name = _device(disk)
    return next((other for other in others if _device(other) == name), None)


def _device(disk: ET.Element) -> str:
    target = disk.find("target")
    return target.get("dev", "") if target is not None else ""


def _matching_nic(nic: ET.Element, there: ET.Element) -> ET.Element | None:
    def mac(one: ET.Element) -> str:
        found = one.find("mac")
        return found.get("address", "").lower() if found is not None else ""

    return next((other for other in there.findall("devices/interface") if mac(other) == mac(nic)), None)


def _take_over(one: ET.Element, other: ET.Element, parts: tuple[str, ...]) -> None:
    for name in parts:
        for old in one.findall(name):
            one.remove(old)
        one.extend(copy.deepcopy(new) for new in other.findall(name))


def _replace_all(domain: ET.Element, there: ET.Element, kind: str) -> None:
    devices, others = domain.find("devices"), there.find("devices")
    if devices is None or others is None:
        return
    for old in devices.findall(kind):
        devices.remove(old)
    devices.extend(copy.deepcopy(new) for new in others.findall(kind))


def _moved_targets(document: str, welcome: Welcome) -> list[str]:
    """The devices whose disks are to be copied, by the names of their files."""
    found = []
    for disk in ET.fromstring(document).findall("devices/disk"):
        source = disk.find("source")
        path = source.get("file", "") if source is not None else ""
        if disk.get("type") == "file" and path.rsplit("/", 1)[-1] in welcome.moved:
            found.append(_device(disk))
    return found


# In threads


def _migrate(
    uri: str,
    guest_id: str,
    settings: Libvirt,
    welcome: Welcome,
    reach: dict[str, str],
    ended: threading.Event,
) -> None:
    """By a connection of its own: while one waits for this, it lets other calls wait for seconds."""
    import libvirt

    domain = libvirt.open(uri).lookupByUUIDString(guest_id)
    document = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE)
    new = destination_document(document, welcome)
    flags = (
        libvirt.VIR_MIGRATE_LIVE
        | libvirt.VIR_MIGRATE_PEER2PEER
        | libvirt.VIR_MIGRATE_PERSIST_DEST
        | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
    )
    values: dict[str, Any] = {
        libvirt.VIR_MIGRATE_PARAM_DEST_XML: new,
        libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: new,
    }
    targets = _moved_targets(document, welcome)
    if targets:
        flags |= libvirt.VIR_MIGRATE_NON_SHARED_INC
        values[libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS] = targets
        _drop_copies(domain)
    if welcome.shared:
        # Our own files, on storage of which libvirt may not know that both hosts see it: a file was read at both.
        flags |= libvirt.VIR_MIGRATE_UNSAFE
    if settings.migration_tls:
        # Disks that are copied go by TLS as well.
        flags |= libvirt.VIR_MIGRATE_TLS
    if settings.auto_converge:
        flags |= libvirt.VIR_MIGRATE_AUTO_CONVERGE
    if settings.force_complete == "postcopy":
        flags |= libvirt.VIR_MIGRATE_POSTCOPY
    if settings.migration_mb_per_second:
        values[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = settings.migration_mb_per_second
    address = reach.get("guests", "")
    if address:
        values[libvirt.VIR_MIGRATE_PARAM_URI] = f"tcp://[{address}]" if ":" in address else f"tcp://{address}"
    if settings.migration_downtime_ms:
        with contextlib.suppress(libvirt.libvirtError):
            domain.migrateSetMaxDowntime(settings.migration_downtime_ms)
    try:
        domain.migrateToURI3(reach.get("migration", ""), values, flags)
    finally:
        ended.set()


def _drop_copies(domain: libvirt.virDomain) -> None:
    """A libvirt that ended while disks were copied leaves QEMU's ends of that behind, in the way of the next time."""
    import libvirt

    with contextlib.suppress(libvirt.libvirtError, DriverError):
        nodes = [str(node["node-name"]) for node in command(domain, "query-named-block-nodes", {"flat": True})]
        # What is laid over another one first.
        for kind in _COPIES:
            for name in nodes:
                if name.startswith("migration-") and name.endswith(kind):
                    command(domain, "blockdev-del", {"node-name": name})


def _abort_until(opened: Any, guest_id: str, ended: threading.Event) -> None:
    """It may not have begun yet, or be in a phase in which it hears nothing: as often as needed."""
    import libvirt

    while not ended.is_set():
        with contextlib.suppress(libvirt.libvirtError, DriverError):
            _abort(opened(), guest_id)
        ended.wait(_ABORT_EVERY)


def _abort(connection: libvirt.virConnect, guest_id: str) -> None:
    import libvirt

    domain = look_up(connection, guest_id)
    if domain is None or not arrivals.is_leaving(connection, guest_id):
        return
    with contextlib.suppress(libvirt.libvirtError):
        domain.abortJob()
    # A disk that is copied slowly would hear of it late.
    _unthrottle(domain)


def _hurry(connection: libvirt.virConnect, guest_id: str, how: str) -> None:
    import libvirt

    domain = look_up(connection, guest_id)
    if domain is None:
        return
    with contextlib.suppress(libvirt.libvirtError):  # it may have ended in this moment
        if how == "postcopy":
            # Not before the first round of memory; it is tried again.
            domain.migrateStartPostCopy(0)
            return
        if domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING:
            domain.suspend()
        domain.migrateSetMaxSpeed(_UNTHROTTLED_MB)
    _unthrottle(domain)


def _unthrottle(domain: libvirt.virDomain) -> None:
    """Have disks be copied as fast as can be. libvirt does not let anybody near them meanwhile, but QEMU does."""
    import libvirt

    with contextlib.suppress(libvirt.libvirtError, DriverError):
        for job in command(domain, "query-block-jobs"):
            command(domain, "block-job-set-speed", {"device": job["device"], "speed": 0})
