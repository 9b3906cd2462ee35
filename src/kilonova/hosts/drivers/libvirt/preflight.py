"""What a machine lacks for real guests, one line each with how to get it."""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import ssl
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import peers, programs
from kilonova.hosts.drivers.libvirt.driver import instances
from kilonova.hosts.drivers.libvirt.machine import why_no_kvm

if TYPE_CHECKING:
    from kilonova.config import Config

_NETWORKS = {"ip": "iproute2", "nft": "nftables", "dnsmasq": "dnsmasq-base"}
# Interfaces have 15 characters at most, of which ids need enough to be told apart.
_PREFIX = re.compile(r"[a-z][a-z0-9]{1,5}")
_CONFIG_DRIVES = ("genisoimage", "mkisofs", "xorrisofs")
_QEMU_CONF = Path("/etc/libvirt/qemu.conf")


def missing(config: Config) -> list[str]:
    """Without these no guest runs."""
    found = [*_libvirt(config), *_kvm(config), *_tools({"qemu-img": "qemu-utils"}), *_room(config), *_tls(config)]
    if config.bridges.enabled:
        found += [*_networks(), *_names(config), *_closed(config)]
    return found


def notes(config: Config) -> list[str]:
    """Guests run without these, but less well."""
    found = []
    if not config.libvirt.virt_type and (reason := why_no_kvm()):
        found.append(f"{reason}: guests are emulated, which is slow; turn on virtualization in the firmware or nesting")
    if not any(programs.find(one) for one in _CONFIG_DRIVES):
        found.append("genisoimage is missing, so servers cannot have config drives: apt install genisoimage")
    if programs.find("qemu-storage-daemon") is None and not config.volume.url:
        found.append("qemu-storage-daemon is missing, so volumes cannot be attached: apt install qemu-system-common")
    if not config.bridges.enabled:
        found.append("bridges.enabled is off: servers can have no networks")
    return found


def first_image(config: Config) -> list[str]:
    """What becomes of the image that a cloud has at its first start."""
    from kilonova import tiny

    images = config.data_dir / "images"
    if images.is_dir() and any(images.iterdir()):
        return []
    if lacking := tiny.missing():
        packages = " ".join(lacking)
        return [f"the image tiny cannot be built: apt install {packages}, and then: kilonova image tiny --data DIR"]
    return ["the image tiny is being built, and there in a minute; if not, kilonova.log in the data directory says why"]


def _libvirt(config: Config) -> list[str]:
    try:
        import libvirt
    except ImportError:
        return [
            "libvirt-python is missing: apt install libvirt-dev pkg-config gcc python3-dev, "
            "then pip install 'kilonova[libvirt]'"
        ]
    from kilonova.hosts.drivers.libvirt.connection import start_events

    start_events()
    uri = config.libvirt.uri
    try:
        connection = libvirt.open(uri)
    except libvirt.libvirtError as error:
        return [_unanswered(uri, str(error.get_error_message() or error))]
    try:
        if "<domain type='qemu'" not in connection.getCapabilities():
            return ["libvirt knows no QEMU for x86_64: apt install qemu-system-x86"]
    finally:
        connection.close()
    return []


def _unanswered(uri: str, message: str) -> str:
    words = " ".join(message.split())
    if "ermission denied" in words or "authentication" in words:
        return f"{_user()} may not use libvirt at {uri} ({words}): run as root, or usermod -aG libvirt {_user()}"
    return (
        f"libvirt does not answer at {uri} ({words}): apt install libvirt-daemon-system qemu-system-x86, "
        "then systemctl start libvirtd"
    )


def _kvm(config: Config) -> list[str]:
    reason = why_no_kvm() if config.libvirt.virt_type == "kvm" else ""
    return (
        [f"libvirt.virt_type is kvm, but {reason}: leave it empty, or say qemu for emulated guests"] if reason else []
    )


def _tools(packages: dict[str, str]) -> list[str]:
    return [
        f"{tool} is missing: apt install {package}" for tool, package in packages.items() if not programs.find(tool)
    ]


def _networks() -> list[str]:
    found = [f"{line} (or bridges.enabled = false, for servers without networks)" for line in _tools(_NETWORKS)]
    if os.geteuid() != 0:
        found.append("networks of servers are made by root: run as root, or set bridges.enabled = false")
    return found


def _names(config: Config) -> list[str]:
    prefix = config.bridges.prefix
    if _PREFIX.fullmatch(prefix):
        return []
    return [
        f"bridges.prefix is {prefix!r}, but has to be 2 to 6 small letters and digits, a letter first: names of "
        "interfaces begin with it and have 15 characters at most"
    ]


def _closed(config: Config) -> list[str]:
    found = []
    for one in config.bridges.closed:
        try:
            ipaddress.ip_network(one)
        except ValueError as error:
            found.append(f"bridges.closed has {one!r}, which is no address or prefix: {error}")
    return found


def _room(config: Config) -> list[str]:
    """Guests' disks are opened by QEMU, which is often another user than we."""
    root = instances(config)
    there = next((path for path in (root, *root.parents) if path.exists()), Path("/"))
    if not os.access(there, os.W_OK | os.X_OK):
        return [f"{_user()} may not write to {there}, where guests would lie: set agent.instances to another place"]
    user = _qemu_user()
    if user is None or user.pw_uid in (0, os.geteuid()):
        return []
    own = (config.data_dir, root)
    for path in (there, *there.parents):
        # What is ours we open ourselves.
        if path not in own and not _may_enter(path, user):
            return [
                f"QEMU runs as {user.pw_name}, which cannot enter {path}: set agent.instances to another place, "
                f"such as /var/lib/kilonova/instances, or chmod o+x {path}"
            ]
    return []


def _tls(config: Config) -> list[str]:
    try:
        peers.tls(config.agent, ssl.Purpose.CLIENT_AUTH)
    except DriverError as error:
        return [error.message]
    return []


def _may_enter(path: Path, user: pwd.struct_passwd) -> bool:
    found = path.stat()
    if found.st_uid == user.pw_uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid in os.getgrouplist(user.pw_name, user.pw_gid):
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def _qemu_user() -> pwd.struct_passwd | None:
    """As libvirt's configuration says, or the one that distributions make; None if there is none."""
    names = ["libvirt-qemu", "qemu"]
    try:
        told = re.search(r'^\s*user\s*=\s*"\+?([^"]+)"', _QEMU_CONF.read_text(), re.MULTILINE)
    except OSError:
        told = None
    if told is not None:
        names.insert(0, told.group(1))
    for name in names:
        try:
            return pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
