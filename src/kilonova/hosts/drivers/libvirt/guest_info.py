"""Reads guests' states and diagnostics."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any, NamedTuple

from kilonova import clock
from kilonova.hosts.drivers.base import DriverError, NotRunning
from kilonova.hosts.drivers.libvirt import layout, migration_records
from kilonova.hosts.drivers.libvirt.hardware import get_virt_type
from kilonova.hosts.drivers.libvirt.hypervisor import DOMAIN_PREFIX, Hypervisor, power_state
from kilonova.hosts.messages import Guest, GuestState, Power

if TYPE_CHECKING:
    import libvirt


class _Domain(NamedTuple):
    id: str
    name: str
    power: Power
    vcpus: int
    ram_mb: int


async def list_guests(hv: Hypervisor) -> list[GuestState]:
    """All guests with a spec or a domain, and those kept in slots."""
    await migration_records.reconcile(hv)
    domains = {domain.id: domain for domain in await hv.connection.call(_domains)}
    return await hv.connection.run(_guests, hv, domains)


async def diagnostics(hv: Hypervisor, guest_id: str) -> dict[str, Any]:
    guest = hv.spec(guest_id)
    power = await hv.power(guest_id)
    if power is None:
        raise NotRunning(guest_id)
    stats = await hv.connection.call(_stats, guest_id)
    return {
        "state": power,
        "driver": "libvirt",
        "hypervisor": get_virt_type(hv.config.libvirt),
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


# Diagnostics from libvirt's statistics


def _memory(stats: dict[str, Any], guest: Guest) -> dict[str, int | None]:
    """In MiB. `used` is None unless the guest runs a balloon driver."""
    available, unused = stats.get("balloon.available"), stats.get("balloon.unused")
    used = (available - unused) // 1024 if available is not None and unused is not None else None
    return {"maximum": int(stats.get("balloon.maximum", guest.flavor.ram_mb * 1024)) // 1024, "used": used}


def _cpus(stats: dict[str, Any]) -> list[dict[str, int | None]]:
    count = int(stats.get("vcpu.current", 0))
    return [{"id": number, "time": stats.get(f"vcpu.{number}.time"), "utilisation": None} for number in range(count)]


def _nics(stats: dict[str, Any], guest: Guest) -> list[dict[str, Any]]:
    macs = stats.get("macs", {})
    names = [f"net.{number}" for number in range(int(stats.get("net.count", 0)))]
    found = [{"mac_address": macs.get(stats.get(f"{name}.name"))} | _counters(stats, name) for name in names]
    return found or [{"mac_address": nic.mac} | _counters({}, "") for nic in guest.nics]


def _counters(stats: dict[str, Any], name: str) -> dict[str, Any]:
    """libvirt has no rate, so it is always None."""
    keys = {"octets": "bytes", "packets": "pkts", "errors": "errs", "drop": "drop", "rate": "rate"}
    return {
        f"{way}_{counter}": stats.get(f"{name}.{way}.{key}") for way in ("rx", "tx") for counter, key in keys.items()
    }


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
            if name.startswith(DOMAIN_PREFIX):
                _, memory, _, vcpus, _ = domain.info()
                found.append(_Domain(domain.UUIDString(), name, power_state(domain), vcpus, memory // 1024))
        except libvirt.libvirtError as error:
            # The domain was removed after it was listed.
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise
    return found


def _guests(hv: Hypervisor, domains: dict[str, _Domain]) -> list[GuestState]:
    found = []
    for guest_id in hv.layout.guest_ids():
        guest, domain = _read_spec(hv, guest_id), domains.get(guest_id)
        # Shared storage also has the directories of other hosts' guests.
        if guest is None or (domain is None and not hv.owns(guest_id)):
            continue
        found.append(hv.guest_state(guest, domain.power if domain is not None else "shutdown"))
        domains.pop(guest_id, None)
    for guest_id in migration_records.incoming_guest_ids(hv):
        domains.pop(guest_id, None)  # still on the source host
    slots = [(guest_id, slot) for guest_id, slot in hv.layout.slots() if hv.owns(guest_id, slot)]
    expected = {guest_id for guest_id, _ in slots}
    for domain in domains.values():
        if domain.id in expected and domain.power == "paused":
            continue  # an incoming migration: the guest is still on its source host
        found.append(
            GuestState(
                id=domain.id, name=domain.name, power=domain.power, vcpus=domain.vcpus, ram_mb=domain.ram_mb, disk_gb=0
            )
        )
    for guest_id, slot in slots:
        guest = _read_spec(hv, guest_id, slot)
        if guest is not None:
            found.append(hv.guest_state(guest, "shutdown", slot))
    return found


def _read_spec(hv: Hypervisor, guest_id: str, slot: str = "") -> Guest | None:
    """None also if the spec cannot be read: one broken spec must not hide the other guests."""
    try:
        return hv.find_spec(guest_id, slot)
    except (DriverError, OSError):
        return None


def _uptime(hv: Hypervisor, guest_id: str) -> int | None:
    """Seconds since the guest started on this host or migrated to it."""
    try:
        return max(0, int(clock.wall() - hv.layout.file(guest_id, layout.OWNER).stat().st_mtime))
    except FileNotFoundError:
        return None


def _stats(connection: libvirt.virConnect, guest_id: str) -> dict[str, Any]:
    domain = connection.lookupByUUIDString(guest_id)
    records = connection.domainListGetStats([domain], 0, 0)
    stats: dict[str, Any] = dict(records[0][1]) if records else {}
    document = ET.fromstring(domain.XMLDesc())
    stats["macs"] = {
        str(target.get("dev")): str(mac.get("address"))
        for interface in document.findall("devices/interface")
        if (target := interface.find("target")) is not None and (mac := interface.find("mac")) is not None
    }
    return stats
