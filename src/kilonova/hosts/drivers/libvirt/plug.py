"""Plugs ports of a real Neutron into the networks of this host, and unplugs them.

os-vif does so for Open vSwitch. libvirt makes the taps, also where Neutron offers that os-vif does (`ovs_create_tap`),
so that they end with their guests.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import programs, vif
from kilonova.hosts.drivers.libvirt.vif import Vif

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor
    from kilonova.hosts.messages import Guest, Nic

log = logging.getLogger(__name__)

_OVS_PLUGIN = "ovs"
_OVS_TIMEOUT_SECONDS = 10
# os-vif and its settings belong to the process.
_initialization_lock = threading.Lock()


async def plug(hv: Hypervisor, guest: Guest, nics: Iterable[Nic]) -> None:
    """Plug ports that the guest does not use yet. Raises DriverError."""
    for found in [vif.read(nic) for nic in nics if nic.vif_type]:
        if found.switch:
            if found.kind == "ovs hybrid":
                # os-vif takes the devices of an interrupted attempt for a plugged port.
                await hv.connection.run(_call, "unplug", hv.config.libvirt.ovsdb_connection, found, guest)
            await hv.connection.run(_call, "plug", hv.config.libvirt.ovsdb_connection, found, guest)
        elif found.bridge:
            await _make_bridge(found.bridge)


async def unplug(hv: Hypervisor, guest: Guest, nics: Iterable[Nic]) -> None:
    """Unplug ports that the guest does not use any more. Raises DriverError.

    A bridge of a network stays, because other ports may use it. Without os-vif this host has plugged no ports, or must
    leave them as they are: a guest can be destroyed nevertheless.
    """
    for nic in nics:
        found = _try_read(nic) if nic.vif_type else None
        if found is None or not found.switch:
            continue
        if problem := os_vif_problem():
            log.warning("port %s is not unplugged: %s", found.port_id, problem)
        else:
            await hv.connection.run(_call, "unplug", hv.config.libvirt.ovsdb_connection, found, guest)


def os_vif_problem() -> str:
    """Why this host cannot use os-vif; empty if it can."""
    try:
        import os_vif  # noqa: F401
    except ImportError as error:
        return f"os-vif is missing ({error}): pip install 'kilonova[libvirt]'"
    return ""


def _try_read(nic: Nic) -> Vif | None:
    """None if the binding is invalid: such a port was never plugged."""
    try:
        return vif.read(nic)
    except DriverError:
        return None


async def _make_bridge(name: str) -> None:
    if not _exists(name):
        with contextlib.suppress(DriverError):  # another port's plug may have made it just now
            await programs.run("ip", "link", "add", name, "type", "bridge")
    await programs.run("ip", "link", "set", name, "up")


def _exists(interface: str) -> bool:
    try:
        socket.if_nametoindex(interface)
    except OSError:
        return False
    return True


# In threads


def _call(name: str, ovsdb: str, found: Vif, guest: Guest) -> None:
    """Call the function `name` of os-vif."""
    problem = os_vif_problem()
    if problem:
        raise DriverError(f"port {found.port_id} cannot be connected to Open vSwitch: {problem}")
    import os_vif
    from os_vif import exception, objects

    _initialize(ovsdb)
    instance = objects.instance_info.InstanceInfo(uuid=guest.id, name=guest.name, project_id=guest.project_id)
    try:
        getattr(os_vif, name)(_describe(found), instance)
    except exception.ExceptionBase as error:
        reason = error.__context__ or error
        # Open vSwitch may be restarting. A later call finds what this one has done.
        raise DriverError(f"os-vif cannot {name} port {found.port_id}: {reason}", passing=True) from error


def _initialize(ovsdb: str) -> None:
    """Load os-vif's plugins, unless they are loaded."""
    import os_vif
    from oslo_config import cfg
    from vif_plug_ovs import ovs, privsep

    group = f"os_vif_{_OVS_PLUGIN}"
    with _initialization_lock:
        # The plugin reads its settings when it is loaded.
        cfg.CONF.register_opts(ovs.OvsPlugin.CONFIG_OPTS, group=group)
        cfg.CONF.set_override("ovsdb_connection", ovsdb, group=group)
        cfg.CONF.set_override("ovs_vsctl_timeout", _OVS_TIMEOUT_SECONDS, group=group)
        if os.geteuid() == 0:
            # Otherwise os-vif starts a helper by sudo.
            privsep.vif_plug.set_client_mode(False)
        os_vif.initialize()


def _describe(found: Vif) -> Any:
    """os-vif's object for the port."""
    from os_vif.objects import network, vif

    profile = vif.VIFPortProfileOpenVSwitch(interface_id=found.port_id)
    if found.datapath:
        profile.datapath_type = found.datapath
    fields: dict[str, Any] = {
        "id": found.port_id,
        "address": found.mac,
        "plugin": _OVS_PLUGIN,
        "vif_name": found.tap,
        "bridge_name": found.bridge,
        "port_profile": profile,
        # The bridge of a network is that of Open vSwitch, also behind a bridge of the port's own.
        "network": network.Network(id=found.network_id or found.port_id, bridge=found.switch, mtu=found.mtu or None),
    }
    return vif.VIFBridge(**fields) if found.kind == "ovs hybrid" else vif.VIFOpenVSwitch(**fields)
