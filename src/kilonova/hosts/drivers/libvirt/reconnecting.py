"""Guests that outlast the volume service: their NBD clients wait for it and connect again.

Old releases of libvirt cannot ask QEMU for that. So a client that waits is put below a disk of the running guest in the
place of libvirt's own, by QEMU's monitor; libvirt's stays beside it, unused, and goes when libvirt takes the disk away.
The same is how a guest learns that its volume has grown: NBD tells the size only when a client connects.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import orjson

from kilonova.hosts.drivers.base import DriverError

if TYPE_CHECKING:
    import libvirt

# For so long requests wait for the volume service to come back; then the guest sees errors.
SECONDS = 300
_OURS = re.compile(r"kn-(\d+)-(\d+)")


def steady(domain: libvirt.virDomain) -> None:
    """Every NBD disk of the running domain that would not wait, does afterwards.

    Not of one that is on its way between hosts: its disks are the other host's.
    """
    if not domain.isActive() or _is_moving(domain):
        return
    disks = [disk for disk in _disks(domain) if disk.find("source/reconnect") is None]
    if not disks:
        return
    known = _nodes(domain)
    for disk in disks:
        if not _ours(known, _index(disk)):
            _renew(domain, disk, known)


def renew(domain: libvirt.virDomain, disk: ET.Element) -> None:
    """Have a client below the disk that connects now."""
    _renew(domain, disk, _nodes(domain))


def tidy(domain: libvirt.virDomain) -> None:
    """Remove clients below disks that are no more."""
    if not domain.isActive():
        return
    known = _nodes(domain)
    there = {_index(disk) for disk in _disks(domain)}
    for name in known:
        if (match := _OURS.fullmatch(name)) and match[1] not in there:
            _drop(domain, name)


def _renew(domain: libvirt.virDomain, disk: ET.Element, known: dict[str, Any]) -> None:
    index, source = _index(disk), disk.find("source")
    upper = known.get(f"libvirt-{index}-format")
    if upper is None or source is None or source.find("host") is None:
        raise DriverError("QEMU has the disk in a way that is not known", passing=True)
    before = _ours(known, index)
    name = f"kn-{index}-{max((int(_OURS.fullmatch(one)[2]) for one in before), default=0) + 1}"  # type: ignore[index]
    options = {
        "read-only": upper["ro"],
        "discard": "unmap",
        "cache": {"direct": upper["cache"]["direct"], "no-flush": upper["cache"]["no-flush"]},
    }
    host = source.find("host")
    assert host is not None
    command(
        domain,
        "blockdev-add",
        {
            "driver": "nbd",
            "node-name": name,
            "server": {"type": "inet", "host": host.get("name"), "port": host.get("port")},
            "export": source.get("name"),
            "reconnect-delay": SECONDS,
            **_tls(domain, source, index),
            **options,
        },
    )
    try:
        upper_now = {"driver": upper["drv"], "node-name": upper["node-name"], "file": name, **options}
        command(domain, "blockdev-reopen", {"options": [upper_now]})
    except DriverError:
        _drop(domain, name)
        raise
    for one in before:
        _drop(domain, one)


def _tls(domain: libvirt.virDomain, source: ET.Element, index: str) -> dict[str, str]:
    """What libvirt's own client proves who it is by; it stays as long as somebody uses it."""
    if source.get("tls") != "yes":
        return {}
    objects = [str(one["name"]) for one in command(domain, "qom-list", {"path": "/objects"})]
    found = next((name for name in objects if f"libvirt-{index}-storage" in name and "tls" in name), None)
    if found is None:
        raise DriverError("QEMU has the certificates of the disk in a way that is not known", passing=True)
    name = source.get("tlsHostname")
    return {"tls-creds": found, **({"tls-hostname": name} if name else {})}


def _is_moving(domain: libvirt.virDomain) -> bool:
    import libvirt

    state, reason = domain.state()
    return state == libvirt.VIR_DOMAIN_PAUSED and reason in (
        libvirt.VIR_DOMAIN_PAUSED_MIGRATION,
        libvirt.VIR_DOMAIN_PAUSED_POSTCOPY,
        libvirt.VIR_DOMAIN_PAUSED_STARTING_UP,
    )


def _disks(domain: libvirt.virDomain) -> list[ET.Element]:
    """Those that the running domain reaches by NBD."""
    found = ET.fromstring(domain.XMLDesc(0)).findall("devices/disk")
    return [disk for disk in found if disk.find("source[@protocol='nbd'][@index]") is not None]


def _index(disk: ET.Element) -> str:
    """The number by which libvirt calls the nodes of a disk in QEMU; it uses none twice."""
    source = disk.find("source")
    return str(source.get("index")) if source is not None else ""


def _nodes(domain: libvirt.virDomain) -> dict[str, Any]:
    return {node["node-name"]: node for node in command(domain, "query-named-block-nodes", {"flat": True})}


def _ours(known: dict[str, Any], index: str) -> list[str]:
    return [name for name in known if (match := _OURS.fullmatch(name)) and match[1] == index]


def _drop(domain: libvirt.virDomain, name: str) -> None:
    try:
        command(domain, "blockdev-del", {"node-name": name})
    except DriverError:
        pass  # still in use, or gone: the next one who tidies finds it


def command(domain: libvirt.virDomain, name: str, arguments: dict[str, Any] | None = None) -> Any:
    """Raises DriverError with QEMU's own words, or libvirtError."""
    import libvirt_qemu

    asked = {"execute": name, "arguments": arguments or {}}
    answer = orjson.loads(libvirt_qemu.qemuMonitorCommand(domain, orjson.dumps(asked).decode(), 0))
    if "error" in answer:
        raise DriverError(f"QEMU refused {name}: {answer['error'].get('desc')}")
    return answer["return"]
