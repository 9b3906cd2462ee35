"""Makes the NBD clients of running guests reconnect, so that guests survive a restart of the volume service.

Old releases of libvirt cannot configure this. Therefore an NBD client with a reconnect delay replaces libvirt's client
below the disk, through QEMU's monitor. libvirt's client stays, unused, until libvirt detaches the disk. A grown volume
also needs a new client: NBD transmits the size only when a client connects.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import orjson

from kilonova.hosts.drivers.base import DriverError

if TYPE_CHECKING:
    import libvirt

# After this time without the volume service the guest gets I/O errors.
RECONNECT_SECONDS = 300
_CLIENT_NODE = re.compile(r"kn-(\d+)-(\d+)")


def ensure_reconnect(domain: libvirt.virDomain) -> None:
    """Give every NBD disk of the running domain a client that reconnects.

    A domain in migration is left alone: the source host still uses its disks.
    """
    if not domain.isActive() or _is_moving(domain):
        return
    disks = [disk for disk in _disks(domain) if disk.find("source/reconnect") is None]
    if not disks:
        return
    known = _nodes(domain)
    for disk in disks:
        if not _client_nodes(known, _disk_index(disk)):
            _replace_client(domain, disk, known)


def replace_client(domain: libvirt.virDomain, disk: ET.Element) -> None:
    """Connect a new NBD client and put it below the disk."""
    _replace_client(domain, disk, _nodes(domain))


def remove_unused_clients(domain: libvirt.virDomain) -> None:
    """Remove the clients of detached disks."""
    if not domain.isActive():
        return
    known = _nodes(domain)
    attached = {_disk_index(disk) for disk in _disks(domain)}
    for name in known:
        if (match := _CLIENT_NODE.fullmatch(name)) and match[1] not in attached:
            _delete_node(domain, name)


def _replace_client(domain: libvirt.virDomain, disk: ET.Element, known: dict[str, Any]) -> None:
    index, source = _disk_index(disk), disk.find("source")
    upper = known.get(f"libvirt-{index}-format")
    if upper is None or source is None or source.find("host") is None:
        raise DriverError(f"QEMU has no node libvirt-{index}-format for the NBD disk", passing=True)
    replaced = _client_nodes(known, index)
    number = max((int(_CLIENT_NODE.fullmatch(node)[2]) for node in replaced), default=0) + 1  # type: ignore[index]
    name = f"kn-{index}-{number}"
    options = {
        "read-only": upper["ro"],
        "discard": "unmap",
        "cache": {"direct": upper["cache"]["direct"], "no-flush": upper["cache"]["no-flush"]},
    }
    host = source.find("host")
    assert host is not None
    monitor_command(
        domain,
        "blockdev-add",
        {
            "driver": "nbd",
            "node-name": name,
            "server": {"type": "inet", "host": host.get("name"), "port": host.get("port")},
            "export": source.get("name"),
            "reconnect-delay": RECONNECT_SECONDS,
            **_tls(domain, source, index),
            **options,
        },
    )
    try:
        new_upper = {"driver": upper["drv"], "node-name": upper["node-name"], "file": name, **options}
        monitor_command(domain, "blockdev-reopen", {"options": [new_upper]})
    except DriverError:
        _delete_node(domain, name)
        raise
    for node in replaced:
        _delete_node(domain, node)


def _tls(domain: libvirt.virDomain, source: ET.Element, index: str) -> dict[str, str]:
    """The TLS credentials of libvirt's client. QEMU keeps them as long as a client uses them."""
    if source.get("tls") != "yes":
        return {}
    objects = [str(item["name"]) for item in monitor_command(domain, "qom-list", {"path": "/objects"})]
    found = next((name for name in objects if f"libvirt-{index}-storage" in name and "tls" in name), None)
    if found is None:
        raise DriverError(f"QEMU has no TLS credentials for node libvirt-{index}-storage", passing=True)
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
    """The NBD disks of the running domain."""
    found = ET.fromstring(domain.XMLDesc(0)).findall("devices/disk")
    return [disk for disk in found if disk.find("source[@protocol='nbd'][@index]") is not None]


def _disk_index(disk: ET.Element) -> str:
    """The number in libvirt's names for the disk's QEMU nodes. libvirt uses every number once."""
    source = disk.find("source")
    return str(source.get("index")) if source is not None else ""


def _nodes(domain: libvirt.virDomain) -> dict[str, Any]:
    return {node["node-name"]: node for node in monitor_command(domain, "query-named-block-nodes", {"flat": True})}


def _client_nodes(known: dict[str, Any], index: str) -> list[str]:
    return [name for name in known if (match := _CLIENT_NODE.fullmatch(name)) and match[1] == index]


def _delete_node(domain: libvirt.virDomain, name: str) -> None:
    try:
        monitor_command(domain, "blockdev-del", {"node-name": name})
    except DriverError:
        pass  # still in use or already deleted: the next cleanup finds it


def monitor_command(domain: libvirt.virDomain, name: str, arguments: dict[str, Any] | None = None) -> Any:
    """Run a QMP command. Raises DriverError with QEMU's message, or libvirtError."""
    import libvirt_qemu

    request = {"execute": name, "arguments": arguments or {}}
    response = orjson.loads(libvirt_qemu.qemuMonitorCommand(domain, orjson.dumps(request).decode(), 0))
    if "error" in response:
        raise DriverError(f"QEMU refused {name}: {response['error'].get('desc')}")
    return response["return"]
