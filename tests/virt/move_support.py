"""Two libvirt hosts with an agent each, which run micro guests."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kilonova.hosts.messages import Flavor, Guest, Image, MoveTicket, Transfer
from kilonova.hosts.messages.verbs import CheckMigrationSource, MigrateLive, PowerOn, PrepareMigration, Spawn
from kilonova.ids import new_id
from tests.support.standalone_agent import PendingCall, StandaloneAgent
from tests.support.virt_hosts import Site, temporary_site, wait_until

MIB = 1 << 20
TICKET = MoveTicket(key="key of the moves between the hosts")


class HostPair:
    def __init__(self, site: Site, shared_storage: bool, **settings: Any) -> None:
        self.site = site
        self.shared_storage = shared_storage
        self.one, self.two = (
            StandaloneAgent(site.host(name), self._instances(name), **settings) for name in ("one", "two")
        )

    def _instances(self, name: str) -> Path:
        return self.site.directory / ("shared" if self.shared_storage else f"disks-{name}")

    def boot(self, agent: StandaloneAgent, guest: Guest | None = None, *, filled_mb: int = 0) -> Guest:
        """Boot a micro guest. `filled_mb`: data on its disk, so that copying it takes a while."""
        guest = guest or make_guest()
        data = Transfer(url=str(self.site.micro_image()), ticket="")
        agent.call(Spawn(guest=guest, data=data, start=False))
        if filled_mb:
            disk = agent.instances / guest.id / "disk"
            fill = ["qemu-io", "-f", "qcow2", "-c", f"write -P 7 2M {filled_mb}M", str(disk)]
            subprocess.run(fill, check=True, capture_output=True)
        agent.call(PowerOn(guest_id=guest.id))
        agent.wait_for_output(guest.id, "TICK 00001")
        return guest

    def prepare_migration(
        self,
        guest: Guest,
        source: StandaloneAgent,
        destination: StandaloneAgent,
        *,
        block: bool | None = None,
        slot: str = "",
    ) -> str:
        """Prepare a live migration and return its slot."""
        slot = slot or new_id()
        offer = source.call(
            CheckMigrationSource(
                guest_id=guest.id, destination=destination.name, slot=slot, reach=destination.addresses(), ticket=TICKET
            )
        )
        destination.call(
            PrepareMigration(
                guest=guest,
                source=source.name,
                slot=slot,
                block=block,
                offer=offer,
                reach=source.addresses(),
                ticket=TICKET,
            )
        )
        return slot

    def start_migration(
        self, guest: Guest, source: StandaloneAgent, destination: StandaloneAgent, slot: str, seconds: float = 300.0
    ) -> PendingCall:
        verb = MigrateLive(guest_id=guest.id, destination=destination.name, slot=slot, reach=destination.addresses())
        return source.start_call(verb, seconds)

    def migrate(self, guest: Guest, source: StandaloneAgent, destination: StandaloneAgent) -> None:
        self.start_migration(guest, source, destination, self.prepare_migration(guest, source, destination)).result()

    def hosts_running(self, guest: Guest) -> list[str]:
        """The hosts with a QEMU process of the guest."""
        hosts = (self.one.host, self.two.host)
        return [
            host.name for host in hosts if host.is_on and any(guest.id in process for process in host.guest_processes())
        ]

    def instance_files(self, agent: StandaloneAgent) -> list[str]:
        """The files in the instances directory, without base images."""
        return sorted(path.name for path in agent.instances.iterdir() if path.name != "_base")


def make_guest(**fields: Any) -> Guest:
    flavor = Flavor(name="micro", vcpus=1, ram_mb=64, disk_gb=1)
    image = Image(id="micro", disk_format="raw")
    values: dict[str, Any] = {"flavor": flavor, "image": image, **fields}
    return Guest(id=new_id(), name="web", project_id="p", user_id="u", **values)


def is_filled(agent: StandaloneAgent, guest: Guest) -> bool:
    """Whether the guest's disk has the data that `HostPair.boot` wrote."""
    disk = agent.instances / guest.id / "disk"
    command = ["qemu-io", "-r", "-U", "-f", "qcow2", "-c", "read -P 7 2M 4M", str(disk)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "read 4194304/4194304" in done.stdout or "verification failed" in done.stdout, done.stderr
    return done.returncode == 0


def is_contiguous(ticks: list[int]) -> bool:
    return bool(ticks) and ticks == list(range(1, ticks[-1] + 1))


def assert_counting(agent: StandaloneAgent, guest: Guest) -> None:
    """Assert that the guest still counts, without a gap since its boot."""
    before = wait_until(lambda: agent.ticks(guest.id), f"guest {guest.id} counts on {agent.name}")
    wait_until(lambda: agent.ticks(guest.id)[-1] > before[-1], f"guest {guest.id} keeps counting on {agent.name}")
    assert is_contiguous(agent.ticks(guest.id)), agent.ticks(guest.id)


@contextlib.contextmanager
def host_pair(*, shared_storage: bool = False, **settings: Any) -> Iterator[HostPair]:
    with temporary_site() as site:
        hosts = HostPair(site, shared_storage, **settings)
        try:
            yield hosts
        except BaseException:
            for agent in (hosts.one, hosts.two):
                if agent.process is not None:
                    print(agent.name, agent.process.output_file.read_text()[-4000:])
            raise
