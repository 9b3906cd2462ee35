"""The networks of one host, made as the plan says and made again whenever something of them is missing.

Everything is read from the kernel before it is changed, so that a restarted agent goes on with what there is. The plan
is kept on disk as well: the agent has networks again before anybody tells it.
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
from kilonova.hosts.drivers.libvirt.networks import bridges, checks, connections, firewall, namespaces
from kilonova.hosts.drivers.libvirt.networks.bridges import Bridges, Links
from kilonova.hosts.drivers.libvirt.networks.commands import run
from kilonova.hosts.drivers.libvirt.networks.dhcp import Dhcp
from kilonova.hosts.drivers.libvirt.networks.metadata_service import MetadataService
from kilonova.hosts.drivers.libvirt.networks.names import Names
from kilonova.hosts.drivers.libvirt.networks.outside import Outside
from kilonova.hosts.messages import Guest, NetworkPlan, WiredNetwork, WiredPort

if TYPE_CHECKING:
    from kilonova.config import Config

log = logging.getLogger(__name__)

# How often everything is looked at, also what did not change in the plan.
_LOOK_EVERY = 20.0
_SOON = 2.0
_PLAN = "plan"


class Wiring:
    """`guests`: what a guest is, by its id; None if it is not known here."""

    def __init__(self, config: Config, host: str, directory: Path, guests: Callable[[str], Guest | None]) -> None:
        settings = config.bridges
        self._config = config
        self._host = host
        self._directory = directory
        self._guests = guests
        # Where the devices of a guest are on its buses.
        self.addresses: Callable[[str], dict[str, str]] = lambda _: {}
        # Keep the password that a guest gives away; whether it was the first.
        self.keep_password: Callable[[Guest, str], bool] | None = None
        self._names = Names(settings.prefix)
        self._bridges = Bridges(self._names, config.agent.address, settings.vxlan_port)
        self._dhcp = Dhcp(self._names, directory)
        self._outside = Outside(self._names, directory, settings.outside, nat=settings.nat, closed=settings.closed)
        self._metadata = MetadataService(self._document, self._take_password)
        self._native: bool | None = None
        self._rules = ""
        self._made: dict[str, tuple[WiredNetwork, str]] = {}
        # Why not all is as it shall be.
        self._trouble = ""
        self._looked_at = -_LOOK_EVERY
        self._underlay = 0
        self._plan = NetworkPlan(read_at=0.0)
        self._ports: dict[str, tuple[WiredNetwork, WiredPort]] = {}
        self._applied = asyncio.Condition()
        self._turn = asyncio.Lock()
        self._documents: dict[str, tuple[float, dict[str, bytes]]] = {}

    # What the rest of the driver asks

    def bridge_of(self, network_id: str) -> str:
        return self._names.bridge(network_id)

    def tap_of(self, port_id: str) -> str:
        return self._names.tap(port_id)

    def mtu_of(self, network_id: str) -> int:
        found = next((network for network in self._plan.networks if network.id == network_id), None)
        if found is None:
            raise DriverError(f"network {network_id} is not on {self._host}", passing=True)
        return self._mtu(found)

    async def wired(self, port_ids: Sequence[str], seconds: float) -> list[WiredNetwork]:
        """The networks of these ports, as soon as the host has all of them."""
        try:
            async with asyncio.timeout(seconds), self._applied:
                await self._applied.wait_for(lambda: all(port_id in self._ports for port_id in port_ids))
        except TimeoutError:
            missing = ", ".join(port_id for port_id in port_ids if port_id not in self._ports)
            why = f": {self._trouble}" if self._trouble else ""
            raise DriverError(
                f"{self._host} has no network for port {missing} within {seconds:g} s{why}", passing=True
            ) from None
        found = {self._ports[port_id][0].id: self._ports[port_id][0] for port_id in port_ids}
        return [msgspec.structs.replace(network, mtu=self._mtu(network)) for network in found.values()]

    async def run(self) -> None:
        """Until cancelled. What was told before the agent's end holds until something newer is told."""
        kept = self._read_kept()
        while True:
            try:
                if kept is not None:
                    plan, kept = kept, None
                    await self.apply(plan)
                elif self._plan.networks and (self._trouble or self._is_overdue()):
                    await self.apply(self._plan)
            except DriverError as error:
                log.warning("networks are not as they shall be: %s", error.message)
            await asyncio.sleep(_SOON)

    async def close(self) -> None:
        """Guests go on, and so do their networks."""
        await self._metadata.close()

    # Making it so

    async def apply(self, plan: NetworkPlan) -> None:
        """Raises DriverError where something could not be done; all the rest is done nevertheless."""
        checks.check(plan)
        # Whoever told of it may give up waiting: half of it done helps nobody.
        work = asyncio.create_task(self._apply(plan))
        work.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        await asyncio.shield(work)

    async def _apply(self, plan: NetworkPlan) -> None:
        async with self._turn:
            if plan.read_at < self._plan.read_at:
                return
            try:
                troubles = await self._make(plan)
            except DriverError as error:
                self._trouble = error.message
                raise
            self._trouble = troubles[0][1].message if troubles else ""
            await self._forget_connections(plan)
            failed = {network_id for network_id, _ in troubles}
            self._plan = plan
            self._ports = {
                port.id: (network, port)
                for network in plan.networks
                if network.id not in failed
                for port in network.ports
            }
            self._documents.clear()
            self._keep(plan)
        async with self._applied:
            self._applied.notify_all()
        if troubles:
            raise troubles[0][1]

    async def _make(self, plan: NetworkPlan) -> list[tuple[str, DriverError]]:
        """What went wrong, with the network it went wrong with."""
        there, spaces = await bridges.links(), namespaces.present()
        overdue = self._is_overdue()
        if overdue:
            self._underlay = await bridges.underlay_mtu(self._config.agent.address)
        interface = await self._outside.interface() if any(map(self._outside.is_wanted, plan.networks)) else ""
        await self._guard(plan, interface, overdue)
        troubles: list[tuple[str, DriverError]] = []
        changed = [
            network for network in plan.networks if overdue or not self._is_made(network, there, spaces, interface)
        ]
        for network in changed:
            self._made.pop(network.id, None)
            try:
                await self._network(network, there, interface)
            except DriverError as error:
                troubles.append((network.id, error))
            else:
                self._made[network.id] = (network, interface)
        try:
            await self._join(plan, changed)
            await self._outside.answer(plan, interface)
            await self._remove({network.id for network in plan.networks}, there, spaces)
        except DriverError as error:
            troubles.append(("", error))
        if overdue and not troubles:
            self._looked_at = time.monotonic()
        return troubles

    def _is_overdue(self) -> bool:
        return time.monotonic() - self._looked_at >= _LOOK_EVERY

    def _is_made(self, network: WiredNetwork, there: Links, spaces: set[str], interface: str) -> bool:
        return (
            self._made.get(network.id) == (network, interface)
            and self._names.bridge(network.id) in there
            and self._names.gate(network.id) in there
            and self._names.space(network.id) in spaces
            and self._dhcp.is_served(network)
        )

    def _mtu(self, network: WiredNetwork) -> int:
        """Never so large that packets to other hosts had to be cut."""
        return min(network.mtu, self._underlay) if network.vni is not None and self._underlay > 0 else network.mtu

    async def _guard(self, plan: NetworkPlan, interface: str, overdue: bool) -> None:
        """First of all: whatever is plugged in afterwards finds its rules."""
        if self._native is None:
            self._native = await firewall.knows_connections(self._names)
        rules = self._outside.ruleset(plan, interface)
        if plan.networks:
            rules += firewall.ruleset(plan, self._names, native=self._native)
        else:
            rules += firewall.removal(self._names, native=self._native)
        if rules == self._rules and not (overdue and plan.networks and not await self._is_guarded()):
            return
        self._rules = ""
        await run("nft", "-f", "-", given=rules)
        self._rules = rules

    async def _is_guarded(self) -> bool:
        families = ("bridge",) if self._native else ("bridge", "inet")
        tables = (await run("nft", "list", "tables")).splitlines()
        return all(f"table {family} {self._names.table}" in tables for family in families)

    async def _network(self, network: WiredNetwork, there: Links, interface: str) -> None:
        space, mtu = self._names.space(network.id), self._mtu(network)
        if await namespaces.ensure(space):
            await self._leave(network.id, there)
        await self._bridges.ensure(network, mtu, there, handed=not self._native)
        await self._bridges.address(network)
        await self._outside.ensure(network, there, interface)
        await self._dhcp.ensure(network, mtu)
        try:
            await self._metadata.ensure(network.id, space)
        except OSError as error:
            raise DriverError(f"metadata of network {network.id}: {error.strerror}", passing=True) from None

    async def _leave(self, network_id: str, there: Links) -> None:
        """What is still in a namespace whose name is gone: it goes on there, and is of no use to anybody."""
        await self._metadata.remove(network_id)
        await self._dhcp.stop(network_id)
        self._outside.forget(network_id)
        for name in (self._names.gate(network_id), self._names.uplink(network_id)):
            if there.pop(name, None) is not None:
                await run("ip", "link", "del", name, check=False)

    async def _join(self, plan: NetworkPlan, changed: list[WiredNetwork]) -> None:
        present = {network.id for network in plan.networks}
        for network in plan.networks if changed else ():
            if network.routed or network in changed:
                await self._bridges.join(network, present)

    async def _remove(self, present: set[str], there: Links, spaces: set[str]) -> None:
        """What no plan wants any more. Taps are libvirt's, and go with their guests."""
        for space in sorted(spaces):
            network_id = self._names.network_of(space)
            if network_id is not None and network_id not in present:
                await self._metadata.remove(network_id)
                await self._dhcp.remove(network_id)
                await namespaces.remove(space)
                self._made.pop(network_id, None)
                self._outside.forget(network_id)
        kinds = (self._names.bridge, self._names.vxlan, self._names.gate, self._names.uplink)
        wanted = {kind(network_id) for kind in kinds for network_id in present}
        for name in sorted(name for name in there if self._names.is_made(name) and name not in wanted):
            # The ends of links went with their namespaces.
            await run("ip", "link", "del", name, check=False)

    async def _forget_connections(self, plan: NetworkPlan) -> None:
        """Who may not any more may not go on either."""
        lost: dict[int, set[str]] = {}
        fewer = {
            group for group, members in self._plan.groups.items() if set(members) - set(plan.groups.get(group, ()))
        }
        for network in plan.networks:
            for port in network.ports:
                before = self._ports[port.id][1].rules if port.id in self._ports else ()
                if any(rule not in port.rules or rule.group in fewer for rule in before):
                    lost.setdefault(firewall.zone(network.id), set()).update(port.addresses)
        if lost:
            # The kernel may know of very many.
            await asyncio.to_thread(connections.forget, lost)

    # The plan on disk

    def _keep(self, plan: NetworkPlan) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._directory / _PLAN
        new = file.with_suffix(".new")
        new.write_bytes(msgspec.msgpack.encode(plan))
        new.replace(file)

    def _read_kept(self) -> NetworkPlan | None:
        """None also if nothing of it is there: the host was off meanwhile, and its guests may be elsewhere by now."""
        try:
            kept = msgspec.msgpack.decode((self._directory / _PLAN).read_bytes(), type=NetworkPlan)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the plan of networks cannot be read, and is awaited: %s", error)
            return None
        present = namespaces.present()
        return kept if any(self._names.space(network.id) in present for network in kept.networks) else None

    # Metadata

    def _document(self, network_id: str, source: str, path: str) -> bytes | None:
        port = self._asker(network_id, source)
        return None if port is None else metadata.look(self._documents_of(port), path)

    def _asker(self, network_id: str, source: str) -> WiredPort | None:
        for network in self._plan.networks:
            if network.id == network_id:
                return next((port for port in network.ports if source in port.addresses), None)
        return None

    def _take_password(self, network_id: str, source: str, password: str) -> bool | None:
        """None from whom nothing is taken."""
        port = self._asker(network_id, source)
        guest = None if port is None else self._guest_of(port)
        return None if guest is None or self.keep_password is None else self.keep_password(guest, password)

    def _guest_of(self, port: WiredPort) -> Guest | None:
        """Whose port it is people may write themselves: only a guest that was built with it has a say."""
        guest = self._guests(port.guest_id)
        return guest if guest is not None and any(nic.port_id == port.id for nic in guest.nics) else None

    def _documents_of(self, port: WiredPort) -> dict[str, bytes]:
        read_at, found = self._documents.get(port.id, (0.0, {}))
        if not read_at or time.monotonic() - read_at > _SOON:
            guest = self._guest_of(port)
            if guest is None:
                return {}
            ours = {nic.port_id for nic in guest.nics}
            networks = [
                msgspec.structs.replace(network, mtu=self._mtu(network))
                for network in self._plan.networks
                if any(port.id in ours for port in network.ports)
            ]
            vendor = metadata.vendor_data(self._config.libvirt.vendor_data)
            found = metadata.documents(guest, networks, vendor=vendor, addresses=self.addresses(guest.id))
            self._documents[port.id] = (time.monotonic(), found)
        return found
