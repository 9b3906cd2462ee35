"""Guest metadata in the formats of OpenStack and EC2.

`documents` returns all documents by path. The metadata service finds its responses in them with `find_document`. A
config drive contains the documents below `openstack/` and `ec2/`.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from kilonova.hosts.drivers.libvirt import disks
from kilonova.hosts.drivers.libvirt.layout import SWAP
from kilonova.hosts.messages import Guest, Nic, WiredNetwork, WiredSubnet

log = logging.getLogger(__name__)

# Versions of the OpenStack format with the files and the keys of meta_data.json that each one added.
_VERSIONS: dict[str, tuple[str, ...]] = {
    "2012-08-10": ("meta_data.json", "user_data"),
    "2013-04-04": ("random_seed",),
    "2013-10-17": ("vendor_data.json",),
    "2015-10-15": ("network_data.json", "project_id"),
    "2016-06-30": ("devices",),
    "2016-10-06": ("vendor_data2.json",),
    "2017-02-22": (),
    "2018-08-27": (),
    "2020-10-14": ("dedicated_cpus",),
    "latest": (),
}
OPENSTACK_VERSIONS = tuple(_VERSIONS)
EC2_VERSIONS = (
    "1.0",
    "2007-01-19",
    "2007-03-01",
    "2007-08-29",
    "2007-10-10",
    "2007-12-15",
    "2008-02-01",
    "2008-09-01",
    "2009-04-04",
    "latest",
)
_CONFIG_DRIVE_EC2_VERSIONS = ("2009-04-04", "latest")
_VERSIONED_KEYS = frozenset({"random_seed", "project_id", "devices", "dedicated_cpus"})
_SEED_BYTES = 512

OPENSTACK, EC2 = "openstack", "ec2"
_META, _USER = "meta-data", "user-data"

Documents = dict[str, bytes]


def documents(
    guest: Guest,
    networks: Sequence[WiredNetwork],
    *,
    vendor: Mapping[str, Any] | None = None,
    password: str = "",
    addresses: Mapping[str, str] | None = None,
) -> Documents:
    """`vendor`: the result of `vendor_data`. `password`: the admin password of a rescue. `addresses`: known bus
    addresses of devices, by port id, volume id or file name."""
    return {
        **_openstack(guest, networks, vendor or {}, password, addresses or {}),
        **_ec2(guest, networks),
    }


def find_document(found: Mapping[str, bytes], path: str) -> bytes | None:
    """The metadata service's response: a document, or the list of names below the path; None if there is neither."""
    key = "/".join(part for part in path.split("/") if part)
    if key in found and not key.startswith(f"{EC2}/"):
        return found[key]
    if not key:
        return "\n".join(EC2_VERSIONS).encode()
    if key == EC2 or key.startswith(f"{EC2}/"):
        return None
    if key == OPENSTACK:
        return "\n".join(OPENSTACK_VERSIONS).encode()
    below = {_child(key, other) for other in found if other.startswith(f"{key}/")}
    # A name that is both a document and a directory is listed as the directory.
    listed = sorted(name for name in below if f"{name}/" not in below)
    return "\n".join(listed).encode() if listed else None


def vendor_data(path: str) -> dict[str, Any]:
    """Read the operator's vendor data, a JSON file. An unreadable file is logged and does not prevent booting."""
    if not path:
        return {}
    try:
        found = orjson.loads(Path(path).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        log.error("vendor data cannot be read from %s: %s", path, error)
        return {}
    if not isinstance(found, dict):
        log.error("vendor data in %s is not a JSON object", path)
        return {}
    return found


def _child(path: str, other: str) -> str:
    """The name below the path that leads to the other path; with a slash if it is a directory."""
    name, slash, _ = other[len(path) + 1 :].partition("/")
    return name + slash


# OpenStack's format


def _openstack(
    guest: Guest,
    networks: Sequence[WiredNetwork],
    vendor: Mapping[str, Any],
    password: str,
    addresses: Mapping[str, str],
) -> Documents:
    meta = _meta_data(guest, password, addresses)
    files = {
        "user_data": guest.user_data,
        "vendor_data.json": orjson.dumps(vendor),
        "vendor_data2.json": orjson.dumps({"static": vendor}),
        "network_data.json": orjson.dumps(network_data(guest, networks)),
    }
    found, known = {}, set[str]()
    for version, added in _VERSIONS.items():
        known.update(added)
        keys = {key: value for key, value in meta.items() if key not in _VERSIONED_KEYS or key in known}
        found[f"{OPENSTACK}/{version}/meta_data.json"] = orjson.dumps(keys)
        for name, content in files.items():
            if name in known and content is not None:
                found[f"{OPENSTACK}/{version}/{name}"] = content
    return found | {f"{OPENSTACK}{_content_path(number)}": file.content for number, file in enumerate(guest.files)}


def _content_path(number: int) -> str:
    """Where the content of a file is, below `openstack/`."""
    return f"/content/{number:04}"


def _meta_data(guest: Guest, password: str, addresses: Mapping[str, str]) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "uuid": guest.id,
        "name": guest.name,
        "hostname": _hostname(guest),
        "launch_index": guest.launch_index,
        "availability_zone": guest.availability_zone,
        "project_id": guest.project_id,
        "random_seed": base64.b64encode(os.urandom(_SEED_BYTES)).decode(),
        "devices": _devices(guest, addresses),
        "dedicated_cpus": [],
    }
    if guest.metadata:
        meta["meta"] = guest.metadata
    if guest.files:
        meta["files"] = [
            {"path": file.path, "content_path": _content_path(number)} for number, file in enumerate(guest.files)
        ]
    if guest.key is not None:
        meta["public_keys"] = {guest.key.name: guest.key.public_key}
        meta["keys"] = [{"name": guest.key.name, "type": guest.key.type, "data": guest.key.public_key}]
    if password:
        meta["admin_pass"] = password
    return meta


def _hostname(guest: Guest) -> str:
    return guest.hostname or guest.name


def _devices(guest: Guest, addresses: Mapping[str, str]) -> list[dict[str, Any]]:
    """The tagged devices."""
    found: list[dict[str, Any]] = []
    for nic in guest.nics:
        if nic.tag:
            found.append(
                {"type": "nic", "mac": nic.mac, "tags": [nic.tag], **_bus_and_address(addresses.get(nic.port_id))}
            )
    for disk in guest.disks:
        if disk.tag:
            location = _bus_and_address(addresses.get(disk.volume_id), disk.bus)
            found.append(
                {"type": "disk", "serial": disk.volume_id, "path": disk.device, "tags": [disk.tag], **location}
            )
    for file in disks.disk_files(guest):
        if file.tag:
            location = _bus_and_address(addresses.get(file.name), file.bus)
            found.append({"type": "disk", "path": f"/dev/{file.target}", "tags": [file.tag], **location})
    return found


def _bus_and_address(address: str | None, bus: str = "virtio") -> dict[str, str]:
    """The guest sees virtio devices on the PCI bus."""
    found = {"bus": "pci" if bus in ("", "virtio") else bus}
    return {**found, "address": address} if address else found


def network_data(guest: Guest, networks: Sequence[WiredNetwork]) -> dict[str, Any]:
    """network_data.json: links are the guest's interfaces, networks their addresses, services the DNS servers."""
    by_id = {network.id: network for network in networks}
    links: list[dict[str, Any]] = []
    configured: list[dict[str, Any]] = []
    servers: list[str] = []
    for nic in guest.nics:
        network = by_id.get(nic.network_id)
        link = f"tap{nic.port_id[:11]}"
        mtu = (network.mtu or None) if network else None
        links.append({"id": link, "vif_id": nic.port_id, "type": "bridge", "mtu": mtu, "ethernet_mac_address": nic.mac})
        for address, subnet in _addresses(nic, network):
            number = len(configured)
            configured.append(_configuration(f"network{number}", link, nic.network_id, address, subnet))
            servers += subnet.dns
    services = [{"type": "dns", "address": server} for server in dict.fromkeys(servers)]
    return {"links": links, "networks": configured, "services": services}


def _addresses(nic: Nic, network: WiredNetwork | None) -> Iterable[tuple[str, WiredSubnet]]:
    """The port's addresses with their subnets, from the network plan, which may be newer than the guest's spec."""
    if network is None:
        return
    port = next((port for port in network.ports if port.id == nic.port_id), None)
    for address in port.addresses if port else nic.addresses:
        for subnet in network.subnets:
            if ipaddress.ip_address(address) in ipaddress.ip_network(subnet.cidr, strict=False):
                yield address, subnet


def _configuration(name: str, link: str, network_id: str, address: str, subnet: WiredSubnet) -> dict[str, Any]:
    """DHCP if the subnet has DHCP for IPv4, else a static configuration."""
    cidr = ipaddress.ip_network(subnet.cidr, strict=False)
    common = {"id": name, "link": link, "network_id": network_id}
    if cidr.version == 4 and subnet.dhcp:
        return {**common, "type": "ipv4_dhcp"}
    routes = list(subnet.routes)
    if subnet.gateway:
        routes.insert(0, ("0.0.0.0/0" if cidr.version == 4 else "::/0", subnet.gateway))
    return {
        **common,
        "type": f"ipv{cidr.version}",
        "ip_address": address,
        "netmask": str(cidr.netmask),
        "routes": [_route(*route) for route in routes],
        "services": [{"type": "dns", "address": server} for server in subnet.dns],
    }


def _route(destination: str, gateway: str) -> dict[str, str]:
    network = ipaddress.ip_network(destination, strict=False)
    return {"network": str(network.network_address), "netmask": str(network.netmask), "gateway": gateway}


# EC2's format


def _ec2(guest: Guest, networks: Sequence[WiredNetwork]) -> Documents:
    tree = _ec2_tree(guest, networks)
    found = {}
    for version in EC2_VERSIONS:
        for path, value in _leaves(tree):
            found[f"{version}/{_META}/{path}"] = value.encode()
        if guest.key is not None:
            # Unlike other lists this one contains more than names.
            found[f"{version}/{_META}/public-keys"] = f"0={guest.key.name}".encode()
        if guest.user_data is not None:
            found[f"{version}/{_USER}"] = guest.user_data
    for version in _CONFIG_DRIVE_EC2_VERSIONS:
        found[f"{EC2}/{version}/{_META}.json"] = orjson.dumps(tree)
        if guest.user_data is not None:
            found[f"{EC2}/{version}/{_USER}"] = guest.user_data
    return found


def _ec2_tree(guest: Guest, networks: Sequence[WiredNetwork]) -> dict[str, Any]:
    fixed = [address for nic in guest.nics for address in nic.addresses if ":" not in address]
    floating = [public for network in networks for public, private in network.floating if private in fixed]
    name = _hostname(guest)
    tree: dict[str, Any] = {
        "ami-id": _ec2_id("ami", guest.image.id) if guest.image else "",
        "ami-launch-index": str(guest.launch_index),
        "ami-manifest-path": "",
        "block-device-mapping": _block_device_mapping(guest),
        "hostname": name,
        "instance-action": "none",
        "instance-id": _ec2_id("i", guest.id),
        "instance-type": guest.flavor.name,
        "local-hostname": name,
        "local-ipv4": fixed[0] if fixed else "",
        "placement": {"availability-zone": guest.availability_zone},
        "public-hostname": name,
        "public-ipv4": floating[0] if floating else "",
        "reservation-id": guest.reservation_id,
    }
    if guest.key is not None:
        tree["public-keys"] = {"0": {"openssh-key": guest.key.public_key}}
    return tree


def _block_device_mapping(guest: Guest) -> dict[str, str]:
    """EC2's names for the disks, with the expected device name of each."""
    found: dict[str, str] = {}
    numbers = {"ephemeral": 0, "ebs": 0}

    def numbered(kind: str) -> str:
        numbers[kind] += 1
        return f"{kind}{numbers[kind] - 1}"

    for file in disks.disk_files(guest):
        if file.boot:
            found |= {"ami": file.target, "root": f"/dev/{file.target}"}
        elif file.name == SWAP:
            found["swap"] = f"/dev/{file.target}"
        elif file.device == "disk":
            found[numbered("ephemeral")] = f"/dev/{file.target}"
    for disk in guest.disks:
        if not disk.device:
            continue
        if guest.image is None and disk.boot_index == 0:
            found |= {"ami": disk.device.removeprefix("/dev/"), "root": disk.device}
        found[numbered("ebs")] = disk.device
    return found


def _leaves(tree: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            for path, leaf in _leaves(value):
                yield f"{name}/{path}", leaf
        else:
            yield name, value


def _ec2_id(kind: str, identity: str) -> str:
    """EC2 ids have 8 digits: the first 8 of the UUID, so that operators can find the UUID."""
    digits = "".join(letter for letter in identity.lower() if letter in "0123456789abcdef")
    return f"{kind}-{digits[:8].rjust(8, '0')}"
