"""What can be seen of guests: which there are, where their screens are, what they use."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any, NamedTuple

from kilonova import clock
from kilonova.hosts.drivers.base import DriverError, NotRunning
from kilonova.hosts.drivers.libvirt import arrivals, layout
from kilonova.hosts.drivers.libvirt.hypervisor import PREFIX, Hypervisor, power_of
from kilonova.hosts.drivers.libvirt.machine import virt_type_of
from kilonova.hosts.messages import Display, Guest, GuestState, Power

if TYPE_CHECKING:
    import libvirt

_VNC = "vnc"


class _Domain(NamedTuple):
    id: str
    name: str
    power: Power
    vcpus: int
    ram_mb: int


async def guests(hv: Hypervisor) -> list[GuestState]:
    """Domains with and without anything written of them, guests without a domain, and what lies in slots."""
    await arrivals.settle(hv)
    domains = {one.id: one for one in await hv.connection.ask(_domains)}
    return await hv.connection.run(_guests, hv, domains)


async def display(hv: Hypervisor, guest_id: str, kind: str) -> Display:
    hv.spec(guest_id)
    if kind != _VNC:
        raise DriverError(f"guests of this host have no {kind} console, only VNC", kind="no display")
    if await hv.power(guest_id) not in ("running", "paused"):
        raise NotRunning(guest_id)
    port = await hv.connection.ask(_vnc_port, guest_id)
    if port is None:
        raise DriverError(f"guest {guest_id} has no screen", kind="no display")
    return Display(host=hv.config.libvirt.vnc_address, port=port)


async def diagnostics(hv: Hypervisor, guest_id: str) -> dict[str, Any]:
    guest = hv.spec(guest_id)
    power = await hv.power(guest_id)
    if power is None:
        raise NotRunning(guest_id)
    stats = await hv.connection.ask(_stats, guest_id)
    return {
        "state": power,
        "driver": "libvirt",
        "hypervisor": virt_type_of(hv.config.libvirt),
        "hypervisor_os": "linux",
        "uptime": await hv.connection.run(_uptime, hv, guest_id) if power in ("running", "paused") else None,
        "config_drive": guest.config_drive,
        "num_cpus": guest.flavor.vcpus,
        "num_nics": len(guest.nics),
        "num_disks": int(stats.get("block.count", 0)),
        "memory_details": _memory(stats, guest),
        "cpu_details": _cpus(stats),
        "nic_details": _nics(stats, guest),
        "disk_details": _disks(stats),
    }


# What statistics become


def _memory(stats: dict[str, Any], guest: Guest) -> dict[str, int | None]:
    """In MiB. What the guest uses only a balloon driver in it can tell."""
    available, unused = stats.get("balloon.available"), stats.get("balloon.unused")
    used = (available - unused) // 1024 if available is not None and unused is not None else None
    return {"maximum": int(stats.get("balloon.maximum", guest.flavor.ram_mb * 1024)) // 1024, "used": used}


def _cpus(stats: dict[str, Any]) -> list[dict[str, int | None]]:
    count = int(stats.get("vcpu.current", 0))
    return [{"id": number, "time": stats.get(f"vcpu.{number}.time"), "utilisation": None} for number in range(count)]


def _nics(stats: dict[str, Any], guest: Guest) -> list[dict[str, Any]]:
    found = []
    macs = stats.get("macs", {})
    for number in range(int(stats.get("net.count", 0))):
        values = {"mac_address": macs.get(stats.get(f"net.{number}.name"))}
        for way in ("rx", "tx"):
            part = f"net.{number}.{way}"
            values |= {
                f"{way}_octets": stats.get(f"{part}.bytes"),
                f"{way}_packets": stats.get(f"{part}.pkts"),
                f"{way}_errors": stats.get(f"{part}.errs"),
                f"{way}_drop": stats.get(f"{part}.drop"),
                f"{way}_rate": None,
            }
        found.append(values)
    if not found:
        return [{"mac_address": nic.mac} | _nothing() for nic in guest.nics]
    return found


def _nothing() -> dict[str, None]:
    parts = ("octets", "packets", "errors", "drop", "rate")
    return {f"{way}_{part}": None for way in ("rx", "tx") for part in parts}


def _disks(stats: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "read_bytes": stats.get(f"block.{number}.rd.bytes"),
            "read_requests": stats.get(f"block.{number}.rd.reqs"),
            "write_bytes": stats.get(f"block.{number}.wr.bytes"),
            "write_requests": stats.get(f"block.{number}.wr.reqs"),
            "errors_count": stats.get(f"block.{number}.errors", 0),
        }
        for number in range(int(stats.get("block.count", 0)))
    ]


# In threads


def _domains(connection: libvirt.virConnect) -> list[_Domain]:
    import libvirt

    found = []
    for domain in connection.listAllDomains():
        try:
            name = domain.name()
            if name.startswith(PREFIX):
                _, memory, _, vcpus, _ = domain.info()
                found.append(_Domain(domain.UUIDString(), name, power_of(domain), vcpus, memory // 1024))
        except libvirt.libvirtError as error:
            # Gone since it was listed.
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise
    return found


def _guests(hv: Hypervisor, domains: dict[str, _Domain]) -> list[GuestState]:
    found = []
    for guest_id in hv.layout.guests():
        guest, domain = _spec(hv, guest_id), domains.get(guest_id)
        # On shared storage most directories are those of other hosts.
        if guest is None or (domain is None and not hv.owns(guest_id)):
            continue
        found.append(hv.state_of(guest, domain.power if domain is not None else "shutdown"))
        domains.pop(guest_id, None)
    for guest_id in arrivals.expected_guests(hv):
        domains.pop(guest_id, None)  # one that only comes is not here
    slots = [(guest_id, slot) for guest_id, slot in hv.layout.slots() if hv.owns(guest_id, slot)]
    expected = {guest_id for guest_id, _ in slots}
    for domain in domains.values():
        if domain.id in expected and domain.power == "paused":
            continue  # it is just coming from another host, where it still is
        found.append(
            GuestState(
                id=domain.id, name=domain.name, power=domain.power, vcpus=domain.vcpus, ram_mb=domain.ram_mb, disk_gb=0
            )
        )
    for guest_id, slot in slots:
        guest = _spec(hv, guest_id, slot)
        if guest is not None:
            found.append(hv.state_of(guest, "shutdown", slot))
    return found


def _spec(hv: Hypervisor, guest_id: str, slot: str = "") -> Guest | None:
    """One that cannot be read must not hide the others."""
    try:
        return hv.find_spec(guest_id, slot)
    except (DriverError, OSError):
        return None


def _vnc_port(connection: libvirt.virConnect, guest_id: str) -> int | None:
    document = ET.fromstring(connection.lookupByUUIDString(guest_id).XMLDesc())
    graphics = document.find("devices/graphics[@type='vnc']")
    port = int(graphics.get("port", "-1")) if graphics is not None else -1
    return port if port > 0 else None


def _uptime(hv: Hypervisor, guest_id: str) -> int | None:
    """Seconds since it was started here, or came."""
    try:
        return max(0, int(clock.now() - hv.layout.file(guest_id, layout.OWNER).stat().st_mtime))
    except FileNotFoundError:
        return None


def _stats(connection: libvirt.virConnect, guest_id: str) -> dict[str, Any]:
    domain = connection.lookupByUUIDString(guest_id)
    answers = connection.domainListGetStats([domain], 0, 0)
    stats: dict[str, Any] = dict(answers[0][1]) if answers else {}
    document = ET.fromstring(domain.XMLDesc())
    stats["macs"] = {
        str(target.get("dev")): str(mac.get("address"))
        for one in document.findall("devices/interface")
        if (target := one.find("target")) is not None and (mac := one.find("mac")) is not None
    }
    return stats
