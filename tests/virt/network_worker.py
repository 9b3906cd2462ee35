"""A host's networks in a process of their own: plans come in as lines, and answers go out."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path

import msgspec

from kilonova.config import Agent, Bridges, Config
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.networks.wiring import Wiring
from kilonova.hosts.messages import Flavor, Guest, NetworkPlan, Nic


async def main(directory: Path, address: str, bridges: Bridges) -> None:
    guests: dict[str, Guest] = {}
    config = Config(agent=Agent(address=address), bridges=bridges)
    wiring = Wiring(config, "h", directory, guests.get)
    running = asyncio.create_task(wiring.run())
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    while line := await reader.readline():
        verb, _, given = line.decode().strip().partition(" ")
        try:
            print(json.dumps(await answer(wiring, guests, verb, given)), flush=True)
        except DriverError as error:
            print(json.dumps({"error": error.message}), flush=True)
    running.cancel()
    await wiring.close()


async def answer(wiring: Wiring, guests: dict[str, Guest], verb: str, given: str) -> object:
    if verb == "apply":
        plan = msgspec.msgpack.decode(base64.b64decode(given), type=NetworkPlan)
        # A guest stays what it was built as, whatever ports say later.
        for guest_id in {port.guest_id for one in plan.networks for port in one.ports} - guests.keys():
            guests[guest_id] = guest(plan, guest_id)
        await wiring.apply(plan)
        return "applied"
    found = await wiring.wired(given.split(), 0.5)
    return [network.mtu for network in found]


def guest(plan: NetworkPlan, guest_id: str) -> Guest:
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
