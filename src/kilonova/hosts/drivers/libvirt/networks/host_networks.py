"""Applies the control plane's network plan to this host, and repairs missing parts.

The kernel's state is read before it is changed, so that a restarted agent continues with the existing networks. The
plan is stored on disk, so that the agent has networks before the control plane sends a plan.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import metadata
from kilonova.hosts.drivers.libvirt.networks import bridges, conntrack, firewall, namespaces, validation
from kilonova.hosts.drivers.libvirt.networks.bridges import Bridges, Links
from kilonova.hosts.drivers.libvirt.networks.commands import run
from kilonova.hosts.drivers.libvirt.networks.dhcp import Dhcp
from kilonova.hosts.drivers.libvirt.networks.external_gateway import ExternalGateway
from kilonova.hosts.drivers.libvirt.networks.metadata_service import MetadataService
from kilonova.hosts.drivers.libvirt.networks.names import Names
from kilonova.hosts.messages import Guest, NetworkPlan, WiredNetwork, WiredPort

if TYPE_CHECKING:
    from kilonova.config import Config

log = logging.getLogger(__name__)

# How often the whole plan is checked against the kernel, including unchanged networks.
_FULL_CHECK_SECONDS = 20.0
_POLL_SECONDS = 2.0
_PLAN_FILE = "plan"


class HostNetworks:
    """`guests`: returns the spec of a guest, None if it is not on this host."""

    def __init__(self, config: Config, host: str, directory: Path, guests: Callable[[str], Guest | None]) -> None:
        settings = config.bridges
        self._config = config
        self._host = host
        self._directory = directory
        self._guests = guests
        # Returns the bus addresses of a guest's devices.
        self.addresses: Callable[[str], dict[str, str]] = lambda _: {}
        # Stores the encrypted password of a guest unless it has one. Returns whether it was stored.
        self.store_password: Callable[[Guest, str], bool] | None = None
        self._names = Names(settings.prefix)
        self._bridges = Bridges(self._names, config.agent.address, settings.vxlan_port)
        self._dhcp = Dhcp(self._names, directory)
        self._gateway = ExternalGateway(
            self._names,
            directory,
            settings.external_interface,
            nat=settings.nat,
            blocked_addresses=settings.blocked_addresses,
        )
        self._metadata = MetadataService(self._document, self._store_password)
        self._bridge_conntrack: bool | None = None
        self._rules = ""
        self._made: dict[str, tuple[WiredNetwork, str]] = {}
        # Why the plan is not fully applied; empty if it is.
        self._error = ""
        self._checked_at = -_FULL_CHECK_SECONDS
        self._max_overlay_mtu = 0
        self._plan = NetworkPlan(read_at=0.0)
        self._ports: dict[str, tuple[WiredNetwork, WiredPort]] = {}
        self._applied = asyncio.Condition()
        self._lock = asyncio.Lock()
        self._documents: dict[str, tuple[float, dict[str, bytes]]] = {}

    # For the rest of the driver

    def bridge_of(self, network_id: str) -> str:
        return self._names.bridge(network_id)

    def tap_of(self, port_id: str) -> str:
        return self._names.tap(port_id)

    def mtu_of(self, network_id: str) -> int:
        found = next((network for network in self._plan.networks if network.id == network_id), None)
        if found is None:
            raise DriverError(f"{self._host} does not have network {network_id}", passing=True)
        return self._mtu(found)

    async def wait_for_ports(self, port_ids: Sequence[str], seconds: float) -> list[WiredNetwork]:
        """Wait until the host has the networks of these ports, and return them."""
        try:
            async with asyncio.timeout(seconds), self._applied:
                await self._applied.wait_for(lambda: all(port_id in self._ports for port_id in port_ids))
        except TimeoutError:
            missing = ", ".join(port_id for port_id in port_ids if port_id not in self._ports)
            reason = f": {self._error}" if self._error else ""
            raise DriverError(
                f"{self._host} has no network for port {missing} within {seconds:g} s{reason}", passing=True
            ) from None
        found = {self._ports[port_id][0].id: self._ports[port_id][0] for port_id in port_ids}
        return [msgspec.structs.replace(network, mtu=self._mtu(network)) for network in found.values()]

    async def run(self) -> None:
        """Repair the networks until cancelled. Starts with the stored plan until a newer one arrives."""
        stored = self._read_plan()
        while True:
            try:
                if stored is not None:
                    plan, stored = stored, None
                    await self.apply(plan)
                elif self._plan.networks and (self._error or self._is_overdue() or self._has_subports(self._plan)):
                    await self.apply(self._plan)
            except DriverError as error:
                log.warning("the network plan is not fully applied: %s", error.message)
            await asyncio.sleep(_POLL_SECONDS)

    async def close(self) -> None:
        """Stop the metadata service. Guests and their networks continue."""
        await self._metadata.close()

    # Applying a plan

    async def apply(self, plan: NetworkPlan) -> None:
        """Apply the plan as far as possible. Raises DriverError if a part of it failed."""
        validation.validate(plan)
        # The caller may give up waiting, but the plan must be applied completely.
        work = asyncio.create_task(self._apply(plan))
        work.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        await asyncio.shield(work)

    async def _apply(self, plan: NetworkPlan) -> None:
        async with self._lock:
            if plan.read_at < self._plan.read_at:
                return
            try:
                errors = await self._make(plan)
            except DriverError as error:
                self._error = error.message
                raise
            self._error = errors[0][1].message if errors else ""
            await self._delete_forbidden_connections(plan)
            failed = {network_id for network_id, _ in errors}
            self._plan = plan
            self._ports = {
                port.id: (network, port)
                for network in plan.networks
                if network.id not in failed
                for port in network.ports
            }
            self._documents.clear()
            self._write_plan(plan)
        async with self._applied:
            self._applied.notify_all()
        if errors:
            raise errors[0][1]

    async def _make(self, plan: NetworkPlan) -> list[tuple[str, DriverError]]:
        """Apply the plan. Returns the errors with the id of the network that failed."""
        links, present = await bridges.list_links(), namespaces.list_namespaces()
        overdue = self._is_overdue()
        if overdue:
            self._max_overlay_mtu = await bridges.max_overlay_mtu(self._config.agent.address)
        interface = await self._gateway.interface() if any(map(self._gateway.is_wanted, plan.networks)) else ""
        await self._apply_rules(plan, interface, overdue)
        errors: list[tuple[str, DriverError]] = []
        changed = [
            network for network in plan.networks if overdue or not self._is_made(network, links, present, interface)
        ]
        for network in changed:
            self._made.pop(network.id, None)
            try:
                await self._ensure_network(network, links, interface)
            except DriverError as error:
                errors.append((network.id, error))
            else:
                self._made[network.id] = (network, interface)
        try:
            await self._join(plan, changed)
            await self._gateway.proxy_floating_ips(plan, interface)
            await self._remove({network.id for network in plan.networks}, links, present)
            await self._remove_subports(plan, links)
        except DriverError as error:
            errors.append(("", error))
        if overdue and not errors:
            self._checked_at = time.monotonic()
        return errors

    def _is_overdue(self) -> bool:
        return time.monotonic() - self._checked_at >= _FULL_CHECK_SECONDS

    def _is_made(self, network: WiredNetwork, links: Links, present: set[str], interface: str) -> bool:
        return (
            self._made.get(network.id) == (network, interface)
            and self._names.bridge(network.id) in links
            and self._names.gateway_veth(network.id) in links
            and self._names.namespace(network.id) in present
            and self._dhcp.is_served(network)
            and all(self._bridges.is_wired(port, links) for port in network.ports)
        )

    def _has_subports(self, plan: NetworkPlan) -> bool:
        """Subports are wired when the tap of their parent appears, which no plan announces."""
        return any(port.parent for network in plan.networks for port in network.ports)

    def _mtu(self, network: WiredNetwork) -> int:
        """At most the MTU that VXLAN leaves, so that packets to other hosts are not fragmented."""
        return (
            min(network.mtu, self._max_overlay_mtu)
            if network.vni is not None and self._max_overlay_mtu > 0
            else network.mtu
        )

    async def _apply_rules(self, plan: NetworkPlan, interface: str, overdue: bool) -> None:
        """Must precede everything else: new interfaces must find their firewall rules."""
        if self._bridge_conntrack is None:
            self._bridge_conntrack = await firewall.has_bridge_conntrack(self._names)
        rules = self._gateway.ruleset(plan, interface)
        if plan.networks:
            rules += firewall.build_ruleset(plan, self._names, bridge_conntrack=self._bridge_conntrack)
        else:
            rules += firewall.build_removal(self._names, bridge_conntrack=self._bridge_conntrack)
        if rules == self._rules and not (overdue and plan.networks and not await self._has_tables()):
            return
        self._rules = ""
        await run("nft", "-f", "-", given=rules)
        self._rules = rules

    async def _has_tables(self) -> bool:
        families = ("bridge",) if self._bridge_conntrack else ("bridge", "inet")
        tables = (await run("nft", "list", "tables")).splitlines()
        return all(f"table {family} {self._names.table}" in tables for family in families)

    async def _ensure_network(self, network: WiredNetwork, links: Links, interface: str) -> None:
        namespace, mtu = self._names.namespace(network.id), self._mtu(network)
        if await namespaces.ensure(namespace):
            await self._leave_old_namespace(network.id, links)
        await self._bridges.ensure(network, mtu, links, br_netfilter=not self._bridge_conntrack)
        await self._bridges.configure_addresses(network)
        await self._gateway.ensure(network, links, interface)
        await self._dhcp.ensure(network, mtu)
        try:
            await self._metadata.ensure(network.id, namespace)
        except OSError as error:
            raise DriverError(f"metadata service of network {network.id}: {error.strerror}", passing=True) from None

    async def _leave_old_namespace(self, network_id: str, links: Links) -> None:
        """Stop what still runs in a namespace that has lost its name."""
        await self._metadata.remove(network_id)
        await self._dhcp.stop(network_id)
        self._gateway.forget(network_id)
        for name in (self._names.gateway_veth(network_id), self._names.uplink(network_id)):
            if links.pop(name, None) is not None:
                await run("ip", "link", "del", name, check=False)

    async def _join(self, plan: NetworkPlan, changed: list[WiredNetwork]) -> None:
        present = {network.id for network in plan.networks}
        for network in plan.networks if changed else ():
            if network.routed or network in changed:
                await self._bridges.join(network, present)

    async def _remove(self, network_ids: set[str], links: Links, present: set[str]) -> None:
        """Remove networks that are not in the plan. libvirt removes the taps with their guests."""
        for namespace in sorted(present):
            network_id = self._names.network_of(namespace)
            if network_id is not None and network_id not in network_ids:
                await self._metadata.remove(network_id)
                await self._dhcp.remove(network_id)
                await namespaces.remove(namespace)
                self._made.pop(network_id, None)
                self._gateway.forget(network_id)
        kinds = (self._names.bridge, self._names.vxlan, self._names.gateway_veth, self._names.uplink)
        wanted = {kind(network_id) for kind in kinds for network_id in network_ids}
        for name in sorted(name for name in links if self._names.is_own(name) and name not in wanted):
            # May fail: links to a removed namespace are removed with it.
            await run("ip", "link", "del", name, check=False)

    async def _remove_subports(self, plan: NetworkPlan, links: Links) -> None:
        """Remove the VLAN interfaces of subports that have left their trunk. Unlike taps, they are made here."""
        wanted = {self._names.tap(port.id) for network in plan.networks for port in network.ports if port.parent}
        for name, link in sorted(links.items()):
            is_vlan = link.get("linkinfo", {}).get("info_kind") == "vlan"
            if is_vlan and self._names.is_tap(name) and name not in wanted:
                await run("ip", "link", "del", name, check=False)

    async def _delete_forbidden_connections(self, plan: NetworkPlan) -> None:
        """Delete the connections of ports whose rules permit less than before."""
        addresses: dict[int, set[str]] = {}
        reduced_groups = {
            group for group, members in self._plan.groups.items() if set(members) - set(plan.groups.get(group, ()))
        }
        for network in plan.networks:
            for port in network.ports:
                before = self._ports[port.id][1].rules if port.id in self._ports else ()
                if any(rule not in port.rules or rule.group in reduced_groups for rule in before):
                    addresses.setdefault(firewall.conntrack_zone(network.id), set()).update(port.addresses)
        if addresses:
            # In a thread: the kernel may have very many entries.
            await asyncio.to_thread(conntrack.delete_entries, addresses)

    # The plan on disk

    def _write_plan(self, plan: NetworkPlan) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._directory / _PLAN_FILE
        new = file.with_suffix(".new")
        new.write_bytes(msgspec.msgpack.encode(plan))
        new.replace(file)

    def _read_plan(self) -> NetworkPlan | None:
        """None also if none of its networks exists: the host has rebooted, and its guests may be on other hosts."""
        try:
            plan = msgspec.msgpack.decode((self._directory / _PLAN_FILE).read_bytes(), type=NetworkPlan)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the stored network plan cannot be read: %s", error)
            return None
        present = namespaces.list_namespaces()
        return plan if any(self._names.namespace(network.id) in present for network in plan.networks) else None

    # Metadata

    def _document(self, network_id: str, source: str, path: str) -> bytes | None:
        port = self._find_port(network_id, source)
        return None if port is None else metadata.find_document(self._documents_of(port), path)

    def _find_port(self, network_id: str, source: str) -> WiredPort | None:
        for network in self._plan.networks:
            if network.id == network_id:
                return next((port for port in network.ports if source in port.addresses), None)
        return None

    def _store_password(self, network_id: str, source: str, password: str) -> bool | None:
        """None if the sender is not a guest of this host."""
        port = self._find_port(network_id, source)
        guest = None if port is None else self._guest_of(port)
        return None if guest is None or self.store_password is None else self.store_password(guest, password)

    def _guest_of(self, port: WiredPort) -> Guest | None:
        """The guest, only if it was built with the port: users can set a port's `device_id` themselves."""
        guest = self._guests(port.guest_id)
        return guest if guest is not None and any(nic.port_id == port.id for nic in guest.nics) else None

    def _documents_of(self, port: WiredPort) -> dict[str, bytes]:
        read_at, found = self._documents.get(port.id, (0.0, {}))
        if not read_at or time.monotonic() - read_at > _POLL_SECONDS:
            guest = self._guest_of(port)
            if guest is None:
                return {}
            port_ids = {nic.port_id for nic in guest.nics}
            networks = [
                msgspec.structs.replace(network, mtu=self._mtu(network))
                for network in self._plan.networks
                if any(port.id in port_ids for port in network.ports)
            ]
            vendor = metadata.vendor_data(self._config.libvirt.vendor_data)
            found = metadata.documents(guest, networks, vendor=vendor, addresses=self.addresses(guest.id))
            self._documents[port.id] = (time.monotonic(), found)
        return found
