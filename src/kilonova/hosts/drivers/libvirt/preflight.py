"""Checks whether this machine can run guests. Each finding says how to fix it."""

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
from kilonova.hosts.drivers.libvirt import disk_transfer, plug, programs, shares, volume_connections
from kilonova.hosts.drivers.libvirt.driver import instances_directory
from kilonova.hosts.drivers.libvirt.hardware import kvm_problem

if TYPE_CHECKING:
    from kilonova.config import Config

_NETWORK_TOOLS = {"ip": "iproute2", "nft": "nftables", "dnsmasq": "dnsmasq-base"}
# Interface names have at most 15 characters, and ids need most of them.
_PREFIX = re.compile(r"[a-z][a-z0-9]{1,5}")
_ISO_TOOLS = ("genisoimage", "mkisofs", "xorrisofs")
_QEMU_CONF = Path("/etc/libvirt/qemu.conf")


def missing(config: Config) -> list[str]:
    """Problems that prevent guests from running."""
    found = [*_libvirt(config), *_kvm(config), *_tools({"qemu-img": "qemu-utils"}), *_instances(config), *_tls(config)]
    if config.builds_networks:
        found += [*_networks(), *_interface_prefix(config), *_closed_prefixes(config)]
    elif not config.is_built_in("network"):
        found += _ports()
    return found


def notes(config: Config) -> list[str]:
    """Problems that limit guests but do not prevent them from running."""
    found = []
    if not config.libvirt.virt_type and (reason := kvm_problem()):
        found.append(f"{reason}: guests are emulated, which is slow; turn on virtualization in the firmware or nesting")
    if not any(map(programs.find, _ISO_TOOLS)):
        found.append("genisoimage is missing, so servers cannot have config drives: apt install genisoimage")
    if programs.find("qemu-storage-daemon") is None and config.is_built_in("volume"):
        found.append("qemu-storage-daemon is missing, so volumes cannot be attached: apt install qemu-system-common")
    if not config.is_built_in("volume") and not volume_connections.is_installed():
        found.append(
            "os-brick is missing, so guests can have only volumes of the types rbd and local:"
            " pip install 'kilonova[libvirt]'"
        )
    if shares.daemon() is None:
        found.append(
            "virtiofsd is missing, so shares cannot be attached: apt install virtiofsd (Debian 12: qemu-system-common)"
        )
    if not config.bridges.enabled and config.is_built_in("network"):
        problem = "".join(f" ({line})" for line in _ports()[:1])
        found.append(f"bridges.enabled is off: servers can have no networks but those of a real Neutron{problem}")
    return found


def first_image(config: Config) -> list[str]:
    """The state of the image that a new cloud gets at its first start."""
    from kilonova import tiny

    images = config.data_dir / "images"
    if images.is_dir() and any(images.iterdir()):
        return []
    if lacking := tiny.missing_packages():
        packages = " ".join(lacking)
        return [f"the image tiny cannot be built: apt install {packages}, and then: kilonova image tiny --data DIR"]
    return ["the image tiny is being built and ready in a minute; errors are in kilonova.log in the data directory"]


def _libvirt(config: Config) -> list[str]:
    try:
        import libvirt
    except ImportError:
        return [
            "libvirt-python is missing: apt install libvirt-dev pkg-config gcc python3-dev, "
            "then pip install 'kilonova[libvirt]'"
        ]
    from kilonova.hosts.drivers.libvirt.connection import start_event_loop

    start_event_loop()
    uri = config.libvirt.uri
    try:
        connection = libvirt.open(uri)
    except libvirt.libvirtError as error:
        return [_connection_problem(uri, str(error.get_error_message() or error))]
    try:
        if "<domain type='qemu'" not in connection.getCapabilities():
            return ["libvirt finds no QEMU for x86_64: apt install qemu-system-x86"]
    finally:
        connection.close()
    return []


def _connection_problem(uri: str, message: str) -> str:
    words = " ".join(message.split())
    if "ermission denied" in words or "authentication" in words:
        return f"{_user()} may not use libvirt at {uri} ({words}): run as root, or usermod -aG libvirt {_user()}"
    return (
        f"libvirt does not respond at {uri} ({words}): apt install libvirt-daemon-system qemu-system-x86, "
        "then systemctl start libvirtd"
    )


def _kvm(config: Config) -> list[str]:
    reason = kvm_problem() if config.libvirt.virt_type == "kvm" else ""
    return (
        [f"libvirt.virt_type is kvm, but {reason}: leave it empty, or set it to qemu for emulation"] if reason else []
    )


def _tools(packages: dict[str, str]) -> list[str]:
    return [
        f"{tool} is missing: apt install {package}" for tool, package in packages.items() if not programs.find(tool)
    ]


def _networks() -> list[str]:
    found = [f"{line} (or bridges.enabled = false, for servers without networks)" for line in _tools(_NETWORK_TOOLS)]
    if os.geteuid() != 0:
        found.append("networks for servers require root: run as root, or set bridges.enabled = false")
    return found


def _ports() -> list[str]:
    """What ports of a real Neutron lack. Which switch they need is known when a port is bound to this host."""
    found = [problem for problem in (plug.os_vif_problem(),) if problem]
    if os.geteuid() != 0:
        found.append("ports of Neutron require root: run as root")
    return found


def _interface_prefix(config: Config) -> list[str]:
    prefix = config.bridges.prefix
    if _PREFIX.fullmatch(prefix):
        return []
    return [
        f"bridges.prefix is {prefix!r}, but must be 2 to 6 lower-case letters and digits, starting with a letter: "
        "interface names start with it and have at most 15 characters"
    ]


def _closed_prefixes(config: Config) -> list[str]:
    found = []
    for prefix in config.bridges.blocked_addresses:
        try:
            ipaddress.ip_network(prefix)
        except ValueError as error:
            found.append(f"bridges.blocked_addresses has {prefix!r}, which is not an address or prefix: {error}")
    return found


def _instances(config: Config) -> list[str]:
    """Check that this process can write to the instances directory, and that QEMU's user can enter it."""
    root = instances_directory(config)
    existing = next((path for path in (root, *root.parents) if path.exists()), Path("/"))
    if not os.access(existing, os.W_OK | os.X_OK):
        return [
            f"{_user()} may not write to {existing}, the place of guests' files: set agent.instances_path to another"
        ]
    user = _qemu_user()
    if user is None or user.pw_uid in (0, os.geteuid()):
        return []
    own = (config.data_dir, root)
    for path in (existing, *existing.parents):
        # The driver sets the mode of its own directories.
        if path not in own and not _may_enter(path, user):
            return [
                f"QEMU runs as {user.pw_name}, which cannot enter {path}: set agent.instances_path to another path, "
                f"such as /var/lib/kilonova/instances, or chmod o+x {path}"
            ]
    return []


def _tls(config: Config) -> list[str]:
    try:
        disk_transfer.tls_context(config.agent, ssl.Purpose.CLIENT_AUTH)
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
    """The user in libvirt's configuration, or the distribution's default; None if there is neither."""
    names = ["libvirt-qemu", "qemu"]
    try:
        configured = re.search(r'^\s*user\s*=\s*"\+?([^"]+)"', _QEMU_CONF.read_text(), re.MULTILINE)
    except OSError:
        configured = None
    if configured is not None:
        names.insert(0, configured.group(1))
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
