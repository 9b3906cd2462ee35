"""Two real hosts with an agent each, and a guest that counts: what tests of moves begin with."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kilonova.hosts.messages import Expect, Flavor, Guest, Image, MigrateLive, Offer, PowerOn, Spawn, Transfer
from kilonova.ids import new_id
from tests.support.lone_agent import Agent, Asked
from tests.support.virt_hosts import Site, site, until

MIB = 1 << 20


class Pair:
    def __init__(self, place: Site, shared: bool, **settings: Any) -> None:
        self.site = place
        self.shared = shared
        self.one, self.two = (Agent(place.host(name), self._instances(name), **settings) for name in ("one", "two"))

    def _instances(self, name: str) -> Path:
        return self.site.directory / ("shared" if self.shared else f"disks-{name}")

    def boot(self, agent: Agent, guest: Guest | None = None, *, filled_mb: int = 0) -> Guest:
        """A guest that counts; with so much on its disk that copying it takes a while."""
        guest = guest or make_guest()
        data = Transfer(url=str(self.site.micro_image()), token="")
        agent.ask(Spawn(guest=guest, data=data, start=False))
        if filled_mb:
            disk = agent.instances / guest.id / "disk"
            fill = ["qemu-io", "-f", "qcow2", "-c", f"write -P 7 2M {filled_mb}M", str(disk)]
            subprocess.run(fill, check=True, capture_output=True)
        agent.ask(PowerOn(guest_id=guest.id))
        agent.says(guest.id, "TICK 00001")
        return guest

    def prepare(self, guest: Guest, source: Agent, there: Agent, *, block: bool | None = None, slot: str = "") -> str:
        """The slot in which the guest is expected."""
        slot = slot or new_id()
        offer = source.ask(Offer(guest_id=guest.id, destination=there.name, slot=slot, reach=there.reach()))
        there.ask(Expect(guest=guest, source=source.name, slot=slot, block=block, offer=offer, reach=source.reach()))
        return slot

    def begin(self, guest: Guest, source: Agent, there: Agent, slot: str, seconds: float = 300.0) -> Asked:
        verb = MigrateLive(guest_id=guest.id, destination=there.name, slot=slot, reach=there.reach())
        return source.begin(verb, seconds)

    def migrate(self, guest: Guest, source: Agent, there: Agent) -> None:
        self.begin(guest, source, there, self.prepare(guest, source, there)).result()

    def runs(self, guest: Guest) -> list[str]:
        """Where a QEMU of the guest runs, whoever knows of it."""
        hosts = (self.one.host, self.two.host)
        return [host.name for host in hosts if host.is_on and any(guest.id in one for one in host.guest_processes())]

    def files(self, agent: Agent) -> list[str]:
        """What there is of guests, and of what is only passing."""
        return sorted(path.name for path in agent.instances.iterdir() if path.name != "_base")


def make_guest(**more: Any) -> Guest:
    flavor = Flavor(name="micro", vcpus=1, ram_mb=64, disk_gb=1)
    image = Image(id="micro", disk_format="raw")
    values: dict[str, Any] = {"flavor": flavor, "image": image, **more}
    return Guest(id=new_id(), name="web", project_id="p", user_id="u", **values)


def is_filled(agent: Agent, guest: Guest) -> bool:
    """Whether what was written to its disk is still there."""
    disk = agent.instances / guest.id / "disk"
    asked = ["qemu-io", "-r", "-U", "-f", "qcow2", "-c", "read -P 7 2M 4M", str(disk)]
    done = subprocess.run(asked, check=False, capture_output=True, text=True)
    assert "read 4194304/4194304" in done.stdout or "verification failed" in done.stdout, done.stderr
    return done.returncode == 0


def is_contiguous(ticks: list[int]) -> bool:
    return bool(ticks) and ticks == list(range(1, ticks[-1] + 1))


def goes_on(agent: Agent, guest: Guest) -> None:
    """The counter has gone on from the beginning without a gap, and still does."""
    before = until(lambda: agent.ticks(guest.id), f"{guest.id} counts on {agent.name}")
    until(lambda: agent.ticks(guest.id)[-1] > before[-1], f"{guest.id} goes on counting on {agent.name}")
    assert is_contiguous(agent.ticks(guest.id)), agent.ticks(guest.id)


@contextlib.contextmanager
def pair(*, shared: bool = False, **settings: Any) -> Iterator[Pair]:
    with site() as place:
        hosts = Pair(place, shared, **settings)
        try:
            yield hosts
        except BaseException:
            for agent in (hosts.one, hosts.two):
                if agent.process is not None:
                    print(agent.name, agent.process.out.read_text()[-4000:])
            raise
