"""A process that applies network plans: reads commands as lines and prints the results."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path

import msgspec

from kilonova.config import Agent, Bridges, Config
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.networks.host_networks import HostNetworks
from kilonova.hosts.messages import Flavor, Guest, NetworkPlan, Nic


async def main(directory: Path, address: str, bridges: Bridges) -> None:
    guests: dict[str, Guest] = {}
    config = Config(agent=Agent(address=address), bridges=bridges)
    networks = HostNetworks(config, "h", directory, guests.get)
    running = asyncio.create_task(networks.run())
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    while line := await reader.readline():
        command, _, argument = line.decode().strip().partition(" ")
        try:
            print(json.dumps(await execute(networks, guests, command, argument)), flush=True)
        except DriverError as error:
            print(json.dumps({"error": error.message}), flush=True)
    running.cancel()
    await networks.close()


async def execute(networks: HostNetworks, guests: dict[str, Guest], command: str, argument: str) -> object:
    """Run "apply" with a network plan, or "wait" with port ids, which returns the MTUs of their networks."""
    if command == "apply":
        plan = msgspec.msgpack.decode(base64.b64decode(argument), type=NetworkPlan)
        # A guest keeps its first spec when later plans change.
        for guest_id in {port.guest_id for network in plan.networks for port in network.ports} - guests.keys():
            guests[guest_id] = make_guest(plan, guest_id)
        await networks.apply(plan)
        return "applied"
    found = await networks.wait_for_ports(argument.split(), 0.5)
    return [network.mtu for network in found]


def make_guest(plan: NetworkPlan, guest_id: str) -> Guest:
    nics = [
        Nic(port_id=port.id, mac=port.mac, network_id=network.id, addresses=port.addresses)
        for network in plan.networks
        for port in network.ports
        if port.guest_id == guest_id
    ]
    flavor = Flavor(vcpus=1, ram_mb=64, disk_gb=1)
    return Guest(id=guest_id, name=f"name-of-{guest_id}", project_id="p", user_id="u", flavor=flavor, nics=nics)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], msgspec.json.decode(sys.argv[3], type=Bridges)))
